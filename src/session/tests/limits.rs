//! Sizes: what is cut, and that a state stays small.

use super::*;
use crate::session::call::OUTPUT_BYTES_MAX;

/// spec/core.md 31.17: an output over 256 KiB is cut at a character and says so.
#[test]
fn a_long_output_is_cut_and_says_so() {
    let marker = "\n[cut: the output was longer]";
    let exact = "x".repeat(OUTPUT_BYTES_MAX);
    let cut_at =
        |end: usize, letter: &str| format!("{}{marker}", letter.repeat(end / letter.len()));
    let room = OUTPUT_BYTES_MAX - marker.len();
    let wide = "ü".repeat(OUTPUT_BYTES_MAX / 2 + 1);
    for (output, kept) in [
        (exact.clone(), exact.clone()),
        (format!("{exact}x"), cut_at(room, "x")),
        (wide, cut_at(room - room % 2, "ü")),
    ] {
        for is_error in [false, true] {
            let mut world =
                World::with_calls(vec![free_call("c1", ToolEffect::Read, CallPlace::Step)]);
            let attempt = world.begin_due();
            let end = if is_error {
                ToolCallEnd::Failed {
                    error: output.clone(),
                }
            } else {
                ToolCallEnd::Succeeded {
                    output: output.clone(),
                }
            };
            world.tool_ends(&attempt, end);
            let text = world.outcome_of("c1").model_text();
            assert!(
                text == kept,
                "{} of {} bytes kept",
                text.len(),
                output.len()
            );
        }
    }
}

/// design.md 3: texts, arguments and outputs are rows, so a state does not grow with them.
#[test]
fn a_state_holds_no_texts() {
    let mut world = World::started();
    let long = "x".repeat(100_000);
    world.send(&long);
    let big = RequestedCall {
        arguments: long.clone(),
        shown_arguments: None,
        ..free_call("c1", ToolEffect::Read, CallPlace::Step)
    };
    world.ask_for(vec![big]);
    let attempt = world.begin_due();
    world.tool_ends(&attempt, ToolCallEnd::Succeeded { output: long });
    world.answer("done");
    world.start_turn();
    assert!(world.state.write().unwrap().len() < 2_000);
}

/// A turn with so many calls that its state would outgrow its limit ends with a note, while
/// everything that was started still has room for its end.
#[test]
fn a_turn_with_too_many_calls_ends_before_its_state_is_full() {
    let mut world = World::started();
    let mut asked = 0;
    while world.state.turn.is_some() {
        let calls = (0..20).map(|index| RequestedCall {
            arguments: "\u{1}".repeat(1_000),
            ..free_call(
                &format!("c{asked}-{index}"),
                ToolEffect::NonIdempotentWrite,
                CallPlace::Step,
            )
        });
        world.ask_for(calls.collect());
        asked += 1;
        while matches!(
            due_steps(&world.state).as_slice(),
            [DueStep::CallTool { .. }]
        ) {
            let attempt = world.begin_due();
            world.tool_ends(&attempt, succeeded());
        }
        assert!(asked < 50, "the state has no end");
    }
    let last = world.state.last_failure.as_ref().unwrap();
    assert_eq!(last.failure.class, FailureClass::TooManyCalls);
    assert!(asked > 1);
    assert_eq!(world.texts().pop().unwrap().0, MessageRole::Note);
}

/// Long rejections of many calls never make a state too large: the answer is refused instead, and a
/// shorter one is taken.
#[test]
fn an_answer_that_a_state_has_no_room_for_is_refused() {
    let calls = (0..30).map(|index| {
        call(
            &format!("c{index}"),
            ToolEffect::NonIdempotentWrite,
            CallPlace::Step,
        )
    });
    let mut world = World::with_calls(calls.collect());
    let long = "x".repeat(crate::session::RESOLVER_BYTES_MAX);
    let mut refusals = 0;
    for index in 0..30 {
        let id = format!("c{index}");
        let message = Some(long.clone());
        match world.resolve(&id, Decision::Reject { message }) {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(refused(Err(error)), Refusal::SessionFull);
                refusals += 1;
                world.reject(&id);
            }
        }
    }
    assert!(refusals > 0);
    world.answer("done");
}
