//! Recorded lines of CLI 2.1.316.

use super::*;
use crate::turn::RequestedCall;

macro_rules! lines {
    ($name:literal) => {
        include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/fixtures/segment/2.1.316/",
            $name,
            ".jsonl"
        ))
    };
}

const CALL: &str = "toolu_000000000000000000000001";

fn play(lines: &str) -> Stepper {
    let mut stepper = turn();
    stepper.play(lines);
    stepper
}

fn resumed(tool: &str, arguments: &str, place: CallPlace, fate: ResumedFate) -> SegmentPlan {
    let id = ToolCallId::new(CALL).unwrap();
    SegmentPlan {
        resume: Some(crate::ids::ClaudeSessionId::new(CLAUDE_SESSION).unwrap()),
        ..plan(SegmentStart::Resume {
            call: ResumedCall::new(id, tool, arguments, place, fate),
        })
    }
}

fn without_live(log: Vec<String>) -> Vec<String> {
    log.into_iter()
        .filter(|it| !it.starts_with("live") && !it.starts_with("serve") && it != "mcp reply")
        .collect()
}

fn completed(stepper: Stepper) -> (Vec<NewMessage>, Usage) {
    match stepper.finish().unwrap() {
        RunModelOutcome::TurnCompleted { messages, usage } => (messages, usage),
        RunModelOutcome::ToolCallsRequested { calls, .. } => panic!("{calls:?}"),
        RunModelOutcome::Parked | RunModelOutcome::Cancelled { .. } => panic!("no answer"),
    }
}

fn texts(messages: &[NewMessage]) -> Vec<String> {
    messages.iter().map(|it| outline(it).0).collect()
}

/// I19 to I21, I24, I25: the answer is one message, everything else rides along, and the entries
/// are the mirrored lines in their order.
#[test]
fn a_plain_turn_is_one_message_with_every_entry() {
    let mut stepper = play(lines!("plain"));
    assert_eq!(
        stepper.take(),
        [
            "serve initialize Protocol",
            "mcp reply",
            "version 2.1.316",
            "serve notifications/initialized Protocol",
            "mcp reply",
            "serve tools/list Protocol",
            "mcp reply",
            "live Text Hello ther",
            "live Text e, friend.",
            "close input",
        ]
    );
    let (messages, usage) = completed(stepper);
    let [message] = &messages[..] else {
        panic!("{messages:?}")
    };
    let (text, kinds) = outline(message);
    assert_eq!(text, "Assistant: Hello there, friend.");
    assert_eq!(kinds.last().map(String::as_str), Some("atis-latch"));
    assert_eq!(mirrored(lines!("plain")), entries(&message.item));
    assert_eq!(
        usage,
        Usage {
            input_tokens: 16,
            cached_input_tokens: 2,
            output_tokens: 7,
            model_calls: 1,
            cost_nano_usd: 99_900,
        }
    );
}

/// Every mirrored line of the main file up to the result, without what is never stored.
fn mirrored(lines: &str) -> Vec<TranscriptEntry> {
    let mut entries = Vec::new();
    for line in lines.lines() {
        match decode_line(line.as_bytes()).unwrap() {
            CliFrame::Mirror(frame) if !frame.file_path.contains("subagents") => entries.extend(
                frame
                    .entries
                    .into_iter()
                    .filter(|it| it.head().unwrap().kind != "last-prompt"),
            ),
            CliFrame::Result(_) => break,
            _ => {}
        }
    }
    entries
}

/// I05, I26, L20: a read runs in the segment, under its id and name.
#[test]
fn a_read_runs_inside_the_segment() {
    let mut stepper = play(lines!("inline_read"));
    let run = format!(
        r#"serve tools/call Run {{ tool_call_id: ToolCallId("{CALL}"), tool_name: "lookup", arguments: "{{\"orderId\":\"7\"}}" }}"#
    );
    let log = stepper.take();
    assert_eq!(log.iter().filter(|it| **it == run).count(), 1);
    assert_eq!(
        without_live(log),
        [
            "version 2.1.316".to_owned(),
            r#"hook "allow""#.to_owned(),
            format!("inline {CALL} lookup"),
            format!("inline end {CALL} Succeeded"),
            "close input".to_owned(),
        ]
    );
    let (messages, usage) = completed(stepper);
    assert_eq!(messages.len(), 3);
    assert_eq!(usage.model_calls, 2);
    let all: Vec<TranscriptEntry> = messages.iter().flat_map(|it| entries(&it.item)).collect();
    assert_eq!(mirrored(lines!("inline_read")), all);
}

