//! The same scenarios on the fake CLI and on each pinned real one.

use super::*;

on_each_cli! {
    /// A turn without calls: the answer, its live text, its usage.
    a_plain_turn_is_answered;
    /// I02, I03, I21: a later turn resumes the transcript and knows the turns before it.
    a_later_turn_knows_the_earlier_ones;
    /// I05, I26: a read runs inside the segment, once, and is reported.
    a_read_runs_inside_the_segment;
    /// E20: whatever an inline handler does, the model reads it as a result and no secret.
    an_inline_handler_that_fails_is_told_to_the_model;
    /// A result is cut before the CLI would put it into a file that is lost.
    a_long_result_is_cut;
    /// I06, I10 to I13: a write is parked, runs in its Step, and its record reaches the model.
    a_write_is_parked_and_replayed;
    /// I13: a rejection reaches the model as it was said.
    a_rejected_write_is_told_to_the_model;
    /// I14, I15, G1: an approved tool of the CLI runs once, after its start mark.
    an_approved_tool_of_the_cli_runs_once_after_its_mark;
    /// I16, G3: a final record of a tool of the CLI is told, and nothing runs.
    a_final_tool_of_the_cli_never_runs;
    /// G5: calls that the CLI refuses by itself, without asking the hook, are no gap in the audit.
    what_the_cli_refuses_by_itself_is_no_gap;
    /// Reads around a write run at once; the write waits for its record.
    reads_of_a_reply_run_while_its_write_is_parked;
    /// I09, L12: of two writes in a reply the second is called again later.
    two_writes_of_a_reply_park_one_after_the_other;
    /// L10, I04, 0.6: a turn that failed while a call waited leaves nothing behind that fires.
    an_abandoned_call_never_fires;
    /// G22: the record of a tool that is no longer defined still reaches the model.
    the_record_of_a_vanished_tool_is_replayed;
}

async fn a_plain_turn_is_answered(world: &World) {
    let mut agent = Agent::new(world);
    agent.say("script: say hello");
    let segment = agent.segment(Vec::new()).await;
    assert_eq!(segment.events, []);
    assert_eq!(segment.live, "said: hello");
    let RunModelOutcome::TurnCompleted { messages, usage } = segment.end.unwrap() else {
        panic!("a plain turn has no calls");
    };
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0].text, "said: hello");
    assert_eq!(usage.model_calls, 1);
    assert!(usage.input_tokens > 0 && usage.output_tokens > 0);
}

async fn a_later_turn_knows_the_earlier_ones(world: &World) {
    let mut agent = Agent::new(world);
    agent.turn("script: say one").await;
    agent.turn("script: say two").await;
    assert_eq!(
        agent.turn("script: recall").await,
        "recalled: script: say one | script: say two"
    );
}

