//! What a resumed CLI remembers, seen in what the real one asks the model.

use abide::testing::messages_api::{Block, HoldPoint, Reply, Rule};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::*;

fn api(world: &World) -> &ScriptedMessagesApi {
    match &world.kind {
        Kind::Real(api) => api,
        Kind::Fake(_) | Kind::Other => panic!("only the real CLI asks a model"),
    }
}

/// A runner with the desk's tools whose CLI works in this directory.
fn runner_in(world: &World, desk: &Desk, directory: &Path) -> ClaudeAgentRunner {
    let mut options = world.options();
    options.working_directory = directory.to_owned();
    desk.tools()
        .into_iter()
        .fold(
            ClaudeAgentRunner::builder(options).gated_call_wait(GatedCallWait::Native),
            ClaudeAgentRunnerBuilder::custom_tool,
        )
        .launcher(Arc::clone(&world.launcher))
        .build()
        .unwrap()
}

/// Report R56: a session goes on in any directory and on any worker: one that moved, one behind a
/// symbolic link, one with an odd name, one that is 260 bytes long.
#[tokio::test]
async fn a_session_goes_on_in_any_working_directory() {
    let Some(world) = World::real("2.1.316").await else {
        return;
    };
    let root = world.directory.path().canonicalize().unwrap();
    let make = |name: &str| {
        let path = root.join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    };
    let plain = make("plain");
    let linked = root.join("linked");
    std::os::unix::fs::symlink(&plain, &linked).unwrap();
    let odd = make("a.b c_d-ü漢\u{1f600}'\"");
    let part = format!("/{}", "x".repeat(85));
    let long = make(&part.repeat(3)[1..]);
    assert!(long.as_os_str().len() >= 260);
    for (first, second) in [
        (&plain, &make("moved")),
        (&linked, &linked),
        (&linked, &plain),
        (&odd, &odd),
        (&long, &long),
    ] {
        let mut agent = Agent::new(&world);
        agent.runner = runner_in(&world, &agent.desk, first);
        agent.turn("script: say one").await;
        let call = agent
            .turn_to_call(r#"script: call refund {"order_id":"7"}"#)
            .await;
        agent.runner = runner_in(&world, &agent.desk, second);
        let segment = agent.resume(&call, succeeded("done")).await;
        assert_eq!(agent.complete(segment), "refund: done", "{second:?}");
        assert_eq!(
            agent.turn("script: recall").await,
            r#"recalled: script: say one | script: call refund {"order_id":"7"}"#,
            "{second:?}"
        );
    }
    world.assert_clean();
}

/// G11, report R53: thinking comes back with its signature, byte for byte.
#[tokio::test]
async fn thinking_comes_back_with_its_signature() {
    let thinking = Block::thinking("h\u{fc}m \u{2028} <&>\\u0041", "c2ln+/bmF0dXJl==");
    let reply = Reply::blocks([
        thinking,
        Block::tool_use("mcp__tools__refund", json!({"order_id": "7"})),
    ]);
    let script = ModelScript::commands()
        .rule(Rule::results("think", 1, Reply::text("done")))
        .rule(Rule::prompt("think", reply));
    let Some(world) = World::real_over("2.1.316", script).await else {
        return;
    };
    let mut agent = Agent::new(&world);
    let call = agent.turn_to_call("think").await;
    let segment = agent.resume(&call, succeeded("done")).await;
    assert_eq!(agent.complete(segment), "done");
    let requests = api(&world).main_requests();
    let blocks = requests[1].body["messages"].as_array().unwrap().iter();
    let blocks = blocks.filter_map(|it| it["content"].as_array()).flatten();
    let thinking: Vec<&Value> = blocks.filter(|it| it["type"] == "thinking").collect();
    assert_eq!(
        thinking,
        [
            &json!({"type": "thinking", "thinking": "h\u{fc}m \u{2028} <&>\\u0041",
            "signature": "c2ln+/bmF0dXJl=="})
        ]
    );
    world.assert_clean();
}

/// Report R03: a deferral that is answered while the model's message is still being written ends the
/// segment all the same: the model is not asked once more.
#[tokio::test]
async fn a_deferral_in_the_middle_of_a_message_is_one() {
    let order = json!({"order_id": "7"});
    let reply = Reply::blocks([
        Block::tool_use("mcp__tools__refund", order.clone()),
        Block::tool_use("mcp__tools__seen", order),
    ]);
    let script = ModelScript::commands().rule(Rule::prompt(
        "slowly",
        reply.hold(HoldPoint::AfterBlock(1), "message"),
    ));
    let Some(world) = World::real_over("2.1.316", script).await else {
        return;
    };
    let seen = Arc::new(Notify::new());
    let mut agent = Agent::build(&world, |builder, desk| {
        let seen = Arc::clone(&seen);
        let tool = desk.tool("seen", move |_, _| {
            seen.notify_one();
            Ok(ToolOutput::text("seen"))
        });
        let tools = desk.tools().into_iter();
        tools.fold(
            builder.custom_tool(tool.with_effect(ToolEffect::Read)),
            ClaudeAgentRunnerBuilder::custom_tool,
        )
    });
    agent.say("slowly");
    let (segment, ()) = tokio::join!(agent.segment(Vec::new()), async {
        // The read stands behind the write: its hook was asked and answered by then.
        seen.notified().await;
        api(&world).gate("message").open();
    });
    assert_eq!(agent.requested(segment).tool_name, "refund");
    assert_eq!(api(&world).main_requests().len(), 1);
    world.assert_clean();
}

/// Report R65: a sub-agent that the model starts with all permissions has none of its own.
#[tokio::test]
async fn a_sub_agent_gets_no_permissions_of_its_own() {
    let Some(world) = World::real("2.1.316").await else {
        return;
    };
    let desk = Desk::default();
    let runner = desk.tools().into_iter().fold(
        ClaudeAgentRunner::builder(world.options().with_tools(["Agent", "Bash"]))
            .gated_call_wait(GatedCallWait::Native),
        ClaudeAgentRunnerBuilder::custom_tool,
    );
    let policies = ToolPolicies::new().with("Agent", ToolPolicy::new(ToolEffect::Read));
    let mut agent = Agent::new(&world);
    agent.runner = runner
        .tool_policies(policies)
        .launcher(Arc::clone(&world.launcher))
        .build()
        .unwrap();
    for (tool, call) in [
        ("mcp__tools__refund", r#"refund {"order_id":"7"}"#),
        ("Bash", r#"Bash {"command":"echo ran >> marker"}"#),
    ] {
        let input = json!({"description": "a job", "prompt": format!("script: call {call}"),
            "subagent_type": "general-purpose", "mode": "bypassPermissions"});
        let answer = agent.turn(&format!("script: call Agent {input}")).await;
        let told = format!(
            "PreToolUse:{tool} hook error: {tool} did not run: it cannot be called by a sub-agent."
        );
        assert!(answer.contains(&told), "{answer}");
    }
    assert_eq!(desk.runs(), [] as [String; 0]);
    assert_eq!(world.bash_runs(), 0);
    world.assert_clean();
}
