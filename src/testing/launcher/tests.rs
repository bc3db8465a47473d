//! The fake behind the port, spoken to as a driver does.

use serde_json::{Value, json};

use super::*;
use crate::ids::ClaudeSessionId;
use crate::record::TranscriptEntry;
use crate::transport::ResumedTranscript;

fn spec(more: &[&str]) -> LaunchSpec {
    let arguments = [
        "--output-format=stream-json",
        "--input-format=stream-json",
        "--verbose",
        "--permission-prompt-tool=stdio",
        "--include-partial-messages",
        "--session-mirror",
        "--await-initialize",
    ];
    let arguments = arguments
        .iter()
        .chain(more)
        .map(|it| (*it).to_owned())
        .collect();
    LaunchSpec::new(arguments, BTreeMap::default(), "/work".into())
}

/// Starts a process and sends initialize and a prompt.
async fn start(launcher: &FakeCliLauncher, spec: LaunchSpec, prompt: &str) -> Box<dyn CliProcess> {
    let mut process = launcher.launch(spec).await.unwrap();
    let hooks = json!({"PreToolUse": [{"hookCallbackIds": ["hook_0"], "timeout": 60}]});
    let initialize = json!({"type": "control_request", "request_id": "h1", "request": {"subtype": "initialize", "hooks": hooks}});
    process.send(initialize.to_string()).unwrap();
    let prompt = json!({"type": "user", "session_id": "", "parent_tool_use_id": null, "message": {"role": "user", "content": prompt}});
    process.send(prompt.to_string()).unwrap();
    process
}

/// Receives up to the first frame that fits.
async fn receive_until(process: &mut dyn CliProcess, fits: impl Fn(&Value) -> bool) -> Vec<Value> {
    let mut frames = Vec::new();
    while let Some(line) = process.receive().await.unwrap() {
        let frame: Value = serde_json::from_slice(&line).unwrap();
        let is_last = fits(&frame);
        frames.push(frame);
        if is_last {
            break;
        }
    }
    frames
}

fn is_result(frame: &Value) -> bool {
    frame["type"] == "result"
}

fn is_hook(frame: &Value) -> bool {
    frame["request"]["subtype"] == "hook_callback"
}

fn allow(frame: &Value) -> String {
    let output = json!({"hookEventName": "PreToolUse", "permissionDecision": "allow"});
    json!({"type": "control_response", "response": {
        "subtype": "success", "request_id": frame["request_id"], "response": {"hookSpecificOutput": output},
    }})
    .to_string()
}

#[tokio::test]
async fn a_turn_runs_and_the_process_exits_when_its_input_closes() {
    let launcher = FakeCliLauncher::new();
    let mut process = start(&launcher, spec(&[]), "script: say hi").await;
    let frames = receive_until(&mut *process, is_result).await;
    assert_eq!(frames.last().unwrap()["result"], "said: hi");
    process.close_input();
    assert_eq!(
        process.shutdown(Duration::from_secs(1)).await,
        CliExit::Exited(0)
    );
    assert!(matches!(
        process.send("{}".to_owned()),
        Err(CliError::InputClosed)
    ));
    let handle = launcher.handle();
    assert_eq!(handle.violations(), [""; 0]);
    assert_eq!(handle.launches()[0].exit, Some(CliExit::Exited(0)));
    assert_eq!(handle.launches()[0].lines_received.len(), 2);
}

