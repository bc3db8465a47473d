//! What is refused before anything runs.

use abide::definition::DefinitionError;
use abide::failure::FailureClass;

use super::*;

fn build(world: &World, server: &str, tools: &[&str]) -> Result<(), DefinitionError> {
    let desk = Desk::default();
    let builder = ClaudeAgentRunner::builder(world.options())
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

/// A definition without a launcher, or with options that make no sense, is refused.
#[test]
fn options_that_make_no_sense_are_refused() {
    let world = World::fake();
    assert!(matches!(
        ClaudeAgentRunner::builder(world.options()).build(),
        Err(DefinitionError::Option { .. })
    ));
    for options in [
        world.options().with_tools(["--danger"]),
        world.options().with_tools(["Bash,Write"]),
        world.options().with_max_turns(0),
        world.options().with_max_budget_usd(0.0),
        world.options().with_max_budget_usd(f64::NAN),
        world
            .options()
            .with_system_prompt("a")
            .with_append_system_prompt("b"),
    ] {
        assert!(matches!(
            ClaudeAgentRunner::builder(options)
                .launcher(Arc::clone(&world.launcher))
                .build(),
            Err(DefinitionError::Option { .. })
        ));
    }
}

/// Options of an attempt are checked in that attempt, and are never retried.
#[tokio::test]
async fn options_of_an_attempt_are_checked_before_a_process_starts() {
    let world = World::fake();
    let bad = world.options().with_max_turns(0);
    let mut agent = Agent::new(&world);
    agent.runner = ClaudeAgentRunner::builder_with(move |_| Ok(bad.clone()))
        .launcher(Arc::clone(&world.launcher))
        .build()
        .unwrap();
    agent.say("hello");
    let failure = agent.segment(Vec::new()).await.end.unwrap_err();
    assert_eq!(failure.class, FailureClass::Options);
    assert_eq!(world.handle().launches().len(), 0);
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
