//! Processes that do wrong in every way that a process can: small shell scripts in the place of the
//! CLI, behind the real launcher (spec/cli-protocol.md 11).

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use abide::client::{AgentSessionClient, StartSession};
use abide::engine::LocalEngine;
use abide::event::EventKind;
use abide::failure::FailureClass;
use abide::flow::{AgentSessionFlow, FlowRegistry, SessionOptions};
use abide::ids::{EventCursor, FlowType};
use abide::store::{SqliteStateStore, StateStore};
use abide::transport::{CliError, CliProcess, LaunchSpec};
use async_trait::async_trait;
use serde_json::{Value, json};

use super::*;
use crate::support::alone::{is_alone, peak_kilobytes};
use crate::support::wait_for_event;

/// Runs a script of `/bin/sh` as the CLI; it gets the CLI's arguments.
#[derive(Debug)]
struct ShellCli {
    sh: SubprocessLauncher,
    script: String,
    root: TempDir,
}

impl ShellCli {
    fn new(script: &str) -> Self {
        let root = TempDir::new().unwrap();
        Self {
            sh: SubprocessLauncher::new("/bin/sh").with_work_root(root.path().join("work")),
            script: script.to_owned(),
            root,
        }
    }

    /// Lets the script `cat "$FRAMES"`.
    fn with_frames(self, frames: &str) -> Self {
        std::fs::write(self.root.path().join("frames"), frames).unwrap();
        self
    }

    fn with_line_bytes_max(mut self, bytes: usize) -> Self {
        self.sh = self.sh.with_line_bytes_max(bytes);
        self
    }

    /// Where the script may leave something: `$OUT`.
    fn out(&self) -> PathBuf {
        self.root.path().join("out")
    }
}

#[async_trait]
impl CliLauncher for ShellCli {
    async fn launch(&self, mut spec: LaunchSpec) -> Result<Box<dyn CliProcess>, CliError> {
        let mut arguments = vec!["-c".to_owned(), self.script.clone(), "cli".to_owned()];
        arguments.append(&mut spec.arguments);
        spec.arguments = arguments;
        let variables = BTreeMap::from([("FRAMES", "frames"), ("OUT", "out")]);
        for (name, file) in variables {
            let path = self.root.path().join(file).display().to_string();
            spec.environment.insert(name.to_owned(), path);
        }
        spec.environment
            .insert("PATH".to_owned(), "/usr/bin:/bin".to_owned());
        self.sh.launch(spec).await
    }
}

/// The lines of a turn whose answer is this text, with these entries in the transcript.
fn frames(answer: &str, entries: &[&str]) -> String {
    let message = format!(
        r#"{{"id":"m1","role":"assistant","model":"m","content":[{{"type":"text","text":"{answer}"}}]}}"#
    );
    let mut all: Vec<String> = entries.iter().map(|it| (*it).to_owned()).collect();
    all.push(format!(
        r#"{{"type":"assistant","uuid":"a1","message":{message}}}"#
    ));
    format!(
        "{}\n{}\n{}\n{}\n",
        r#"{"type":"system","subtype":"init","session_id":"c1","claude_code_version":"2.1.316"}"#,
        format_args!(
            r#"{{"type":"transcript_mirror","filePath":"/p/c1.jsonl","entries":[{}]}}"#,
            all.join(",")
        ),
        format_args!(
            r#"{{"type":"assistant","uuid":"a1","parent_tool_use_id":null,"message":{message}}}"#
        ),
        r#"{"type":"result","subtype":"success","is_error":false,"session_id":"c1","stop_reason":"end_turn"}"#,
    )
}

async fn segment(launcher: impl CliLauncher + 'static, environment: &[(&str, &str)]) -> Segmented {
    let world = World::other(launcher, environment);
    let mut agent = Agent::new(&world);
    agent.say("hello");
    agent.segment(Vec::new()).await
}

async fn failure(launcher: impl CliLauncher + 'static) -> (FailureClass, String) {
    let failure = segment(launcher, &[]).await.end.unwrap_err();
    assert_eq!(failure.retry_after_ms, None);
    (failure.class, failure.detail)
}

fn answer(segment: Segmented) -> String {
    match segment.end.unwrap() {
        RunModelOutcome::TurnCompleted { messages, .. } => messages.last().unwrap().text.clone(),
        it @ (RunModelOutcome::ToolCallsRequested { .. }
        | RunModelOutcome::Parked
        | RunModelOutcome::Cancelled { .. }) => {
            panic!("{it:?}")
        }
    }
}

