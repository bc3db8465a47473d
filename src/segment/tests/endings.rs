//! Spec/cli-protocol.md 11, row by row: what each way in which the CLI ends a turn stands for. Recorded
//! on CLI 2.1.316; the same on the real CLI, where it can be brought about there:
//! `tests/it/runner/api_failures.rs`.

use super::*;

macro_rules! recorded {
    ($name:literal) => {
        (
            $name,
            include_str!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/fixtures/segment/2.1.316/",
                $name,
                ".jsonl"
            )),
        )
    };
}

fn play(lines: &str) -> Result<RunModelOutcome, AttemptFailure> {
    let mut stepper = turn();
    stepper.play(lines);
    stepper.finish()
}

/// The rows that end well: the last answer is the one after the CLI's own retries, and text of a
/// broken stream is not doubled.
#[test]
fn a_turn_that_ends_well_has_its_answer() {
    for ((name, lines), answers) in [
        (recorded!("plain"), &["Hello there, friend."][..]),
        (recorded!("error_529_then_ok"), &["recovered"]),
        (recorded!("error_truncated"), &["half an answer here"]),
        (
            recorded!("error_truncated_after_block"),
            &["half an answer here"],
        ),
        (recorded!("error_stream_error_event"), &["x"]),
        (recorded!("error_malformed_sse"), &["half an answer here"]),
    ] {
        match play(lines) {
            Ok(RunModelOutcome::TurnCompleted { messages, .. }) => {
                let texts: Vec<&str> = messages.iter().map(|it| it.text.as_str()).collect();
                assert_eq!(texts, answers, "{name}");
            }
            it => panic!("{name}: {it:?}"),
        }
    }
}

/// The rows that end in a result with an error: `is_error` decides, the class says what is to be
/// done, the text what happened, and an API with too much to do keeps its hint.
#[test]
fn a_failed_result_has_its_class_its_text_and_its_hint() {
    use FailureClass::*;
    for ((name, lines), class, detail, retry_after_ms) in [
        (
            recorded!("error_400"),
            ApiError,
            "API Error: 400 messages: something is wrong",
            None,
        ),
        (
            recorded!("error_400_prompt_too_long"),
            PromptTooLong,
            "Prompt is too long",
            None,
        ),
        (
            recorded!("error_401"),
            Authentication,
            "the API refused the credentials with status 401",
            None,
        ),
        (
            recorded!("error_429"),
            RateLimited,
            "API Error: Request rejected (429) · rate limited",
            Some(1000),
        ),
        (
            recorded!("error_529"),
            Overloaded,
            "API Error: 529 Overloaded.",
            Some(1145),
        ),
        (
            recorded!("error_unreachable"),
            ApiError,
            "API Error: Connection refused",
            None,
        ),
        (
            recorded!("error_max_tokens"),
            ApiError,
            "API Error: Claude's response exceeded the 64000 output token maximum.",
            None,
        ),
        (
            recorded!("error_refusal"),
            ApiError,
            "API Error: Sonnet 5 can't help with this.",
            None,
        ),
        (
            recorded!("error_max_turns"),
            MaxTurns,
            "Reached maximum number of turns (1)",
            None,
        ),
        (
            recorded!("error_max_budget"),
            BudgetExceeded,
            "Reached maximum budget ($0.01)",
            None,
        ),
        (
            recorded!("interrupt_midstream"),
            ApiError,
            "[ede_diagnostic] result_type=user last_content_type=n/a stop_reason=null",
            None,
        ),
        (
            recorded!("error_no_such_resume"),
            CliContract,
            "No conversation found with session ID: 00000000-0000-4000-8000-000000000001",
            None,
        ),
        (
            recorded!("not_logged_in"),
            Authentication,
            "Not logged in · Please run /login",
            None,
        ),
    ] {
        let failure = play(lines).unwrap_err();
        // The CLI's longer texts end in advice for people at a terminal.
        let start = failure.detail.get(..detail.len()).unwrap_or_default();
        assert_eq!((failure.class, start), (class, detail), "{name}");
        assert_eq!(failure.retry_after_ms, retry_after_ms, "{name}");
    }
}

/// The rows without a result: what the CLI said on stderr becomes the detail, and a refused option
/// is an old CLI.
#[test]
fn a_process_that_ends_without_a_result_is_judged_by_its_last_words() {
    for (stderr_tail, class) in [
        (
            "Error: Session ID bbbbbbbb-0000-4000-8000-000000000001 is already in use.",
            FailureClass::CliFailed,
        ),
        (
            "Error: Invalid session ID. Must be a valid UUID.",
            FailureClass::CliFailed,
        ),
        (
            "error: unknown option '--no-such-flag'",
            FailureClass::CliTooOld,
        ),
    ] {
        let mut stepper = turn();
        stepper.segment.handle_end_of_output(ProcessEnd {
            exit: "exit status 1",
            stderr_tail,
        });
        assert_eq!(
            stepper.failure(),
            (
                class,
                format!("the CLI ended without a result: exit status 1: {stderr_tail}")
            )
        );
    }
}

/// A terminal reason or an error subtype that is not known is an error of the API; a result that
/// is none is a success, whatever it is called.
#[test]
fn unknown_reasons_and_subtypes_are_judged_by_is_error() {
    for extra in [
        json!({"subtype": "error_brand_new", "terminal_reason": "brand_new", "is_error": true}),
        json!({"subtype": "success", "terminal_reason": "brand_new", "is_error": true}),
    ] {
        let mut stepper = turn();
        stepper.reply("m1", "hi");
        stepper.result(extra);
        assert_eq!(stepper.failure().0, FailureClass::ApiError);
    }
    let mut stepper = turn();
    stepper.reply("m1", "hi");
    stepper.result(json!({"subtype": "brand_new", "terminal_reason": "brand_new"}));
    assert!(stepper.finish().is_ok());
}

/// The hint is the last retry's, of the same trouble, and not without end.
#[test]
fn a_hint_is_of_the_same_trouble_and_bounded() {
    let hour = 60 * 60 * 1000;
    for (status, delay, hint) in [
        (json!(529), json!(1500.6), Some(1500)),
        (json!(529), json!(1e300), None),
        (json!(529), json!(7e9), Some(hour)),
        (json!(529), json!(-1), None),
        (json!(529), Value::Null, None),
        (json!(429), json!(1500), None),
        (Value::Null, json!(1500), None),
    ] {
        let mut stepper = turn();
        stepper.json(json!({"type": "system", "subtype": "api_retry", "error_status": 529, "retry_delay_ms": 9}));
        stepper.json(json!({"type": "system", "subtype": "api_retry", "error_status": status, "retry_delay_ms": delay}));
        stepper.result(json!({"is_error": true, "api_error_status": 529, "result": "busy"}));
        let failure = stepper.segment.finish().unwrap_err();
        assert_eq!(failure.class, FailureClass::Overloaded);
        assert_eq!(failure.retry_after_ms, hint, "{status} {delay}");
    }
}
