//! What is refused before anything runs.

use abide::definition::DefinitionError;

use super::*;

fn build(world: &World, server: &str, tools: &[&str]) -> Result<(), DefinitionError> {
    let desk = Desk::default();
    let builder = ClaudeAgentRunner::builder(world.options())
        .gated_call_wait(GatedCallWait::Native)
        .launcher(Arc::clone(&world.launcher))
        .custom_tool_server_name(server);
    tools
        .iter()
        .fold(builder, |builder, name| {
            builder.custom_tool(desk.tool(name, |_, _| Ok(ToolOutput::text(""))))
        })
        .build()
        .map(|_| ())
}

/// E04: names that policies and records could not tell apart are refused.
#[test]
fn names_that_could_be_mixed_up_are_refused() {
    let world = World::fake();
    assert_eq!(build(&world, "tools", &["look_up", "look-up2"]), Ok(()));
    for name in [
        "Bash",
        "Task",
        "write",
        "mcp__x__y",
        "",
        "a b",
        "a.b",
        "ä",
        "a__b",
        &"x".repeat(53),
    ] {
        assert!(
            matches!(
                build(&world, "tools", &[name]),
                Err(DefinitionError::ToolName { .. })
            ),
            "{name:?}"
        );
    }
    assert_eq!(
        build(&world, "tools", &["look_up", "look_up"]),
        Err(DefinitionError::DuplicateTool {
            name: "look_up".to_owned()
        })
    );
    for server in ["", "a b", "a__b", "mcp__tools"] {
        assert!(
            matches!(
                build(&world, server, &[]),
                Err(DefinitionError::ToolServerName { .. })
            ),
            "{server:?}"
        );
    }
}

/// A definition without a launcher is refused.
#[test]
fn a_definition_needs_a_launcher() {
    let world = World::fake();
    assert!(matches!(
        ClaudeAgentRunner::builder(world.options()).build(),
        Err(DefinitionError::Option {
            option: "launcher",
            ..
        })
    ));
}

/// G10: prompts and keys are in no argument.
#[tokio::test]
async fn nothing_of_the_conversation_is_in_the_arguments() {
    let world = World::fake();
    let options = world
        .options()
        .with_system_prompt("SECRET PROMPT")
        .with_environment(CliEnvironment::empty().set("ANTHROPIC_API_KEY", "sk-secret"));
    let mut agent = Agent::new(&world);
    agent.runner = ClaudeAgentRunner::builder(options)
        .gated_call_wait(GatedCallWait::Native)
        .launcher(Arc::clone(&world.launcher))
        .build()
        .unwrap();
    agent.turn("script: say SECRET WORD").await;
    let launches = world.handle().launches();
    let arguments = launches[0].spec.arguments.join(" ");
    assert_eq!(arguments.matches("SECRET").count(), 0, "{arguments}");
    assert_eq!(arguments.matches("sk-secret").count(), 0, "{arguments}");
    assert_eq!(
        launches[0].spec.environment["ANTHROPIC_API_KEY"],
        "sk-secret"
    );
}