async fn a_read_runs_inside_the_segment(world: &World) {
    let mut agent = Agent::new(world);
    agent.say(r#"script: call look_up {"order_id":"7"}"#);
    let segment = agent.segment(Vec::new()).await;
    let events: Vec<String> = segment
        .events
        .iter()
        .map(|event| match event {
            SegmentEvent::InlineCallStarted { tool_name, .. } => format!("started {tool_name}"),
            SegmentEvent::InlineCallFinished { status, .. } => format!("finished {status:?}"),
            other => format!("{other:?}"),
        })
        .collect();
    assert_eq!(events, ["started look_up", "finished Succeeded"]);
    assert_eq!(agent.complete(segment), "look_up: order 7 is paid");
    assert_eq!(agent.desk.runs(), ["look_up 7"]);
}

async fn an_inline_handler_that_fails_is_told_to_the_model(world: &World) {
    let mut agent = Agent::new(world);
    for (call, answer) in [
        (r#"said_no {"order_id":"7"}"#, "said_no: no such order"),
        (r#"failing {"order_id":"7"}"#, "failing: closed today"),
        (r#"broken {"order_id":"7"}"#, "broken: the tool failed"),
        (
            r#"panicking {"order_id":"7"}"#,
            "panicking: the tool failed",
        ),
        (
            r#"look_up {"order":7}"#,
            "look_up: invalid arguments: missing field `order_id`",
        ),
    ] {
        assert_eq!(agent.turn(&format!("script: call {call}")).await, answer);
    }
}

async fn a_long_result_is_cut(world: &World) {
    let mut agent = Agent::new(world);
    let marker = "\n[the rest of this result was cut]";
    let expected = format!("long: {}{marker}", "x".repeat(50_000 - marker.len()));
    let answer = agent.turn(r#"script: call long {"order_id":"7"}"#).await;
    assert!(answer == expected, "{} bytes", answer.len());
    // The same for a record.
    let call = agent
        .turn_to_call(r#"script: call refund {"order_id":"7"}"#)
        .await;
    let segment = agent.resume(&call, succeeded(&"y".repeat(200_000))).await;
    let answer = agent.complete(segment);
    let expected = format!("refund: {}{marker}", "y".repeat(50_000 - marker.len()));
    assert!(answer == expected, "{} bytes", answer.len());
}

async fn a_write_is_parked_and_replayed(world: &World) {
    let mut agent = Agent::new(world);
    let call = agent
        .turn_to_call(r#"script: call refund {"order_id":"7"}"#)
        .await;
    assert_eq!(call.tool_name, "refund");
    assert_eq!(call.arguments, r#"{"order_id":"7"}"#);
    assert_eq!(place_of(&call), CallPlace::Step);
    assert_eq!(agent.desk.runs(), [] as [String; 0]);

    let ToolCallEnd::Succeeded { output } = agent.step(&call).await else {
        panic!("the handler succeeds");
    };
    assert_eq!(agent.desk.runs(), ["refund 7"]);
    let key = IdempotencyKey::of_call(&session(), TurnId::new(1), &call.tool_call_id);
    assert_eq!(
        output,
        format!("refunded 7 under {:?}", Some(key.to_string()))
    );

    let segment = agent.resume(&call, succeeded(&output)).await;
    assert_eq!(segment.events, []);
    assert_eq!(agent.complete(segment), format!("refund: {output}"));
    // The conversation goes on, and nothing of it runs again.
    assert_eq!(agent.turn("script: say bye").await, "said: bye");
    assert_eq!(agent.desk.runs(), ["refund 7"]);
}

async fn a_rejected_write_is_told_to_the_model(world: &World) {
    let mut agent = Agent::new(world);
    let call = agent
        .turn_to_call(r#"script: call refund {"order_id":"7"}"#)
        .await;
    let rejected = ResumedFate::Final(ToolOutcome::Rejected {
        message: Some("not today".to_owned()),
    });
    let segment = agent.resume(&call, rejected).await;
    assert_eq!(
        agent.complete(segment),
        "refund: The user rejected this call: not today"
    );
    assert_eq!(agent.desk.runs(), [] as [String; 0]);
}

const BASH: &str = r#"script: call Bash {"command":"echo ran >> marker && echo ran"}"#;

async fn an_approved_tool_of_the_cli_runs_once_after_its_mark(world: &World) {
    let mut agent = Agent::new(world);
    let call = agent.turn_to_call(BASH).await;
    assert_eq!(call.tool_name, "Bash");
    assert_eq!(place_of(&call), CallPlace::Segment);
    assert_eq!(world.bash_runs(), 0);

    let segment = agent.resume(&call, ResumedFate::Permitted).await;
    assert_eq!(world.bash_runs(), 1);
    let [
        SegmentEvent::CallStarting { tool_call_id },
        SegmentEvent::CallFinished {
            tool_call_id: finished,
            outcome: ToolOutcome::Succeeded { output },
        },
    ] = &segment.events[..]
    else {
        panic!("{:?}", segment.events);
    };
    assert_eq!((tool_call_id, finished), (&id_of(&call), &id_of(&call)));
    let output = output.clone();
    assert_eq!(agent.complete(segment), format!("Bash: {output}"));
    assert_eq!(agent.turn("script: say bye").await, "said: bye");
    assert_eq!(world.bash_runs(), 1);
}

async fn a_final_tool_of_the_cli_never_runs(world: &World) {
    for (outcome, text) in [
        (
            ToolOutcome::Rejected {
                message: Some("too risky".to_owned()),
            },
            "The user rejected this call: too risky".to_owned(),
        ),
        (
            ToolOutcome::Failed {
                error: "no such host".to_owned(),
            },
            "no such host".to_owned(),
        ),
        (
            ToolOutcome::Succeeded {
                output: "42".to_owned(),
            },
            "This call already ran, and its result was recorded. It was not run again, and it must not be repeated. The recorded result: 42".to_owned(),
        ),
    ] {
        let mut agent = Agent::new(world);
        let call = agent.turn_to_call(BASH).await;
        let segment = agent.resume(&call, ResumedFate::Final(outcome.clone())).await;
        assert_eq!(segment.events, []);
        assert_eq!(agent.complete(segment), format!("Bash: {text}"));

        // The same when the session finds it out only at the start.
        let mut agent = Agent::new(world);
        agent.start = Start::Final(outcome);
        let call = agent.turn_to_call(BASH).await;
        let segment = agent.resume(&call, ResumedFate::Permitted).await;
        assert_eq!(agent.complete(segment), format!("Bash: {text}"));
    }
    assert_eq!(world.bash_runs(), 0);
}

async fn two_writes_of_a_reply_park_one_after_the_other(world: &World) {
    let mut agent = Agent::new(world);
    let first = agent
        .turn_to_call(r#"script: call refund {"order_id":"1"} && refund {"order_id":"2"}"#)
        .await;
    assert_eq!(first.arguments, r#"{"order_id":"1"}"#);
    let segment = agent.resume(&first, succeeded("one")).await;
    let second = agent.requested(segment);
    assert_eq!(second.arguments, r#"{"order_id":"2"}"#);
    assert_ne!(second.tool_call_id, first.tool_call_id);
    let segment = agent.resume(&second, succeeded("two")).await;
    assert_eq!(agent.complete(segment), "refund: one\nrefund: two");
}

async fn an_abandoned_call_never_fires(world: &World) {
    let mut agent = Agent::new(world);
    agent.turn("script: say hello").await;
    agent.turn_to_call(BASH).await;
    // The session would roll the transcript back; even if it did not, the call must not run.
    assert_eq!(agent.turn("script: say bye").await, "said: bye");
    assert_eq!(agent.turn("script: say again").await, "said: again");
    assert_eq!(world.bash_runs(), 0);
}

async fn the_record_of_a_vanished_tool_is_replayed(world: &World) {
    let mut agent = Agent::new(world);
    let call = agent
        .turn_to_call(r#"script: call refund {"order_id":"7"}"#)
        .await;
    let messages = std::mem::take(&mut agent.messages);
    let mut agent = Agent::build(world, |builder, _| builder);
    agent.messages = messages;
    assert!(matches!(
        agent.step(&call).await,
        ToolCallEnd::NotRun { .. }
    ));
    let segment = agent.resume(&call, succeeded("done")).await;
    assert_eq!(agent.complete(segment), "refund: done");
}

async fn what_the_cli_refuses_by_itself_is_no_gap(world: &World) {
    let mut agent = Agent::new(world);
    let answer = agent.turn("script: call NoSuchTool {}").await;
    assert_eq!(
        answer,
        "NoSuchTool: <tool_use_error>Error: No such tool available: NoSuchTool</tool_use_error>"
    );
    if let Kind::Real(_) = world.kind {
        let answer = agent.turn(r#"script: call Bash {"command":7}"#).await;
        assert_eq!(
            answer,
            "Bash: <tool_use_error>InputValidationError: Bash failed due to the following issue:\nThe parameter `command` type is expected as `string` but provided as `number`</tool_use_error>"
        );
    }
}

async fn reads_of_a_reply_run_while_its_write_is_parked(world: &World) {
    let mut agent = Agent::new(world);
    let call = agent
        .turn_to_call(
            r#"script: call look_up {"order_id":"1"} && refund {"order_id":"2"} && look_up {"order_id":"3"}"#,
        )
        .await;
    assert_eq!(call.arguments, r#"{"order_id":"2"}"#);
    let mut runs = agent.desk.runs();
    runs.sort();
    assert_eq!(runs, ["look_up 1", "look_up 3"]);
    let segment = agent.resume(&call, succeeded("done")).await;
    assert_eq!(
        agent.complete(segment),
        "look_up: order 1 is paid\nrefund: done\nlook_up: order 3 is paid"
    );
    assert_eq!(agent.desk.runs().len(), 2);
}
