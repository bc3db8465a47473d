//! What an agent's definition means while its sessions run: its options, its tools, its processes.
//! On the fake CLI and on virtual time, unless a test says that it needs the real one.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use abide::client::{AgentSessionClient, ResolveInterrupt, StartSession};
use abide::engine::{LocalEngine, LocalEngineOptions};
use abide::event::{EventKind, StepKind};
use abide::flow::{AgentSessionFlow, FlowRegistry, SessionOptions};
use abide::ids::{FlowType, SessionId, Timestamp};
use abide::policy::{Approval, ToolEffect, ToolPolicies, ToolPolicy};
use abide::runner::{
    CUSTOM_TOOL_SERVER_NAME_DEFAULT, ClaudeAgentOptions, ClaudeAgentRunner,
    ClaudeAgentRunnerBuilder, GatedCallWait,
};
use abide::store::{MemoryStateStore, SessionStatus};
use abide::testing::clock::TokioClock;
use abide::testing::fake_cli::Fault;
use abide::testing::launcher::{FakeCliHandle, FakeCliLauncher, Launch};
use abide::tool::{CustomTool, ToolContext, ToolOutput};
use abide::transport::CliExit;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;

use crate::support::{Cli, World, ends_turn, wait_for_event};

#[derive(Deserialize, JsonSchema)]
struct Numbered {
    /// Which one.
    number: u32,
}

/// An engine over the fake CLI whose Flows a test defines.
struct Agents {
    engine: LocalEngine,
    cli: FakeCliHandle,
    /// The directory that exists for the CLI to work in.
    directory: TempDir,
}

impl Agents {
    /// Starts an engine that runs these Flows; each is defined from the options that it starts with.
    async fn start(
        flows: &[(
            &str,
            &dyn Fn(ClaudeAgentOptions) -> ClaudeAgentRunnerBuilder,
        )],
    ) -> Self {
        let directory = TempDir::new().unwrap();
        let launcher = Arc::new(FakeCliLauncher::new());
        let cli = launcher.handle();
        let mut registry = FlowRegistry::new();
        for (flow_type, define) in flows {
            let runner = define(ClaudeAgentOptions::new(directory.path()))
                .launcher(Arc::clone(&launcher) as _)
                .build()
                .unwrap();
            let flow = AgentSessionFlow::new(flow_type, runner, SessionOptions::default()).unwrap();
            registry = registry.register(flow).unwrap();
        }
        let mut options = LocalEngineOptions::default();
        options.clock = Arc::new(TokioClock::starting_at(Timestamp(1_000_000)));
        let store = Arc::new(MemoryStateStore::new());
        Self {
            engine: LocalEngine::start_with(registry, store, options)
                .await
                .unwrap(),
            cli,
            directory,
        }
    }

    /// Starts an engine with one Flow of this one tool, which needs no approval.
    async fn with_tool(tool: CustomTool, effect: ToolEffect) -> Self {
        let policy = ToolPolicy::new(effect).with_approval(Approval::NotRequired);
        let policies = ToolPolicies::new().with(tool.name(), policy);
        let define = |options| {
            ClaudeAgentRunner::builder(options)
                .custom_tool(tool.clone())
                .tool_policies(policies.clone())
        };
        Self::start(&[("Only", &define)]).await
    }

    fn client(&self) -> AgentSessionClient {
        self.engine.client()
    }

    async fn start_session(&self, flow_type: &str, id: &str, message: &str) -> SessionId {
        let session = SessionId::new(id).unwrap();
        let flow_type = FlowType::new(flow_type).unwrap();
        let start = StartSession::new(session.clone(), flow_type).with_initial_message(message);
        assert!(self.client().start_session(start).await.unwrap());
        session
    }

    /// Waits for the end of the session's first turn, and returns what the model said.
    async fn answer(&self, session: &SessionId) -> String {
        wait_for_event(&self.client(), session, |it| ends_turn(&it.kind)).await;
        let messages = self.client().snapshot(session).await.unwrap().messages;
        messages.last().unwrap().text.clone()
    }
}

