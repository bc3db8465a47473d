//! How turns end, and what is kept of them.

use super::*;
use crate::record::ItemContent;
use crate::session::SEGMENTS_MAX;

/// The whole log of a turn with one approved write, in order.
#[test]
fn the_log_tells_a_turn_from_its_start_to_its_end() {
    let mut world = World::with_calls(vec![call(
        "c1",
        ToolEffect::NonIdempotentWrite,
        CallPlace::Step,
    )]);
    world.approve("c1");
    let attempt = world.begin_due();
    world.tool_ends(&attempt, succeeded());
    world.answer("done");
    let log: Vec<String> = world
        .events
        .iter()
        .map(|it| serde_json::to_string(&it.kind).unwrap())
        .collect();
    let expected = [
        r#"{"kind":"session_started"}"#,
        r#"{"kind":"message_queued","message_id":"m1"}"#,
        r#"{"kind":"turn_started","message_id":"m1"}"#,
        r#"{"kind":"message_committed","sequence":1}"#,
        r#"{"kind":"step_started","step_id":"s1","step":"RunModel"}"#,
        r#"{"kind":"attempt_started","step_id":"s1","attempt":1}"#,
        r#"{"kind":"message_committed","sequence":2}"#,
        r#"{"kind":"usage_reported","usage":{"input_tokens":10,"cached_input_tokens":0,"output_tokens":1,"model_calls":1,"cost_nano_usd":0}}"#,
        r#"{"kind":"step_started","step_id":"s2","step":"AwaitToolApproval","tool_call_id":"c1"}"#,
        r#"{"kind":"interrupt_requested","interrupt_id":"t1/c1","tool_call_id":"c1","tool_name":"tool","effect":"non_idempotent_write"}"#,
        r#"{"kind":"turn_suspended"}"#,
        r#"{"kind":"interrupt_resolved","interrupt_id":"t1/c1","approved":true}"#,
        r#"{"kind":"step_started","step_id":"s3","step":"CallSingleAttemptTool","tool_call_id":"c1"}"#,
        r#"{"kind":"attempt_started","step_id":"s3","attempt":1}"#,
        r#"{"kind":"tool_call_started","tool_call_id":"c1","tool_name":"tool"}"#,
        r#"{"kind":"tool_call_finished","tool_call_id":"c1","status":"succeeded"}"#,
        r#"{"kind":"step_started","step_id":"s4","step":"ResumeTurn"}"#,
        r#"{"kind":"turn_resumed"}"#,
        r#"{"kind":"step_started","step_id":"s5","step":"RunModel"}"#,
        r#"{"kind":"attempt_started","step_id":"s5","attempt":1}"#,
        r#"{"kind":"message_committed","sequence":3}"#,
        r#"{"kind":"usage_reported","usage":{"input_tokens":10,"cached_input_tokens":0,"output_tokens":1,"model_calls":1,"cost_nano_usd":0}}"#,
        r#"{"kind":"turn_completed"}"#,
    ];
    assert_eq!(log, expected);
}

/// I24: what segments used adds up, over turns too.
#[test]
fn usage_adds_up() {
    let mut world = World::with_calls(vec![free_call("c1", ToolEffect::Read, CallPlace::Step)]);
    assert_eq!(world.turn().usage, usage());
    let attempt = world.begin_due();
    world.tool_ends(&attempt, succeeded());
    world.answer("done");
    world.send("again");
    world.answer("done");
    assert_eq!(world.state.usage, usage().plus(usage()).plus(usage()));
}

