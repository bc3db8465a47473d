//! Replies whose stream breaks (spec/cli-protocol.md 10).

use abide::testing::fake_cli::Fault;
use abide::testing::messages_api::{Block, HoldPoint, ModelScript, Reply, Rule, StreamFault};
use serde_json::json;

use super::REFUND;
use super::host::Cli;

const TWO_REFUNDS: &str = r#"script: call refund {"n":1} && call refund {"n":2}"#;

/// The first reply breaks behind its first call.
pub(super) fn broken_after_a_call() -> ModelScript {
    let refund = |n: u64| Block::tool_use("mcp__tools__refund", json!({"n": n}));
    let reply = Reply::blocks([refund(1), refund(2)])
        .hold(HoldPoint::AfterBlock(0), "cut")
        .fault(StreamFault::CutAfterBlock(0));
    ModelScript::commands().rule(Rule::prompt(TWO_REFUNDS, reply).times(1))
}

pub(super) async fn a_complete_call_of_a_broken_stream_stays(cli: &Cli) {
    cli.fault_next_launch(Fault::BreakStream {
        at_model_call: 1,
        after_blocks: 1,
    });
    let mut host = cli.start().await;
    host.prompt(TWO_REFUNDS);
    host.hook("PreToolUse").await;
    cli.open_gate("cut");
    host.until("what the CLI says about it", |it| {
        it["is_api_error_message"] == true
    })
    .await;
    let broken = [
        "init",
        "message_start",
        "tool_use",
        "PreToolUse",
        "message_stop from 1",
        "text",
    ];
    assert_eq!(host.names(), broken);
    host.answer("allow");
    let batch = host.hook("PostToolBatch").await;
    assert_eq!(batch["tool_calls"].as_array().expect("calls").len(), 1);
    assert_eq!((cli.model_requests(), host.tool_calls()), (1, 1));
    // The scripted model misses the other call, and makes it.
    let result = host.result("allow").await;
    assert_eq!(result["result"], "refund: refund ran\nrefund: refund ran");
    assert_eq!((cli.model_requests(), host.tool_calls()), (3, 2));
    // What the CLI says about the failure is a branch of the chain that ends there.
    let chain = host.chain();
    let error = chain
        .iter()
        .find(|it| it["isApiErrorMessage"] == true)
        .expect("the error");
    let call = chain
        .iter()
        .find(|it| it["message"]["content"][0]["type"] == "tool_use");
    let call = call.expect("the call");
    let told = chain
        .iter()
        .find(|it| it["message"]["content"][0]["type"] == "tool_result");
    assert_eq!(error["parentUuid"], call["uuid"]);
    assert_eq!(told.expect("its result")["parentUuid"], call["uuid"]);
    assert!(chain.iter().all(|it| it["parentUuid"] != error["uuid"]));
}

/// The first reply to each of two prompts breaks: behind a text, and before anything.
pub(super) fn broken_before_a_call() -> ModelScript {
    let text = Reply::text("said: one")
        .hold(HoldPoint::AfterBlock(0), "cut 1")
        .fault(StreamFault::CutAfterBlock(0));
    let refund = Block::tool_use("mcp__tools__refund", json!({"n": 1}));
    let nothing = Reply::blocks([refund])
        .hold(HoldPoint::InBlock(0), "cut 0")
        .fault(StreamFault::CutInBlock(0));
    ModelScript::commands()
        .rule(Rule::prompt("script: say one", text).times(1))
        .rule(Rule::prompt(REFUND, nothing).times(1))
}

pub(super) async fn a_broken_stream_without_a_call_is_asked_again(cli: &Cli) {
    let cut_off = [
        "init",
        "message_start",
        "text",
        "message_stop from 1",
        "text",
    ];
    let retried = ["init", "message_start", "message_stop from 0", "api_retry"];
    for (prompt, after_blocks, begun) in
        [("script: say one", 1, &cut_off[..]), (REFUND, 0, &retried)]
    {
        let before = cli.model_requests();
        cli.fault_next_launch(Fault::BreakStream {
            at_model_call: 1,
            after_blocks,
        });
        let mut host = cli.start().await;
        host.prompt(prompt);
        // What was not read before the cut is lost with it.
        let event = ["content_block_delta", "content_block_stop"][after_blocks];
        host.until(event, |it| it["event"]["type"] == event).await;
        cli.open_gate(&format!("cut {after_blocks}"));
        let result = host.result("allow").await;
        assert_eq!(result["terminal_reason"], "completed", "{prompt}");
        assert_eq!(host.names()[..begun.len()], *begun, "{prompt}");
        assert_eq!(host.tool_calls(), usize::from(prompt == REFUND));
        let calls = 1 + u64::from(prompt == REFUND);
        assert_eq!(cli.model_requests() - before, 1 + calls, "{prompt}");
        let synthetic = host
            .of_type("user")
            .iter()
            .any(|it| it["isSynthetic"] == true);
        assert_eq!(synthetic, after_blocks == 1);
    }
}