/// The lines of one type that the process received.
fn received(launch: &Launch, kind: &str) -> usize {
    let lines = launch.lines_received.iter();
    let lines = lines.map(|it| serde_json::from_str::<Value>(it).unwrap());
    lines.filter(|it| it["type"] == kind).count()
}

/// B04, C06, D01, D09, report R10: options are made for each attempt, which the factory is told; an
/// attempt after one that died begins anew, as nothing of the dead one is kept.
#[tokio::test(start_paused = true)]
async fn options_are_made_for_each_attempt() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let define = move |options: ClaudeAgentOptions| {
        let seen = Arc::clone(&seen);
        ClaudeAgentRunner::builder_with(move |context| {
            let (session, turn) = (context.session_id.to_string(), context.turn_id.to_string());
            let mut options = options.clone();
            options.working_directory.push(&session);
            seen.lock().unwrap().push((session, turn, context.attempt));
            Ok(options)
        })
    };
    let agents = Agents::start(&[("Only", &define)]).await;
    agents.cli.fault_next_launch(vec![Fault::DieAfterSent(5)]);
    for id in ["one", "two"] {
        std::fs::create_dir(agents.directory.path().join(id)).unwrap();
        let session = agents.start_session("Only", id, "script: say hello").await;
        assert_eq!(agents.answer(&session).await, "said: hello");
        let snapshot = agents.client().snapshot(&session).await.unwrap();
        assert_eq!(snapshot.messages.len(), 2, "one prompt, one answer");
    }
    let expected = [("one", 1), ("one", 2), ("two", 1)];
    assert_eq!(
        *asked.lock().unwrap(),
        expected.map(|(id, attempt)| (id.to_owned(), "t1".to_owned(), attempt))
    );
    let launches = agents.cli.launches();
    assert_eq!(launches[0].exit, Some(CliExit::Signalled(9)));
    for (launch, (id, _)) in launches.iter().zip(expected) {
        assert_eq!(
            launch.spec.working_directory,
            agents.directory.path().join(id)
        );
        assert!(launch.spec.transcript.is_none());
        let resumes = launch
            .spec
            .arguments
            .iter()
            .filter(|it| it.starts_with("--resume"));
        assert_eq!(resumes.count(), 0);
    }
}

/// E05, E06: what runs inside a segment runs again with it, a read of ours and one of the CLI.
#[tokio::test(start_paused = true)]
async fn a_read_runs_again_with_its_segment() {
    let runs = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&runs);
    let tool = CustomTool::new("look", "", move |it: Numbered, _| {
        seen.lock().unwrap().push(it.number);
        async { Ok(ToolOutput::text("seen")) }
    });
    let policies = ToolPolicies::new()
        .with("look", ToolPolicy::new(ToolEffect::Read))
        .with("Read", ToolPolicy::new(ToolEffect::Read));
    let define = move |options: ClaudeAgentOptions| {
        ClaudeAgentRunner::builder(options.with_tools(["Read"]))
            .custom_tool(tool.clone())
            .tool_policies(policies.clone())
            // A live segment repeats less.
            .gated_call_wait(GatedCallWait::Native)
    };
    let agents = Agents::start(&[("Only", &define)]).await;
    agents.cli.set_readable_file("notes", "a note");
    let script = r#"script: call look {"number":7} && call Read {"file_path":"notes"}"#;
    let session = agents.start_session("Only", "whole", script).await;
    let answer = agents.answer(&session).await;
    assert_eq!(*runs.lock().unwrap(), [7]);
    // Everything but the result is on the output when the next process dies.
    let sent = &agents.cli.launches()[0].lines_sent;
    let result = sent.iter().position(|it| it.contains(r#""type":"result""#));
    let until = result.unwrap().try_into().unwrap();
    agents
        .cli
        .fault_next_launch(vec![Fault::DieAfterSent(until)]);
    let session = agents.start_session("Only", "repeated", script).await;
    assert_eq!(agents.answer(&session).await, answer);
    assert_eq!(*runs.lock().unwrap(), [7, 7, 7]);
    let results = |launch: &Launch| {
        let lines = launch.lines_sent.iter().filter(|it| it.contains("a note"));
        let lines = lines.map(|it| serde_json::from_str::<Value>(it).unwrap());
        lines.filter(|it| it["type"] == "user").count()
    };
    let launches = agents.cli.launches();
    assert_eq!(launches.iter().map(results).collect::<Vec<_>>(), [1, 1, 1]);
}

/// B03: two kinds of agents in one worker keep to themselves.
#[tokio::test(start_paused = true)]
async fn two_flows_of_one_worker_do_not_mix() {
    let tool = |says: &'static str| {
        move |options: ClaudeAgentOptions| {
            let tool = CustomTool::new("who", "says who it is", move |_: Numbered, _| async move {
                Ok(ToolOutput::text(says))
            });
            ClaudeAgentRunner::builder(options).custom_tool(tool.with_effect(ToolEffect::Read))
        }
    };
    let agents = Agents::start(&[("Sales", &tool("sales")), ("Support", &tool("support"))]).await;
    let script = r#"script: call who {"number":1}"#;
    for (flow_type, id, said) in [
        ("Sales", "a", "who: sales"),
        ("Support", "b", "who: support"),
        ("Sales", "c", "who: sales"),
    ] {
        let session = agents.start_session(flow_type, id, script).await;
        assert_eq!(agents.answer(&session).await, said);
    }
}

