//! Limits, modes and ids that come again, on each CLI.

use abide::failure::FailureClass;
use abide::runner::PermissionMode;
use abide::testing::messages_api::{Block, Reply, Rule};
use serde_json::json;

use super::*;

on_each_cli! {
    /// A12, section 9: with `dontAsk` everything is decided by us all the same.
    dont_ask_changes_nothing;
    /// Section 11: an error result is a failed attempt, whatever its subtype says.
    an_error_result_fails_the_attempt;
    /// Section 11: a turn with more replies than allowed fails in its class, after what it ran.
    too_many_replies_fail_the_attempt;
}

fn with_options(world: &World, options: ClaudeAgentOptions) -> Agent {
    Agent::build_with(world, options, with_tools)
}

fn with_tools(builder: ClaudeAgentRunnerBuilder, desk: &Desk) -> ClaudeAgentRunnerBuilder {
    desk.tools()
        .into_iter()
        .fold(builder, ClaudeAgentRunnerBuilder::custom_tool)
}

async fn dont_ask_changes_nothing(world: &World) {
    let options = world
        .options()
        .with_permission_mode(PermissionMode::DontAsk);
    let mut agent = with_options(world, options);
    let answer = agent.turn(r#"script: call look_up {"order_id":"7"}"#).await;
    assert_eq!(answer, "look_up: order 7 is paid");
    let call = agent
        .turn_to_call(r#"script: call refund {"order_id":"7"}"#)
        .await;
    let segment = agent.resume(&call, succeeded("done")).await;
    assert_eq!(agent.complete(segment), "refund: done");

    let bash = r#"script: call Bash {"command":"echo ran >> marker"}"#;
    let call = agent.turn_to_call(bash).await;
    let rejected = ResumedFate::Final(ToolOutcome::Rejected {
        message: Some("no shell".to_owned()),
    });
    let segment = agent.resume(&call, rejected).await;
    assert_eq!(
        agent.complete(segment),
        "Bash: The user rejected this call: no shell"
    );
    assert_eq!(world.bash_runs(), 0);
    let call = agent.turn_to_call(bash).await;
    let segment = agent.resume(&call, ResumedFate::Permitted).await;
    agent.complete(segment);
    assert_eq!(world.bash_runs(), 1);
}

async fn an_error_result_fails_the_attempt(world: &World) {
    let mut agent = Agent::new(world);
    agent.say("script: fail");
    let failure = agent.segment(Vec::new()).await.end.unwrap_err();
    assert_eq!(failure.class, FailureClass::ApiError);
}

async fn too_many_replies_fail_the_attempt(world: &World) {
    let mut agent = with_options(world, world.options().with_max_turns(1));
    agent.say(r#"script: call look_up {"order_id":"7"}"#);
    let segment = agent.segment(Vec::new()).await;
    assert_eq!(segment.end.unwrap_err().class, FailureClass::MaxTurns);
    assert_eq!(agent.desk.runs(), ["look_up 7"]);
}

/// Section 11: a segment that costs more than it may fails in its class, and the write that its last
/// reply asked for does not run.
async fn a_budget_ends_a_segment(version: &str) {
    let Some(world) = World::real(version).await else {
        return;
    };
    let mut agent = with_options(&world, world.options().with_max_budget_usd(0.000_001));
    agent.say(r#"script: call refund {"order_id":"7"}"#);
    let segment = agent.segment(Vec::new()).await;
    assert_eq!(segment.end.unwrap_err().class, FailureClass::BudgetExceeded);
    assert_eq!(agent.desk.runs(), [] as [&str; 0]);
}

/// L22, L23, L25, M39: an id that comes again, in its turn or a later one, under its tool or
/// another, runs nothing.
async fn an_id_that_comes_again_runs_nothing(version: &str) {
    let call = |tool: &str, order: &str| {
        Reply::blocks([Block::tool_use_as(
            "toolu_same",
            format!("mcp__tools__{tool}"),
            json!({"order_id": order}),
        )])
    };
    let script = ModelScript::commands()
        .rule(Rule::prompt("write", call("refund", "1")))
        .rule(Rule::results("write", 1, Reply::text("written")))
        .rule(Rule::prompt("again", call("refund", "2")))
        .rule(Rule::prompt("read", call("look_up", "3")))
        // The CLI takes the second call and its denial out of what the model reads.
        .rule(Rule::prompt("(no content)", Reply::text("dropped")));
    let Some(world) = World::real_over(version, script).await else {
        return;
    };
    let mut agent = Agent::new(&world);
    let call = agent.turn_to_call("write").await;
    let segment = agent.resume(&call, succeeded("done")).await;
    assert_eq!(agent.complete(segment), "written");
    for prompt in ["again", "read"] {
        agent.say(prompt);
        let segment = agent.segment(Vec::new()).await;
        assert_eq!(segment.events, []);
        assert_eq!(agent.complete(segment), "dropped");
    }
    assert_eq!(agent.desk.runs(), [] as [&str; 0]);
    world.assert_clean();
}

/// G5: limits and ids on CLI 2.1.316.
#[tokio::test]
async fn limits_and_used_ids_hold_on_cli_2_1_316() {
    a_budget_ends_a_segment("2.1.316").await;
    an_id_that_comes_again_runs_nothing("2.1.316").await;
}

/// G5: limits and ids on CLI 2.1.332.
#[tokio::test]
async fn limits_and_used_ids_hold_on_cli_2_1_332() {
    a_budget_ends_a_segment("2.1.332").await;
    an_id_that_comes_again_runs_nothing("2.1.332").await;
}