/// A transcript given with the launch is what the process resumes from; ids never repeat.
#[tokio::test]
async fn a_second_process_resumes_what_the_first_mirrored() {
    let launcher = FakeCliLauncher::new();
    let mut first = start(&launcher, spec(&[]), "script: say hi").await;
    let frames = receive_until(&mut *first, is_result).await;
    let entries: Vec<TranscriptEntry> = frames
        .iter()
        .filter(|it| it["type"] == "transcript_mirror")
        .flat_map(|it| it["entries"].as_array().unwrap())
        .map(|it| TranscriptEntry::from_text(it.to_string()).unwrap())
        .collect();
    let session = frames.last().unwrap()["session_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut resumed = spec(&[&format!("--resume={session}")]);
    resumed.transcript = Some(ResumedTranscript::new(
        ClaudeSessionId::new(session).unwrap(),
        entries,
    ));
    let mut second = start(&launcher, resumed, "script: recall").await;
    let again = receive_until(&mut *second, is_result).await;
    assert_eq!(again.last().unwrap()["result"], "recalled: script: say hi");
    let uuids = |frames: &[Value]| -> BTreeSet<String> {
        frames
            .iter()
            .filter_map(|it| it["uuid"].as_str().map(str::to_owned))
            .collect()
    };
    assert_eq!(uuids(&frames).intersection(&uuids(&again)).count(), 0);
}

/// SIGKILL: what was not received is gone, and the end is seen at once.
#[tokio::test]
async fn a_killed_process_says_nothing_more() {
    let launcher = FakeCliLauncher::new();
    let handle = launcher.handle();
    let mut process = start(&launcher, spec(&[]), r#"script: call Bash {"command":"x"}"#).await;
    receive_until(&mut *process, is_hook).await;
    assert_eq!(handle.running(), 1);
    handle.kill_running();
    assert_eq!(process.receive().await.unwrap(), None);
    assert_eq!(
        process.shutdown(Duration::ZERO).await,
        CliExit::Signalled(9)
    );
    assert_eq!((handle.running(), handle.effects()), (0, Vec::new()));
}

/// 17i: SIGTERM ends it, whatever it waits for; one that is stuck gets SIGKILL.
#[tokio::test]
async fn a_dropped_process_is_ended() {
    let stuck = vec![Fault::StallAfterSent(3)];
    let exits = [
        (Vec::new(), CliExit::Exited(143)),
        (stuck, CliExit::Exited(143)),
        (vec![Fault::DieAfterSent(3)], CliExit::Signalled(9)),
    ];
    for (faults, exit) in exits {
        let launcher = FakeCliLauncher::new();
        let handle = launcher.handle();
        handle.fault_next_launch(faults);
        let prompt = r#"script: call Bash {"command":"x"}"#;
        let mut process = start(&launcher, spec(&[]), prompt).await;
        for _ in 0..3 {
            process.receive().await.unwrap();
        }
        drop(process);
        assert_eq!(handle.launches()[0].exit, Some(exit));
        assert_eq!((handle.running(), handle.effects()), (0, Vec::new()));
        assert_eq!(handle.violations(), [""; 0]);
    }
}

/// The requests to the model are counted over all processes, retries among them.
#[tokio::test]
async fn model_requests_are_counted() {
    let launcher = FakeCliLauncher::new();
    let handle = launcher.handle();
    handle.fault_next_launch(vec![Fault::ApiError {
        status: 529,
        at_model_call: 1,
        recovers: true,
    }]);
    for expected in [2, 3] {
        let mut process = start(&launcher, spec(&[]), "script: say hi").await;
        receive_until(&mut *process, is_result).await;
        assert_eq!(handle.model_requests(), expected);
    }
}

/// A process that does not end in its grace time gets SIGTERM.
#[tokio::test(start_paused = true)]
async fn shutdown_ends_a_process_that_waits() {
    let launcher = FakeCliLauncher::new();
    let mut process = start(&launcher, spec(&[]), r#"script: call Bash {"command":"x"}"#).await;
    assert_eq!(
        process.shutdown(Duration::from_secs(5)).await,
        CliExit::Exited(143)
    );
    assert_eq!(
        process.shutdown(Duration::from_secs(5)).await,
        CliExit::Exited(143)
    );
}

/// A gate that a test opens wakes the waiting driver.
#[tokio::test]
async fn a_gate_lets_the_answer_go_on() {
    let launcher = FakeCliLauncher::new();
    let handle = launcher.handle();
    let mut process = start(
        &launcher,
        spec(&[]),
        r#"script: call Bash {"command":"run gate:b"}"#,
    )
    .await;
    let hook = receive_until(&mut *process, is_hook).await;
    process.send(allow(hook.last().unwrap())).unwrap();
    let driver = async { receive_until(&mut *process, is_result).await };
    let test = async {
        // The driver took everything up to the mirror of the call.
        handle
            .wait_until(|launches| {
                launches[0]
                    .lines_sent
                    .last()
                    .is_some_and(|it| it.contains("transcript_mirror"))
            })
            .await;
        assert_eq!(handle.effects().len(), 1);
        handle.open_gate("b");
    };
    let (frames, ()) = tokio::join!(driver, test);
    assert_eq!(
        frames.last().unwrap()["result"],
        "Bash: (Bash completed with no output)"
    );
}

/// A hook without an answer is given up in its own time, which needs no real time here.
#[tokio::test(start_paused = true)]
async fn a_hook_times_out_on_the_drivers_clock() {
    let launcher = FakeCliLauncher::new();
    let mut process = start(&launcher, spec(&[]), r#"script: call Bash {"command":"x"}"#).await;
    let start = Instant::now();
    let frames = receive_until(&mut *process, is_result).await;
    assert!(
        frames
            .iter()
            .any(|it| it["type"] == "control_cancel_request")
    );
    assert_eq!(start.elapsed().as_secs(), 60);
}

/// Faults are given to launches one after the other.
#[tokio::test]
async fn each_launch_takes_its_own_faults() {
    let launcher = FakeCliLauncher::new();
    let handle = launcher.handle();
    handle.fault_next_launch(vec![Fault::DieAfterSent(3)]);
    handle.fault_next_launch(Vec::new());
    for expected in [3, 0] {
        let mut process = start(&launcher, spec(&[]), "script: say hi").await;
        process.close_input();
        while process.receive().await.unwrap().is_some() {}
        let launch = handle.launches().pop().unwrap();
        let died = if launch.exit == Some(CliExit::Signalled(9)) {
            launch.lines_sent.len()
        } else {
            0
        };
        assert_eq!(died, expected);
    }
}