/// B05: a session may be started without a message; it waits for one, and has no process.
#[tokio::test(start_paused = true)]
async fn a_session_may_start_without_a_message() {
    let agents = Agents::start(&[("Only", &ClaudeAgentRunner::builder)]).await;
    let session = SessionId::new("s").unwrap();
    let start = StartSession::new(session.clone(), FlowType::new("Only").unwrap());
    assert!(agents.client().start_session(start).await.unwrap());
    let snapshot = agents.client().snapshot(&session).await.unwrap();
    assert_eq!(snapshot.status, SessionStatus::Idle);
    assert_eq!(snapshot.messages, []);
    assert_eq!(agents.cli.launches().len(), 0);
    agents
        .client()
        .send_user_message(&session, "script: say hi", None)
        .await
        .unwrap();
    assert_eq!(agents.answer(&session).await, "said: hi");
}

/// A03, D10, I11, I12: a turn with two reads and a write is two segments of one process each, and the
/// second resumes the first one's session without a prompt.
#[tokio::test(start_paused = true)]
async fn each_segment_is_one_process() {
    let mut world = World::fake_in_runtime_time();
    world.start_engine().await;
    let script = r#"script: call lookup {"order_id":"1"} && call lookup {"order_id":"2"} && call refund {"order_id":"3"}"#;
    let session = world.start_session("s", script).await;
    world.approve(&session).await;
    let mut steps = Vec::new();
    world
        .wait_for(&session, |it| {
            if let EventKind::StepStarted { step, .. } = &it.kind {
                steps.push(*step);
            }
            ends_turn(&it.kind)
        })
        .await;
    assert_eq!(
        steps,
        [
            StepKind::RunModel,
            StepKind::AwaitToolApproval,
            StepKind::CallSingleAttemptTool,
            StepKind::ResumeTurn,
            StepKind::RunModel
        ]
    );
    let Cli::Fake { handle, .. } = &world.cli else {
        panic!("the world has the fake CLI");
    };
    let launches = handle.launches();
    let [first, second] = &launches[..] else {
        panic!("{} processes", launches.len());
    };
    let transcript = second.spec.transcript.as_ref().unwrap();
    let resume = format!("--resume={}", transcript.claude_session);
    assert!(!first.spec.arguments.contains(&resume));
    assert!(second.spec.arguments.contains(&resume));
    assert_eq!((received(first, "user"), received(second, "user")), (1, 0));
    world.check_cli().await;
}