/// L10, L11, G3: after a failed turn the conversation is the last completed one, the failed prompt,
/// and a note that says what became of each call; then the next prompt.
#[test]
fn a_failed_turn_leaves_its_prompt_and_a_note() {
    let mut world = World::started();
    world.answer("hi");
    let kept = world.messages();
    world.send("do it");
    world.ask_for(vec![
        call("c1", ToolEffect::NonIdempotentWrite, CallPlace::Step),
        call("c2", ToolEffect::NonIdempotentWrite, CallPlace::Step),
        call("c3", ToolEffect::NonIdempotentWrite, CallPlace::Step),
        free_call("c4", ToolEffect::NonIdempotentWrite, CallPlace::Step),
        asked_call("c5", ToolEffect::Read, CallPlace::Step),
    ]);
    world.approve("c1");
    world.reject("c2");
    world.approve("c3");
    world.approve("c5");
    for end in [
        succeeded(),
        ToolCallEnd::Unknown {
            detail: "connection lost".to_owned(),
        },
        ToolCallEnd::Failed {
            error: "no such page".to_owned(),
        },
    ] {
        let attempt = world.begin_due();
        world.tool_ends(&attempt, end);
    }
    world.fail_turn();
    world.send("and now?");
    let note = concat!(
        "[The previous turn failed (options) and its answer is lost.]\n",
        "[Calls of that turn, with what became of them:]\n",
        "- tool({\"for\":\"c1\"}): succeeded; do not repeat it\n",
        "- tool({\"for\":\"c2\"}): rejected by the user; it did not run\n",
        "- tool({\"for\":\"c3\"}): its outcome is unknown: check before you repeat it\n",
        "- tool({\"for\":\"c4\"}): did not run, so it is safe to call again\n",
        "- tool({\"for\":\"c5\"}): failed",
    );
    let messages = world.messages();
    assert_eq!(messages[..kept.len()], kept);
    let rest: Vec<_> = messages[kept.len()..]
        .iter()
        .map(|it| (it.role, it.framework_item.content().unwrap()))
        .collect();
    assert_eq!(
        rest,
        [
            (
                MessageRole::User,
                ItemContent::UserPrompt("do it".to_owned())
            ),
            (
                MessageRole::Note,
                ItemContent::TurnFailureNote(note.to_owned())
            ),
            (
                MessageRole::User,
                ItemContent::UserPrompt("and now?".to_owned())
            ),
        ]
    );
}

/// G6: a turn that failed does not hold up the messages behind it.
#[test]
fn the_next_message_follows_a_failed_turn() {
    let mut world = World::started();
    world.send("two");
    world.fail_turn();
    let failed = world.state.last_failure.clone().unwrap();
    assert_eq!(failed.turn_id, TurnId::new(1));
    assert_eq!(world.state.status(), SessionStatus::Running);
    world.start_turn();
    world.answer("re two");
    assert_eq!(world.state.last_failure, Some(failed));
}

/// A turn has at most fifty segments; its calls' fates are told all the same.
#[test]
fn a_turn_that_never_ends_is_stopped() {
    let mut world = World::started();
    for segment in 1..SEGMENTS_MAX {
        let id = format!("c{segment}");
        world.ask_for(vec![free_call(&id, ToolEffect::Read, CallPlace::Step)]);
        let attempt = world.begin_due();
        world.tool_ends(&attempt, succeeded());
    }
    assert_eq!(world.turn().segments, SEGMENTS_MAX - 1);
    world.ask_for(vec![free_call("last", ToolEffect::Read, CallPlace::Step)]);
    let last = world.state.last_failure.as_ref().unwrap();
    assert_eq!(last.failure.class, FailureClass::TooManySegments);
    assert_eq!(world.state.turn, None);
    let (role, note) = world.texts().pop().unwrap();
    assert_eq!(role, MessageRole::Note);
    let lines = usize::try_from(SEGMENTS_MAX).unwrap() - 1 + 2;
    assert_eq!(note.lines().count(), lines);
}

/// A reply whose calls cannot be told apart or stored is not acted on; it counts as a failure.
#[test]
fn a_reply_with_impossible_calls_fails_its_attempt() {
    let read = |id: &str| free_call(id, ToolEffect::Read, CallPlace::Step);
    let large = RequestedCall {
        arguments: "x".repeat(256 * 1024 + 1),
        shown_arguments: None,
        ..read("c2")
    };
    for calls in [
        vec![],
        vec![read("c2"), read("c2")],
        vec![read("c1")],
        vec![large],
    ] {
        let mut world = World::with_calls(vec![read("c1")]);
        let attempt = world.begin_due();
        world.tool_ends(&attempt, succeeded());
        let before = world.records().len();
        let head = world.state.head;
        world.ask_for(calls);
        let Phase::RunModel(execution) = &world.turn().phase else {
            panic!("the segment is due again");
        };
        assert_eq!((execution.failures, execution.attempts), (1, 1));
        assert_eq!((world.records().len(), world.state.head), (before, head));
    }
}
