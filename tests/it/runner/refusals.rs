//! What the CLI refuses by itself, without asking anybody, measured on each real one (G5).

use abide::testing::messages_api::{Block, Reply, Rule};
use serde_json::{Value, json};

use super::*;

/// Calls that the CLI never asks about: the tool, its input, and how the result begins.
fn refused() -> Vec<(&'static str, Value, &'static str)> {
    let unknown = "<tool_use_error>Error: No such tool available: ";
    let invalid = "<tool_use_error>InputValidationError: ";
    vec![
        ("NoSuchTool", json!({}), unknown),
        ("mcp__tools__nosuch", json!({}), unknown),
        ("mcp__nosuch__tool", json!({}), unknown),
        // Tools of Claude Code that are not among the options.
        ("Write", json!({"file_path": "/x", "content": "y"}), unknown),
        (
            "WebFetch",
            json!({"url": "http://127.0.0.1/", "prompt": "p"}),
            unknown,
        ),
        ("ExitPlanMode", json!({}), unknown),
        ("StructuredOutput", json!({"x": 1}), unknown),
        // Inputs that do not fit.
        ("Bash", json!({"command": 7}), invalid),
        ("Bash", json!({}), invalid),
        ("Bash", json!({"command": "ls", "nosuch": true}), invalid),
        ("Read", json!({"file_path": ["/x"]}), invalid),
        ("Agent", json!({"description": "d"}), invalid),
    ]
}

const PROMPT: &str = "try it";

/// G5: one turn for each row of the table; every result is the CLI's own, and the audit knows it.
async fn each_row_of_the_table(version: &str) {
    for (tool, input, expected) in refused() {
        let script = ModelScript::commands()
            .rule(Rule::prompt(
                PROMPT,
                Reply::blocks([Block::tool_use(tool, input.clone())]),
            ))
            .rule(Rule::results(PROMPT, 1, Reply::text("tried")));
        let Some(world) = World::real_over(version, script).await else {
            return;
        };
        let options = world.options().with_tools(["Agent", "Bash", "Read"]);
        let mut agent = Agent::build_with(&world, options, |builder, _| builder);
        agent.say(PROMPT);
        let segment = agent.segment(Vec::new()).await;
        let Ok(RunModelOutcome::TurnCompleted { messages, .. }) = segment.end else {
            panic!("{tool} {input}: {:?}", segment.end);
        };
        let told = &messages[1].text;
        assert!(told.starts_with(expected), "{tool} {input}: {told}");
        assert_eq!(segment.events, [], "{tool} {input}");
        world.assert_clean();
    }
}

/// G5: the table of refusals on CLI 2.1.316.
#[tokio::test]
async fn what_cli_2_1_316_refuses_by_itself_is_in_the_table() {
    each_row_of_the_table("2.1.316").await;
}

/// G5: the table of refusals on CLI 2.1.332.
#[tokio::test]
async fn what_cli_2_1_332_refuses_by_itself_is_in_the_table() {
    each_row_of_the_table("2.1.332").await;
}