/// E18, M29: a result that says that it is an error is recorded as failed, in one start, and the
/// model reads its text.
#[tokio::test(start_paused = true)]
async fn an_error_result_of_a_step_is_a_failure() {
    let starts = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&starts);
    let tool = CustomTool::new("order", "", move |it: Numbered, context: ToolContext| {
        let execution = context.deferred_execution.unwrap();
        seen.lock().unwrap().push((it.number, execution.attempt));
        async { Ok(ToolOutput::error("sold out")) }
    });
    let agents = Agents::with_tool(tool, ToolEffect::NonIdempotentWrite).await;
    let session = agents
        .start_session("Only", "s", r#"script: call order {"number":7}"#)
        .await;
    assert_eq!(agents.answer(&session).await, "order: sold out");
    assert_eq!(*starts.lock().unwrap(), [(7, 1)]);
}

/// Report R15: the connection for tools lasts as long as the turn: forty calls, one after the other,
/// take ninety seconds.
#[tokio::test(start_paused = true)]
async fn forty_calls_in_a_row_are_all_served() {
    // Without the annotation of a read the CLI makes one call at a time.
    let tool = CustomTool::new("wait", "", |it: Numbered, _| async move {
        // sleeps because a slow tool is what the test is about; its time is virtual
        tokio::time::sleep(Duration::from_millis(2_250)).await;
        Ok(ToolOutput::text(it.number.to_string()))
    });
    let agents = Agents::with_tool(tool, ToolEffect::Read).await;
    let start = tokio::time::Instant::now();
    let calls: Vec<String> = (1..=40)
        .map(|it| format!(r#"call wait {{"number":{it}}}"#))
        .collect();
    let script = format!("script: {}", calls.join(" && "));
    let session = agents.start_session("Only", "s", &script).await;
    let expected: Vec<String> = (1..=40).map(|it| format!("wait: {it}")).collect();
    assert_eq!(agents.answer(&session).await, expected.join("\n"));
    assert!(
        start.elapsed() >= Duration::from_secs(90),
        "{:?}",
        start.elapsed()
    );
}

/// Reports R30 and R31: a tool that says nothing for six minutes is healthy; only a limit of the
/// application ends it.
#[tokio::test(start_paused = true)]
async fn six_silent_minutes_end_nothing() {
    let tool = CustomTool::new("wait", "", |_: Numbered, _| async {
        // sleeps because a silent tool is what the test is about; its time is virtual
        tokio::time::sleep(Duration::from_secs(360)).await;
        Ok(ToolOutput::text("here"))
    });
    for effect in [ToolEffect::Read, ToolEffect::NonIdempotentWrite] {
        let agents = Agents::with_tool(tool.clone(), effect).await;
        let session = agents
            .start_session("Only", "s", r#"script: call wait {"number":1}"#)
            .await;
        assert_eq!(agents.answer(&session).await, "wait: here");
        assert_eq!(
            agents
                .client()
                .snapshot(&session)
                .await
                .unwrap()
                .last_failure,
            None
        );
    }
}

/// Report R17: sixteen calls of a reply run at once and may end in any order.
#[tokio::test(start_paused = true)]
async fn parallel_calls_may_end_in_any_order() {
    let ended = Arc::new(watch::Sender::new(16));
    let tool = CustomTool::new("last_first", "", move |it: Numbered, _| {
        let ended = Arc::clone(&ended);
        async move {
            let mut next = ended.subscribe();
            next.wait_for(|next| *next == it.number).await.unwrap();
            ended.send_modify(|next| *next -= 1);
            Ok(ToolOutput::text(it.number.to_string()))
        }
    });
    let tool = tool.with_effect(ToolEffect::Read);
    let agents = Agents::with_tool(tool, ToolEffect::Read).await;
    let calls: Vec<String> = (1..=16)
        .map(|it| format!(r#"call last_first {{"number":{it}}}"#))
        .collect();
    let script = format!("script: {}", calls.join(" && "));
    let session = agents.start_session("Only", "s", &script).await;
    let expected: Vec<String> = (1..=16).map(|it| format!("last_first: {it}")).collect();
    assert_eq!(agents.answer(&session).await, expected.join("\n"));
}

/// R75: with two open interrupts an answer reaches the call that it is for, whatever the order, and
/// an answer to nothing is refused.
#[tokio::test(start_paused = true)]
async fn an_answer_reaches_its_own_session() {
    let mut world = World::fake_in_runtime_time();
    world.start_engine().await;
    let first = world
        .start_session("first", r#"script: call refund {"order_id":"1"}"#)
        .await;
    let second = world
        .start_session("second", r#"script: call refund {"order_id":"2"}"#)
        .await;
    let open = world.wait_for_interrupt(&first).await;
    world.wait_for_interrupt(&second).await;
    let answer = ResolveInterrupt::approve(open.interrupt_id).for_digest(open.digest);
    // The ids are ours and alike; the digest tells the calls apart.
    assert!(
        world
            .client()
            .resolve_interrupt(&second, answer)
            .await
            .is_err()
    );
    assert_eq!(world.effects.lines(), [] as [String; 0]);
    world.approve(&second).await;
    world.wait_for_turns(&second, 1).await;
    world.reject(&first, "no").await;
    world.wait_for_turns(&first, 1).await;
    assert_eq!(world.effects.lines().len(), 1);
    assert_eq!(
        world.last_answer(&second).await,
        "refund: order 2 is refunded"
    );
    world.check_cli().await;
}

/// A20, B01, C08, D03: the real CLI offers each custom tool under the server's name, with the text
/// and the schema of its definition.
#[tokio::test]
async fn the_model_is_offered_the_tools_of_the_definition() {
    let Some(mut world) = World::real("2.1.316").await else {
        return;
    };
    let session = world.start_session("s", "script: say hello").await;
    world.wait_for_turns(&session, 1).await;
    let Cli::Real { api, .. } = &world.cli else {
        panic!("the world has the real CLI");
    };
    let body = api.main_requests().remove(0).body;
    let tools: Vec<&Value> = body["tools"].as_array().unwrap().iter().collect();
    let names: Vec<&str> = tools
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    let custom = [
        "break",
        "hang",
        "lookup",
        "note",
        "refund",
        "refuse",
        "retry",
        "set_status",
    ]
    .map(|it| format!("mcp__{CUSTOM_TOOL_SERVER_NAME_DEFAULT}__{it}"));
    assert_eq!(names[..2], ["Bash", "Read"]);
    assert_eq!(names[2..], custom);
    assert_eq!(custom[2], "mcp__tools__lookup");
    let lookup = tools.iter().find(|it| it["name"] == custom[2]).unwrap();
    assert_eq!(lookup["description"], "does what it is called");
    let schema = &lookup["input_schema"];
    assert_eq!(schema["type"], "object");
    assert_eq!(
        schema["properties"],
        json!({"order_id": {"type": "string"}})
    );
    assert_eq!(schema["required"], json!(["order_id"]));
    world.check_cli().await;
}

/// Sixteen sessions at once on the real CLI: each reads, writes and answers for itself.
#[tokio::test]
async fn sixteen_sessions_run_at_once() {
    let Some(mut world) = World::real("2.1.316").await else {
        return;
    };
    let mut sessions = Vec::new();
    for order in 0..16 {
        let script = format!(r#"script: call refund {{"order_id":"{order}"}}"#);
        sessions.push(world.start_session(&format!("s{order}"), &script).await);
    }
    for session in &sessions {
        world.approve(session).await;
    }
    for (order, session) in sessions.iter().enumerate() {
        world.wait_for_turns(session, 1).await;
        let expected = format!("refund: order {order} is refunded");
        assert_eq!(world.last_answer(session).await, expected);
    }
    assert_eq!(world.effects.lines().len(), 16);
    world.check_cli().await;
}
