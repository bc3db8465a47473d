//! What bounds a segment and how segments add up, on the real CLI.

use abide::failure::FailureClass;
use abide::testing::messages_api::{Block, Reply, Rule};
use abide::turn::Usage;
use serde_json::json;

use super::*;

/// I29: a segment ends at its number of replies, and at its budget, each in a class of its own.
#[tokio::test]
async fn a_segment_ends_at_its_bounds() {
    let Some(world) = World::real("2.1.316").await else {
        return;
    };
    for (options, class) in [
        (world.options().with_max_turns(1), FailureClass::MaxTurns),
        (
            world.options().with_max_budget_usd(0.000_000_1),
            FailureClass::BudgetExceeded,
        ),
    ] {
        let mut agent = Agent::build_with(&world, options, |builder, desk| {
            desk.tools()
                .into_iter()
                .fold(builder, ClaudeAgentRunnerBuilder::custom_tool)
        });
        agent.say(r#"script: call look_up {"order_id":"7"}"#);
        let failure = agent.segment(Vec::new()).await.end.unwrap_err();
        assert_eq!(failure.class, class, "{}", failure.detail);
    }
    world.assert_clean();
}

/// I24, report R83: the usage of a turn of four segments is what the API counted, no more.
#[tokio::test]
async fn the_usage_of_four_segments_adds_up() {
    let write = |order: &str| {
        let call = Block::tool_use("mcp__tools__refund", json!({"order_id": order}));
        Reply::blocks([call])
    };
    let results = |count| Rule::results("three writes", count, write(&count.to_string()));
    let script = ModelScript::commands()
        .rule(Rule::prompt("three writes", write("0")))
        .rule(results(1))
        .rule(results(2))
        .rule(Rule::results("three writes", 3, Reply::text("done")));
    let Some(world) = World::real_over("2.1.316", script).await else {
        return;
    };
    let mut agent = Agent::new(&world);
    agent.say("three writes");
    let mut segment = agent.segment(Vec::new()).await;
    let mut total = Usage::default();
    let mut segments = 1;
    while let Ok(RunModelOutcome::ToolCallsRequested { usage, .. }) = &segment.end {
        total = total.plus(*usage);
        let call = agent.requested(segment);
        segment = agent.resume(&call, succeeded("done")).await;
        segments += 1;
    }
    let Ok(RunModelOutcome::TurnCompleted { usage, .. }) = &segment.end else {
        panic!("{:?}", segment.end);
    };
    total = total.plus(*usage);
    assert_eq!(segments, 4);
    // Each reply of the scripted API counts 11 new, 3 cached now and 2 cached earlier, and 7 out.
    let counted = (
        total.input_tokens,
        total.cached_input_tokens,
        total.output_tokens,
        total.model_calls,
    );
    assert_eq!(counted, (4 * 16, 4 * 2, 4 * 7, 4));
    // The same price for the same reply, whichever segment it was in.
    assert_eq!(total.cost_nano_usd, 4 * usage.cost_nano_usd);
    world.assert_clean();
}