/// A CLI that is not there or cannot run: never tried again, and its path is named.
#[tokio::test]
async fn a_cli_that_cannot_start_is_unavailable() {
    let files = TempDir::new().unwrap();
    let plain = files.path().join("plain");
    std::fs::write(&plain, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o644)).unwrap();
    let missing = files.path().join("missing");
    for (program, said) in [
        (
            missing.as_path(),
            format!("no Claude Code CLI at {}", missing.display()),
        ),
        (
            files.path(),
            format!(
                "the Claude Code CLI at {} cannot be executed: it is not a file",
                files.path().display()
            ),
        ),
        (
            plain.as_path(),
            format!(
                "the Claude Code CLI at {} cannot be executed: permission denied",
                plain.display()
            ),
        ),
    ] {
        let launcher = SubprocessLauncher::new(program).with_work_root(files.path().join("work"));
        let failure = failure(launcher).await;
        assert_eq!(failure, (FailureClass::CliUnavailable, said));
        assert!(!failure.0.is_retryable());
    }
}

/// R41, O13, O14: a CLI that ends before its result: how it ended and its last words are the detail.
#[tokio::test]
async fn a_cli_that_ends_without_a_result_says_how() {
    let flood = format!("exit status 1: {}", "e".repeat(1000));
    for (script, class, said) in [
        ("exit 0", FailureClass::CliFailed, "exit status 0"),
        ("exit 3", FailureClass::CliFailed, "exit status 3"),
        (
            "echo \"error: unknown option '--await-initialize'\" >&2; exit 1",
            FailureClass::CliTooOld,
            "exit status 1: error: unknown option '--await-initialize'",
        ),
        ("kill -9 $$", FailureClass::CliFailed, "signal 9"),
        ("kill -15 $$", FailureClass::CliFailed, "signal 15"),
        // A last line that is cut is no result, whatever it would have been.
        (
            r#"printf '%s' '{"type":"result","subtype":"success","is_error":fal'"#,
            FailureClass::CliFailed,
            "exit status 0",
        ),
        // Its input is closed when we write into it.
        (
            "exec 0<&-; echo gone >&2; exit 1",
            FailureClass::CliFailed,
            "exit status 1: gone",
        ),
        // A process that cannot say a result any more is ended.
        (
            "exec 1>&-; exec sleep 1000",
            FailureClass::CliFailed,
            "signal 15",
        ),
        // Whoever else holds its output is not waited for (R32).
        (
            "sleep 1000 & exit 4",
            FailureClass::CliFailed,
            "exit status 4",
        ),
        (
            "head -c 200000 /dev/zero | tr '\\0' e >&2; exit 1",
            FailureClass::CliFailed,
            flood.as_str(),
        ),
    ] {
        assert_eq!(
            failure(ShellCli::new(script)).await,
            (class, format!("the CLI ended without a result: {said}")),
            "{script}"
        );
    }
}

/// R36: a line over the limit ends the attempt, and the limit is named.
#[tokio::test]
async fn a_line_over_the_limit_ends_the_attempt() {
    let cli = ShellCli::new("head -c 5000 /dev/zero | tr '\\0' x; exec sleep 1000");
    assert_eq!(
        failure(cli.with_line_bytes_max(4096)).await,
        (
            FailureClass::CliFailed,
            "the CLI wrote a line of more than 4096 bytes".to_owned()
        )
    );
}

/// G10: what the CLI quotes of the secrets it was given is in no failure.
#[tokio::test]
async fn no_secret_is_in_a_failure() {
    let environment = [("ANTHROPIC_API_KEY", "sk-ant-canary-7")];
    let result = r#"printf '{"type":"result","subtype":"success","is_error":true,"session_id":"c1","result":"bad key %s"}\n' "$ANTHROPIC_API_KEY""#;
    for (script, said) in [
        (
            r#"echo "bad key $ANTHROPIC_API_KEY" >&2; exit 1"#,
            "the CLI ended without a result: exit status 1: bad key [redacted]",
        ),
        (
            // Where the last words are cut, the key is cut too.
            r#"printf 'key %s%0990d' "$ANTHROPIC_API_KEY" 7 >&2; exit 1"#,
            "",
        ),
        (result, "bad key [redacted]"),
    ] {
        let failure = segment(ShellCli::new(script), &environment)
            .await
            .end
            .unwrap_err();
        if said.is_empty() {
            let zeros = format!("redacted]{:0990}", 7);
            let start = "the CLI ended without a result: exit status 1: ";
            assert_eq!(failure.detail, format!("{start}[{zeros}"));
        } else {
            assert_eq!(failure.detail, said);
        }
    }
}