/// I06, I08, I20: the first write is deferred and handed to the session with its final input.
#[test]
fn a_write_is_deferred_and_requested() {
    let mut stepper = play(lines!("defer"));
    assert_eq!(
        without_live(stepper.take()),
        ["version 2.1.316", r#"hook "defer""#, "close input"]
    );
    let RunModelOutcome::ToolCallsRequested {
        calls, messages, ..
    } = stepper.finish().unwrap()
    else {
        panic!("the turn must wait for the call");
    };
    assert_eq!(
        calls,
        [RequestedCall {
            tool_call_id: ToolCallId::new(CALL).unwrap(),
            tool_name: "create_refund".to_owned(),
            arguments: r#"{"orderId":"7","amount":5}"#.to_owned(),
            shown_arguments: None,
            policy: ToolPolicy::new(ToolEffect::NonIdempotentWrite),
            place: CallPlace::Step,
        }]
    );
    assert_eq!(texts(&messages), ["Assistant: I will refund."]);
    let all = entries(&messages[0].item);
    assert_eq!(mirrored(lines!("defer")), all);
    let pending = materialise(all.clone(), Some(&calls[0].tool_call_id)).unwrap();
    assert_eq!(pending.entries, all);
}

/// I13, L24: the record reaches the model under the same id, and nothing runs.
#[test]
fn a_recorded_call_is_replayed_once() {
    let output = "refunded re_123".to_owned();
    let mut stepper = Stepper::new(resumed(
        "create_refund",
        r#"{"orderId":"7","amount":5}"#,
        CallPlace::Step,
        ResumedFate::Final(ToolOutcome::Succeeded { output }),
    ));
    stepper.take();
    stepper.play(lines!("resume_allow_text"));
    let log = stepper.take();
    assert!(log.contains(
        &r#"serve tools/call Replay { text: "refunded re_123", is_error: false }"#.to_owned()
    ));
    assert_eq!(
        without_live(log),
        [
            "version 2.1.316",
            r#"hook "allow" {"amount":5,"orderId":"7"}"#,
            "close input"
        ]
    );
    let (messages, _) = completed(stepper);
    assert_eq!(
        texts(&messages),
        [
            format!("Tool {CALL}: refunded re_123"),
            "Assistant: Refund done.".to_owned()
        ]
    );
    assert_eq!(
        outline(&messages[1]).1,
        ["user", "assistant"],
        "the hidden continuation rides along"
    );
}

/// I16: a rejected tool of the CLI is asked for and refused with exactly the recorded text.
#[test]
fn a_rejected_tool_of_the_cli_is_refused_without_a_prefix() {
    let mut stepper = Stepper::new(resumed(
        "Bash",
        "{}",
        CallPlace::Segment,
        ResumedFate::Final(ToolOutcome::Rejected {
            message: Some("too risky".to_owned()),
        }),
    ));
    stepper.take();
    stepper.play(lines!("bash_reject"));
    assert_eq!(
        without_live(stepper.take()),
        [
            "version 2.1.316",
            r#"hook "ask""#,
            r#"question {"behavior":"deny","message":"The user rejected this call: too risky"}"#,
            "close input"
        ]
    );
    let (messages, _) = completed(stepper);
    assert_eq!(
        texts(&messages),
        [
            format!("Tool {CALL}: The user rejected this call: too risky"),
            "Assistant: All done.".to_owned()
        ]
    );
}

/// G1, I14, I15: an approved tool of the CLI starts after its mark, and its result is its end.
#[test]
fn an_approved_tool_of_the_cli_runs_after_its_start_mark() {
    let mut stepper = Stepper::new(resumed(
        "Bash",
        r#"{"command":"x"}"#,
        CallPlace::Segment,
        ResumedFate::Permitted,
    ));
    stepper.take();
    for line in lines!("bash_approve").lines() {
        stepper.line(line);
        if stepper.log.last() == Some(&format!("starting {CALL}")) {
            stepper.granted(CALL);
        }
    }
    assert_eq!(
        without_live(stepper.take()),
        [
            "version 2.1.316".to_owned(),
            format!("starting {CALL}"),
            r#"hook "allow" {"command":"x"}"#.to_owned(),
            format!(r#"finished {CALL} Succeeded {{ output: "APPROVED" }}"#),
            "close input".to_owned(),
        ]
    );
    assert_eq!(completed(stepper).0.len(), 2);
}

/// I09, L12: a second write of the reply is denied and called again later.
#[test]
fn a_second_write_of_a_reply_is_denied() {
    let mut stepper = play(lines!("two_calls_defer_deny"));
    let name = "mcp__tools__create_refund";
    assert_eq!(
        without_live(stepper.take()),
        [
            "version 2.1.316".to_owned(),
            r#"hook "defer""#.to_owned(),
            format!(
                r#"hook "deny" "{name} did not run. Another call of this reply waits for its result, and only one can wait at a time. Call {name} again by itself.""#
            ),
            "close input".to_owned(),
        ]
    );
    let outcome = stepper.finish().unwrap();
    let RunModelOutcome::ToolCallsRequested { calls, .. } = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(calls[0].arguments, r#"{"orderId":"1"}"#);
}

/// I24, I25, L08: replies of sub-agents count; their texts and entries stay out.
#[test]
fn a_sub_agent_counts_and_stays_out_of_the_transcript() {
    let mut stepper = play(lines!("subagent_foreground"));
    let inline: Vec<String> = stepper
        .take()
        .into_iter()
        .filter(|it| it.starts_with("inline"))
        .collect();
    assert_eq!(
        inline,
        [
            "inline toolu_000000000000000000000008 Agent",
            "inline toolu_000000000000000000000010 lookup",
            "inline end toolu_000000000000000000000010 Succeeded",
            "inline end toolu_000000000000000000000008 Succeeded",
        ]
    );
    let (messages, usage) = completed(stepper);
    assert_eq!(usage.model_calls, 4);
    let all: Vec<TranscriptEntry> = messages.iter().flat_map(|it| entries(&it.item)).collect();
    assert_eq!(mirrored(lines!("subagent_foreground")), all);
    assert!(all.iter().all(|it| !it.head().unwrap().is_sidechain));
}

/// G5: unknown names are refused by the CLI itself, and the audit knows it; StructuredOutput passes.
#[test]
fn the_clis_own_refusals_and_tools_are_no_gap() {
    assert_eq!(completed(play(lines!("unknown_tool_names"))).0.len(), 5);
    let mut stepper = play(lines!("structured_output"));
    assert_eq!(
        without_live(stepper.take()),
        ["version 2.1.316", r#"hook "allow""#, "close input"]
    );
    assert_eq!(completed(stepper).0.len(), 2);
}

/// I25: reasoning is live text of its own kind.
#[test]
fn reasoning_is_live_text_of_its_own_kind() {
    let live: Vec<String> = play(lines!("thinking"))
        .take()
        .into_iter()
        .filter(|it| it.starts_with("live"))
        .collect();
    assert_eq!(
        live,
        [
            "live Reasoning let me see ",
            "live Reasoning what to do",
            "live Text Visi",
            "live Text ble.",
            "live Reasoning second ",
            "live Reasoning thought",
            "live Text Don",
            "live Text e.",
        ]
    );
}

/// G5: a CLI that ran both writes of a reply although the hook deferred the first (the
/// non-streaming fallback under bypassPermissions) fails the segment.
#[test]
fn an_ignored_deferral_fails_the_segment() {
    let (class, detail) = play(lines!("nonstream_bypass")).failure();
    assert_eq!(class, FailureClass::UndecidedCall);
    assert_eq!(
        detail,
        format!(
            "call {} has a result although it was not permitted",
            "toolu_000000000000000000000027"
        )
    );
}

/// Spec/cli-protocol.md 11: what each failed result stands for.
#[test]
fn each_failed_result_has_its_class() {
    for (lines, class) in [
        (lines!("error_400"), FailureClass::ApiError),
        (
            lines!("error_400_prompt_too_long"),
            FailureClass::PromptTooLong,
        ),
        (lines!("error_401"), FailureClass::Authentication),
        (lines!("error_429"), FailureClass::RateLimited),
        (lines!("error_529"), FailureClass::Overloaded),
        (lines!("error_unreachable"), FailureClass::ApiError),
        (lines!("error_refusal"), FailureClass::ApiError),
        (lines!("error_max_turns"), FailureClass::MaxTurns),
        (lines!("error_max_budget"), FailureClass::BudgetExceeded),
        (lines!("error_no_such_resume"), FailureClass::CliContract),
    ] {
        let (found, detail) = play(lines).failure();
        assert_eq!(found, class, "{detail}");
    }
}

/// K07: a resumed call whose tool server is not declared fails the segment.
#[test]
fn an_unavailable_tool_fails_the_resume() {
    let mut stepper = Stepper::new(resumed(
        "create_refund",
        "{}",
        CallPlace::Step,
        ResumedFate::Final(ToolOutcome::OutcomeUnknown),
    ));
    stepper.play(lines!("unavailable"));
    assert_eq!(
        stepper.failure(),
        (
            FailureClass::CliContract,
            "the tool of the resumed call is not available".to_owned()
        )
    );
}
