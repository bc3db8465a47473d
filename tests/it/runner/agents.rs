//! Sub-agents: they read, and they do not write (spec/cli-protocol.md 13).

use abide::failure::FailureClass;

use super::*;

on_each_cli! {
    /// L13, G5: a gated call inside a sub-agent is denied and sent to the main conversation, where
    /// it is asked for, recorded and replayed.
    a_gated_call_of_a_sub_agent_is_denied;
    /// I24, L08, G5: what a sub-agent reads is decided, counted and kept out of the transcript.
    a_sub_agent_reads_inline;
}

fn agent_with_sub_agents(world: &World) -> Agent {
    let options = world.options().with_tools(["Agent", "Bash"]);
    Agent::build_with(world, options, |builder, desk| {
        desk.tools()
            .into_iter()
            .fold(builder, ClaudeAgentRunnerBuilder::custom_tool)
    })
}

fn delegate(prompt: &str) -> String {
    let input = serde_json::json!({
        "description": "a job", "prompt": prompt, "subagent_type": "general-purpose"});
    format!("script: call Agent {input}")
}

async fn a_gated_call_of_a_sub_agent_is_denied(world: &World) {
    for (tool, input) in [
        ("refund", r#"{"order_id":"7"}"#),
        ("Bash", r#"{"command":"echo ran >> marker"}"#),
    ] {
        let mut agent = agent_with_sub_agents(world);
        agent.say(&delegate(&format!("script: call {tool} {input}")));
        let segment = agent.segment(Vec::new()).await;
        assert_eq!(inline(&segment), ["started Agent", "finished Succeeded"]);
        let answer = agent.complete(segment);
        let name = if tool == "Bash" {
            "Bash"
        } else {
            "mcp__tools__refund"
        };
        let told = format!(
            "PreToolUse:{name} hook error: {name} did not run: it cannot be called by a sub-agent. Call it from the main conversation."
        );
        assert!(answer.contains(&told), "{answer}");
        assert_eq!(agent.desk.runs(), [] as [&str; 0]);
        assert_eq!(world.bash_runs(), 0);
    }
    // The main conversation may ask for it.
    let mut agent = agent_with_sub_agents(world);
    agent
        .turn(&delegate(r#"script: call refund {"order_id":"7"}"#))
        .await;
    let call = agent
        .turn_to_call(r#"script: call refund {"order_id":"7"}"#)
        .await;
    let segment = agent.resume(&call, succeeded("done")).await;
    assert_eq!(agent.complete(segment), "refund: done");
}

async fn a_sub_agent_reads_inline(world: &World) {
    let mut agent = agent_with_sub_agents(world);
    agent.say(&delegate(r#"script: call look_up {"order_id":"7"}"#));
    let segment = agent.segment(Vec::new()).await;
    assert_eq!(
        inline(&segment),
        [
            "started Agent",
            "started look_up",
            "finished Succeeded",
            "finished Succeeded"
        ]
    );
    let Ok(RunModelOutcome::TurnCompleted { messages, usage }) = &segment.end else {
        panic!("{:?}", segment.end);
    };
    assert_eq!(usage.model_calls, 4);
    assert_eq!(messages.len(), 3);
    assert_eq!(agent.desk.runs(), ["look_up 7"]);
}

fn inline(segment: &Segmented) -> Vec<String> {
    let line = |event: &SegmentEvent| match event {
        SegmentEvent::InlineCallStarted { tool_name, .. } => format!("started {tool_name}"),
        SegmentEvent::InlineCallFinished { status, .. } => format!("finished {status:?}"),
        other => format!("{other:?}"),
    };
    segment.events.iter().map(line).collect()
}

/// G5: the model may know a tool of the CLI by its older name: it is asked about, decided and told
/// by its own one, on both real CLIs.
#[tokio::test]
async fn an_older_name_of_a_tool_is_decided_as_the_tool() {
    for version in ["2.1.316", "2.1.332"] {
        let Some(world) = World::real(version).await else {
            return;
        };
        // The scripted model would not know its call again: the CLI tells it of `Agent`.
        let options = world.options().with_tools(["Agent"]).with_max_turns(1);
        let mut agent = Agent::build_with(&world, options, |builder, _| builder);
        agent.say(&delegate("script: say a").replace("call Agent", "call Task"));
        let segment = agent.segment(Vec::new()).await;
        assert_eq!(inline(&segment), ["started Agent", "finished Succeeded"]);
        assert_eq!(segment.end.unwrap_err().class, FailureClass::MaxTurns);
        world.assert_clean();
    }
}