/// Lines that are no frames stand between the frames, and a closed input harms nobody who needs none.
#[tokio::test]
async fn noise_between_the_frames_is_passed_over() {
    for script in [
        r#"printf '[DEBUG] x\n\n42\n\377\000\n{"type":"new"}\n{\n'; cat "$FRAMES"; printf '{"cut":'"#,
        r#"exec 0<&-; cat "$FRAMES""#,
    ] {
        let cli = ShellCli::new(script).with_frames(&frames("hi", &[]));
        assert_eq!(answer(segment(cli, &[]).await), "hi", "{script}");
    }
}

/// R34, R36: an answer of 12 MB and a transcript entry of 60 MB pass through the whole process.
#[tokio::test]
async fn big_lines_pass() {
    let text = "ä".repeat(6_000_000);
    let cli = ShellCli::new(r#"cat "$FRAMES""#).with_frames(&frames(&text, &[]));
    assert!(answer(segment(cli, &[]).await) == text);
    let entry = format!(
        r#"{{"type":"user","uuid":"u","data":"{}"}}"#,
        "x".repeat(60_000_000)
    );
    let cli = ShellCli::new(r#"cat "$FRAMES""#).with_frames(&frames("hi", &[&entry]));
    assert_eq!(answer(segment(cli, &[]).await), "hi");
}

/// R, peers.md 2: a CLI that writes 200 MB and reads nothing meanwhile, while we owe it answers, ends
/// in no deadlock, gets every answer, and costs little memory. Run in a process of its own, because
/// memory is counted by process.
#[tokio::test]
async fn a_flood_and_its_answers_pass_each_other() {
    if !is_alone("runner::processes::a_flood_and_its_answers_pass_each_other").await {
        return;
    }
    let script = r#"
        read -r initialize; read -r prompt
        noise='{"type":"keep_alive","x":"'$(head -c 999970 /dev/zero | tr '\0' x)'"}'
        i=0
        while [ $i -lt 200 ]; do
            echo "$noise"
            echo '{"type":"control_request","request_id":"q'$i'","request":{"subtype":"new"}}'
            i=$((i + 1))
        done
        while [ $i -gt 0 ]; do read -r answer && echo "$answer" >>"$OUT"; i=$((i - 1)); done
        cat "$FRAMES""#;
    let cli = ShellCli::new(script).with_frames(&frames("hi", &[]));
    let out = cli.out();
    let world = World::other(cli, &[]);
    let mut agent = Agent::new(&world);
    agent.say("hello");
    assert_eq!(answer(agent.segment(Vec::new()).await), "hi");
    let answers = std::fs::read_to_string(out).unwrap();
    let answers: Vec<Value> = answers
        .lines()
        .map(|it| serde_json::from_str(it).unwrap())
        .collect();
    assert_eq!(answers.len(), 200);
    for (number, answer) in answers.iter().enumerate() {
        let expected = json!({"type": "control_response", "response": {"subtype": "error",
            "request_id": format!("q{number}"), "error": "the host does not support new requests"}});
        assert_eq!(*answer, expected);
    }
    let kilobytes = peak_kilobytes();
    assert!(kilobytes < 100_000, "{kilobytes} kB");
}

/// A session over such a CLI, in SQLite.
struct Run {
    engine: LocalEngine,
    client: AgentSessionClient,
    session: SessionId,
    _world: World,
}

impl Run {
    async fn start(cli: ShellCli, options: SessionOptions) -> Self {
        let world = World::other(cli, &[]);
        let policies = ToolPolicies::new().with("Read", ToolPolicy::new(ToolEffect::Read));
        let runner = ClaudeAgentRunner::builder(world.options())
            .gated_call_wait(GatedCallWait::Native)
            .tool_policies(policies)
            .launcher(Arc::clone(&world.launcher))
            .build()
            .unwrap();
        let flow = AgentSessionFlow::new("Test", runner, options).unwrap();
        let store = SqliteStateStore::open(world.directory.path().join("state.db"))
            .await
            .unwrap();
        let store: Arc<dyn StateStore> = Arc::new(store);
        let registry = FlowRegistry::new().register(flow).unwrap();
        let engine = LocalEngine::start(registry, store).await.unwrap();
        Self {
            client: engine.client(),
            engine,
            session: session(),
            _world: world,
        }
    }

    async fn say_first(&self) {
        let flow_type = FlowType::new("Test").unwrap();
        let start = StartSession::new(self.session.clone(), flow_type).with_initial_message("go");
        assert!(self.client.start_session(start).await.unwrap());
    }

    async fn wait_for_turns(&self, turns: usize) {
        let mut ended = 0;
        wait_for_event(&self.client, &self.session, |event| {
            ended += usize::from(event.kind == EventKind::TurnCompleted);
            ended == turns
        })
        .await;
    }
}

/// G11: an entry is the same bytes in the CLI's mirror, in the store, and in the file that a later
/// segment resumes from: key order, number forms, escapes, half a surrogate pair and all.
#[tokio::test]
async fn entries_are_the_same_bytes_from_mirror_to_resume() {
    let entries = [
        r#"{"type":"user","uuid":"u1","b":1e2,"a":-0,"n":12345678901234567890123456789,"f":0.10}"#,
        r#"{"uuid":"u2","type":"attachment","s":"\u00e4\/\u2028\u0000ä😀\ud83d","S":"\"\\\b\f\n\r\t"}"#,
        r#"{"type":"brand_new","deep":[[{"x":null}],{"":{}}],"e":1E+5}"#,
        r#"{"type":"user","uuid":"u4","message":{"role":"user","content":[{"type":"hologram","id":7}]}}"#,
    ];
    let script = r#"
        read -r initialize; read -r prompt
        case "$*" in *--resume=*) cat "$CLAUDE_CONFIG_DIR"/projects/*/*.jsonl >"$OUT";; esac
        cat "$FRAMES""#;
    let lines = frames("hi", &entries);
    let cli = ShellCli::new(script).with_frames(&lines);
    let out = cli.out();
    let run = Run::start(cli, SessionOptions::default()).await;
    run.say_first().await;
    run.wait_for_turns(1).await;
    run.client
        .send_user_message(&run.session, "again", None)
        .await
        .unwrap();
    run.wait_for_turns(2).await;
    let answer = r#"{"type":"assistant","uuid":"a1","message":{"id":"m1","role":"assistant","model":"m","content":[{"type":"text","text":"hi"}]}}"#;
    let expected: Vec<&str> = entries.into_iter().chain([answer]).collect();
    let found = std::fs::read_to_string(out).unwrap();
    assert_eq!(found.lines().collect::<Vec<_>>(), expected);
    run.engine.shutdown().await;
}

/// R30: a CLI that says nothing is ended at the limit that the application chose, and not before.
#[tokio::test]
async fn a_silent_cli_is_ended_at_the_limit() {
    let cli = ShellCli::new(r#"echo $$ >"$OUT"; exec sleep 1000"#);
    let out = cli.out();
    let options = SessionOptions::default().with_run_model_limit(Duration::from_secs(1));
    let run = Run::start(cli, options).await;
    run.say_first().await;
    let failed = wait_for_event(&run.client, &run.session, |event| {
        matches!(event.kind, EventKind::AttemptFailed { .. })
    })
    .await;
    assert!(matches!(
        failed.kind,
        EventKind::AttemptFailed {
            class: FailureClass::CliFailed,
            retry_at: Some(_),
            ..
        }
    ));
    run.engine.shutdown().await;
    let pid = std::fs::read_to_string(out).unwrap();
    let process = PathBuf::from(format!("/proc/{}", pid.trim()));
    let mut tick = tokio::time::interval(Duration::from_millis(5));
    while process.exists() {
        tick.tick().await;
    }
}

/// R, peers.md 2: a subscriber that reads nothing holds up neither the live text behind it nor the
/// answer to a hook.
#[tokio::test]
async fn a_subscriber_that_does_not_read_stops_no_hook() {
    let delta = r#"{"type":"stream_event","parent_tool_use_id":null,"event":{"type":"content_block_delta","delta":{"type":"text_delta","text":"0123456789"}}}"#;
    let script = format!(
        r#"
        read -r initialize; read -r prompt
        yes '{delta}' | head -n 20000
        echo '{{"type":"control_request","request_id":"q","request":{{"subtype":"hook_callback","callback_id":"abide-pre-tool-use","tool_use_id":"toolu_1","input":{{"hook_event_name":"PreToolUse","tool_name":"Read","tool_input":{{}}}}}}}}'
        read -r answer; echo "$answer" >"$OUT"
        yes '{delta}' | head -n 20000
        cat "$FRAMES""#
    );
    let cli = ShellCli::new(&script).with_frames(&frames("hi", &[]));
    let out = cli.out();
    let run = Run::start(cli, SessionOptions::default()).await;
    run.say_first().await;
    let subscriber = run
        .client
        .events(&run.session, EventCursor(0))
        .await
        .unwrap();
    run.wait_for_turns(1).await;
    assert_eq!(
        std::fs::read_to_string(out).unwrap(),
        concat!(
            r#"{"type":"control_response","response":{"subtype":"success","request_id":"q","response":{"#,
            r#""hookSpecificOutput":{"hookEventName":"PreToolUse","permissionDecision":"allow"}}}}"#,
            "\n"
        )
    );
    drop(subscriber);
    run.engine.shutdown().await;
}
