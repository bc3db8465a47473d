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

/// A rule that no call would meet, or that something contradicts, is refused when it is defined.
#[test]
fn approval_rules_that_would_not_hold_are_refused() {
    let world = World::fake();
    let desk = Desk::default();
    let build = |policies: ToolPolicies, brings_one: bool, names: &[&str]| {
        let tool = desk.tool("refund", |_, _| Ok(ToolOutput::text("")));
        let tool = if brings_one {
            tool.with_approval_if(|_: &serde_json::Value| true)
        } else {
            tool
        };
        let mut builder = ClaudeAgentRunner::builder(world.options())
            .custom_tool(tool)
            .tool_policies(policies)
            .launcher(Arc::clone(&world.launcher));
        for name in names {
            builder = builder.approval_if(*name, |_| true);
        }
        match builder.build() {
            Ok(_) => None,
            Err(DefinitionError::ApprovalRule { name, .. }) => Some(name),
            Err(other) => panic!("{other}"),
        }
    };
    let none = ToolPolicies::new;
    for good in ["refund", "Bash", "Read", "mcp__elsewhere__pay"] {
        assert_eq!(build(none(), false, &[good]), None);
    }
    assert_eq!(build(none(), true, &[]), None);
    for bad in ["refnud", "mcp__tools__refund", "bash", ""] {
        assert_eq!(build(none(), false, &[bad]).as_deref(), Some(bad));
    }
    let twice = build(none(), false, &["Bash", "Bash"]);
    assert_eq!(twice.as_deref(), Some("Bash"));
    assert_eq!(build(none(), true, &["refund"]).as_deref(), Some("refund"));
    for approval in [Approval::Required, Approval::NotRequired] {
        let policy = ToolPolicy::new(ToolEffect::Read).with_approval(approval);
        let beside = build(none().with("Read", policy), false, &["Read"]);
        assert_eq!(beside.as_deref(), Some("Read"), "{approval:?}");
    }
}

/// N37, O50: questions are asked by `AskUserQuestion` and by custom tools, and answered by no approval.
#[test]
fn policies_that_nobody_could_answer_are_refused() {
    let world = World::fake();
    let desk = Desk::default();
    let build = |name: &str, policy: ToolPolicy| {
        let tool = desk.tool("ask", |_, _| Ok(ToolOutput::text("")));
        let builder = ClaudeAgentRunner::builder(world.options())
            .custom_tool(tool)
            .tool_policies(ToolPolicies::new().with(name, policy))
            .launcher(Arc::clone(&world.launcher));
        match builder.build() {
            Ok(_) => None,
            Err(DefinitionError::Policy { name, .. }) => Some(name),
            Err(other) => panic!("{other}"),
        }
    };
    let (asks, reads) = (ToolPolicy::questions(), ToolPolicy::new(ToolEffect::Read));
    for (name, policy, is_refused) in [
        ("AskUserQuestion", asks, false),
        ("ask", asks, false),
        ("Bash", reads, false),
        ("AskUserQuestion", reads, true),
        (
            "AskUserQuestion",
            reads.with_approval(Approval::Required),
            true,
        ),
        ("Bash", asks, true),
        ("mcp__desk__ask", asks, true),
    ] {
        let refused = build(name, policy);
        let expected = is_refused.then(|| name.to_owned());
        assert_eq!(refused, expected, "{name} {policy:?}");
    }
}
