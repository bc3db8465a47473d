//! The application's hooks, on each CLI: what they leave is what is recorded and what runs.

use std::time::Duration;

use abide::runner::{PreToolUse, PreToolUseDecision, PreToolUseHook};
use async_trait::async_trait;
use serde_json::{Value, json};

use super::*;

/// What the hooks were asked, one line each.
#[derive(Debug, Clone, Default)]
struct Asked(Arc<Mutex<Vec<String>>>);

impl Asked {
    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

#[derive(Debug, Clone)]
enum Act {
    Pass,
    /// Sets one field of the input.
    Set(&'static str, Value),
    Replace(Value),
    Deny,
    Fail,
    Panic,
    Hang,
}

#[derive(Debug)]
struct Hook {
    name: &'static str,
    act: Act,
    asked: Asked,
}

#[async_trait]
impl PreToolUseHook for Hook {
    async fn pre_tool_use(
        &self,
        mut call: PreToolUse,
    ) -> Result<PreToolUseDecision, Box<dyn std::error::Error + Send + Sync>> {
        let line = format!("{} {} {}", self.name, call.tool_name, call.input);
        self.asked.0.lock().unwrap().push(line);
        match &self.act {
            Act::Pass => Ok(PreToolUseDecision::unchanged()),
            Act::Set(field, value) => {
                call.input[*field] = value.clone();
                Ok(PreToolUseDecision::rewritten(call.input))
            }
            Act::Replace(input) => Ok(PreToolUseDecision::rewritten(input.clone())),
            Act::Deny => Ok(PreToolUseDecision::denied("not on Sundays")),
            Act::Fail => Err("password is hunter2".into()),
            Act::Panic => {
                assert!(call.input.is_null(), "planned");
                Ok(PreToolUseDecision::unchanged())
            }
            Act::Hang => std::future::pending().await,
        }
    }
}

/// An agent with these hooks, in this order.
fn hooked(world: &World, acts: &[Act]) -> (Agent, Asked) {
    let asked = Asked::default();
    let agent = Agent::build(world, |builder, desk| {
        let builder = desk
            .tools()
            .into_iter()
            .fold(builder, ClaudeAgentRunnerBuilder::custom_tool)
            .pre_tool_use_hook_deadline(Duration::from_millis(100));
        ["first", "second"]
            .into_iter()
            .zip(acts)
            .fold(builder, |builder, (name, act)| {
                builder.pre_tool_use_hook(Hook {
                    name,
                    act: act.clone(),
                    asked: asked.clone(),
                })
            })
    });
    (agent, asked)
}

on_each_cli! {
    /// D06, G4, L28: hooks are asked in their order, each with what the one before left, and an
    /// inline call runs with what the last one left.
    a_read_runs_with_what_the_last_hook_left;
    /// G4, M32, L29: a rewritten write is recorded, approved and run with the final input.
    a_rewritten_write_is_recorded_with_its_final_input;
    /// D07, L19: a hook that would deny now does not hide a recorded result.
    a_recorded_result_is_not_hidden_by_a_hook;
    /// G4, A09: an approved command is the rewritten one.
    a_rewritten_command_is_what_is_approved_and_run;
    /// G4: a tool of the CLI that needs no approval runs with what the hook left, too.
    a_read_of_the_cli_runs_with_what_the_hook_left;
    /// M32: a rewritten input that fails its schema never reaches the handler and is recorded.
    a_rewritten_input_that_does_not_fit_never_runs;
    /// G5: a hook that fails in any way denies the call, and no word of its error is told.
    a_hook_that_fails_denies_the_call;
}

async fn a_read_runs_with_what_the_last_hook_left(world: &World) {
    let set = |order: &str| Act::Set("order_id", json!(order));
    let (mut agent, asked) = hooked(world, &[set("8"), Act::Pass]);
    let answer = agent.turn(r#"script: call look_up {"order_id":"7"}"#).await;
    assert_eq!(answer, "look_up: order 8 is paid");
    assert_eq!(agent.desk.runs(), ["look_up 8"]);
    assert_eq!(
        asked.lines(),
        [
            r#"first look_up {"order_id":"7"}"#,
            r#"second look_up {"order_id":"8"}"#,
        ]
    );

    let (mut agent, _) = hooked(world, &[set("8"), set("9")]);
    let answer = agent
        .turn(r#"script: call look_up {"order_id":"1"} && look_up {"order_id":"2"}"#)
        .await;
    assert_eq!(answer, "look_up: order 9 is paid\nlook_up: order 9 is paid");
}

async fn a_rewritten_write_is_recorded_with_its_final_input(world: &World) {
    let (mut agent, asked) = hooked(world, &[Act::Set("order_id", json!("5"))]);
    let call = agent
        .turn_to_call(r#"script: call refund {"order_id":"10"}"#)
        .await;
    assert_eq!(call.arguments, r#"{"order_id":"5"}"#);
    assert!(matches!(
        agent.step(&call).await,
        ToolCallEnd::Succeeded { .. }
    ));
    assert_eq!(agent.desk.runs(), ["refund 5"]);
    let segment = agent.resume(&call, succeeded("done")).await;
    assert_eq!(agent.complete(segment), "refund: done");
    assert_eq!(asked.lines(), [r#"first refund {"order_id":"10"}"#]);
}

async fn a_recorded_result_is_not_hidden_by_a_hook(world: &World) {
    let (mut agent, _) = hooked(world, &[Act::Pass]);
    let call = agent
        .turn_to_call(r#"script: call refund {"order_id":"7"}"#)
        .await;
    let messages = std::mem::take(&mut agent.messages);
    let (mut agent, asked) = hooked(world, &[Act::Deny]);
    agent.messages = messages;
    let segment = agent.resume(&call, succeeded("done")).await;
    assert_eq!(agent.complete(segment), "refund: done");
    assert_eq!(asked.lines(), [] as [&str; 0]);
}

async fn a_rewritten_command_is_what_is_approved_and_run(world: &World) {
    let act = Act::Set("command", json!("echo rewritten >> marker"));
    let (mut agent, asked) = hooked(world, &[act]);
    let call = agent
        .turn_to_call(r#"script: call Bash {"command":"echo model >> marker"}"#)
        .await;
    assert_eq!(call.arguments, r#"{"command":"echo rewritten >> marker"}"#);
    let segment = agent.resume(&call, ResumedFate::Permitted).await;
    agent.complete(segment);
    assert_eq!(asked.lines().len(), 1);
    match world.api() {
        Some(_) => {
            let marker = std::fs::read_to_string(world.path("marker")).unwrap();
            assert_eq!(marker, "rewritten\n");
        }
        None => {
            let effects = world.handle().effects();
            let subjects: Vec<&str> = effects.iter().map(|it| it.subject.as_str()).collect();
            assert_eq!(subjects, ["echo rewritten >> marker"]);
        }
    }
}

async fn a_read_of_the_cli_runs_with_what_the_hook_left(world: &World) {
    let (asked, left) = (world.path("asked.txt"), world.path("left.txt"));
    std::fs::write(&asked, "what the model asked for").unwrap();
    std::fs::write(&left, "what the hook left").unwrap();
    let (mut agent, _) = hooked(world, &[Act::Set("file_path", json!(left))]);
    let answer = agent
        .turn(&format!(
            "script: call Read {}",
            json!({"file_path": asked})
        ))
        .await;
    // The fake CLI reads no files.
    if world.api().is_some() {
        assert_eq!(answer, "Read: 1\twhat the hook left");
    }
}

async fn a_rewritten_input_that_does_not_fit_never_runs(world: &World) {
    let bad = || Act::Replace(json!({"order_id": 7}));
    let expected = "invalid arguments: invalid type: integer `7`, expected a string";
    let (mut agent, _) = hooked(world, &[bad()]);
    let answer = agent.turn(r#"script: call look_up {"order_id":"7"}"#).await;
    assert_eq!(answer, format!("look_up: {expected}"));

    let call = agent
        .turn_to_call(r#"script: call refund {"order_id":"7"}"#)
        .await;
    assert_eq!(call.arguments, r#"{"order_id":7}"#);
    assert_eq!(
        agent.step(&call).await,
        ToolCallEnd::NotRun {
            error: expected.to_owned()
        }
    );
    assert_eq!(agent.desk.runs(), [] as [&str; 0]);

    // A tool of the CLI: the CLI itself refuses the input, and that is the record.
    if world.api().is_some() {
        let (mut agent, _) = hooked(world, &[Act::Replace(json!({"command": 7}))]);
        let call = agent.turn_to_call(BASH).await;
        let segment = agent.resume(&call, ResumedFate::Permitted).await;
        let [
            SegmentEvent::CallStarting { .. },
            SegmentEvent::CallFinished {
                outcome: ToolOutcome::Failed { error },
                ..
            },
        ] = &segment.events[..]
        else {
            panic!("{:?} {:?}", segment.events, segment.end);
        };
        let error = error.clone();
        assert_eq!(agent.complete(segment), format!("Bash: {error}"));
        assert_eq!(world.bash_runs(), 0);
    }
}

const BASH: &str = r#"script: call Bash {"command":"echo ran >> marker"}"#;

async fn a_hook_that_fails_denies_the_call(world: &World) {
    for (acts, told) in [
        (vec![Act::Deny, Act::Pass], "not on Sundays"),
        (
            vec![Act::Fail, Act::Pass],
            "look_up did not run: a hook of the application failed",
        ),
        (
            vec![Act::Panic, Act::Pass],
            "look_up did not run: a hook of the application failed",
        ),
        (
            vec![Act::Hang, Act::Pass],
            "look_up did not run: a hook of the application failed",
        ),
        (
            vec![Act::Replace(json!("no object")), Act::Pass],
            "look_up did not run: a hook of the application failed",
        ),
    ] {
        let (mut agent, asked) = hooked(world, &acts);
        let answer = agent.turn(r#"script: call look_up {"order_id":"7"}"#).await;
        assert_eq!(
            answer,
            format!("look_up: PreToolUse:mcp__tools__look_up hook error: {told}")
        );
        assert_eq!(asked.lines().len(), 1, "{acts:?}");
        assert_eq!(agent.desk.runs(), [] as [&str; 0], "{acts:?}");
    }
}
