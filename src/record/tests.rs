//! Golden files of the stored records: read for ever, and written the same way (G12).

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::*;
use crate::event::{DiagnosticCode, EndReason, EventKind, SessionEvent};
use crate::ids::{
    ClaudeSessionId, EventCursor, InterruptId, MessageId, SessionId, StepId, Timestamp, ToolCallId,
    TurnId,
};
use crate::policy::{ToolEffect, ToolPolicy};
use crate::turn::{CallPlace, RequestedCall, Usage};

/// Returns the content of a golden file, without the line end after it.
pub(crate) fn golden(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures/stored/v1")
        .join(name);
    let mut bytes = std::fs::read(&path).unwrap_or_else(|it| panic!("{}: {it}", path.display()));
    assert_eq!(bytes.pop(), Some(b'\n'), "{name}");
    bytes
}

/// The golden file is this value, and this value is written as the golden file.
fn check<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(name: &str, value: &T) {
    let stored = String::from_utf8(golden(name)).unwrap();
    assert_eq!(serde_json::to_string(value).unwrap(), stored, "{name}");
    let read: T = read_record("a golden file", stored.as_bytes()).unwrap();
    assert_eq!(read, *value, "{name}");
}

fn call_id(text: &str) -> ToolCallId {
    ToolCallId::new(text).unwrap()
}

fn requested() -> CallRecord {
    let session = SessionId::new("s").unwrap();
    let call = RequestedCall {
        tool_call_id: call_id("toolu_01"),
        tool_name: "create_refund".to_owned(),
        arguments: r#"{"order_id":7}"#.to_owned(),
        shown_arguments: None,
        policy: ToolPolicy::new(ToolEffect::NonIdempotentWrite),
        place: CallPlace::Step,
    };
    CallRecord::requested(&session, TurnId::new(1), &call, Timestamp(1_000))
}

fn finished() -> CallRecord {
    let mut record = requested();
    record.step_id = Some(StepId::new(3));
    record.status = CallStatus::OutcomeUnknown;
    record.starts = 1;
    let person = Some("ann".to_owned());
    record.decider = Some(Decider::new(Decision::Approve, person, Timestamp(2_000)));
    record.started_at = Some(Timestamp(3_000));
    record.finished_at = Some(Timestamp(4_000));
    record
}

/// G12: a record of a call, open and over.
#[test]
fn stored_call_records_are_read_and_written_byte_for_byte() {
    check("record_requested.json", &requested());
    check("record_outcome_unknown.json", &finished());
    let mut rejected = requested();
    rejected.status = CallStatus::Rejected;
    let message = Some("too much".to_owned());
    let decision = Decision::Reject { message };
    rejected.decider = Some(Decider::new(decision, None, Timestamp(2_000)));
    rejected.finished_at = Some(Timestamp(2_000));
    check("record_rejected.json", &rejected);
}

/// G12: how each call can end, as its output row holds it.
#[test]
fn stored_outcomes_are_read_and_written_byte_for_byte() {
    let outcomes = [
        ToolOutcome::Succeeded {
            output: "refunded".to_owned(),
        },
        ToolOutcome::Failed {
            error: "no such order".to_owned(),
        },
        ToolOutcome::Rejected {
            message: Some("too much".to_owned()),
        },
        ToolOutcome::Rejected { message: None },
        ToolOutcome::Skipped {
            reason: SkipReason::TurnEnded,
        },
        ToolOutcome::Skipped {
            reason: SkipReason::EarlierWrite,
        },
        ToolOutcome::OutcomeUnknown,
    ];
    let stored = String::from_utf8(golden("outcomes.jsonl")).unwrap();
    let lines: Vec<_> = stored.split('\n').collect();
    let written: Vec<_> = outcomes
        .iter()
        .map(|it| String::from_utf8(it.write().unwrap()).unwrap())
        .collect();
    assert_eq!(written, lines);
    for (line, outcome) in lines.iter().zip(outcomes) {
        let read: ToolOutcome = read_record("an outcome", line.as_bytes()).unwrap();
        assert_eq!(read, outcome);
    }
}

/// One message of each role and each kind of item.
fn messages() -> Vec<StoredMessage> {
    let entry = |text: &str| TranscriptEntry::from_text(text.to_owned()).unwrap();
    let transcript = |entries| {
        let claude_session = ClaudeSessionId::new("11111111-2222-4333-8444-555555555555").unwrap();
        FrameworkItem::claude_transcript(claude_session, entries).unwrap()
    };
    let lines = [
        (
            MessageRole::User,
            "Refund order 7",
            FrameworkItem::user_prompt("Refund order 7").unwrap(),
        ),
        (
            MessageRole::Hidden,
            "",
            transcript(vec![entry(
                r#"{"type":"queue-operation","b":1e2,"a":12345678901234567890123}"#,
            )]),
        ),
        (
            MessageRole::Assistant,
            "I will refund it.",
            transcript(vec![
                entry(r#"{"type":"user","uuid":"u1","lone":"\ud83d"}"#),
                entry(r#"{"type":"assistant","uuid":"u2","parentUuid":"u1","s":"\u00e4\/"}"#),
            ]),
        ),
        (
            MessageRole::Tool,
            "refunded",
            transcript(vec![entry(r#"{"type":"user","uuid":"u3"}"#)]),
        ),
        (
            MessageRole::Note,
            "[The previous turn failed (api_error) and its answer is lost.]",
            FrameworkItem::turn_failure_note(
                "[The previous turn failed (api_error) and its answer is lost.]",
            )
            .unwrap(),
        ),
        (
            MessageRole::Assistant,
            "of another runner",
            FrameworkItem::from_text(r#"{"kind":"of_a_host","b":2,"a":1}"#.to_owned()).unwrap(),
        ),
    ];
    let numbered = lines.into_iter().zip(1..);
    numbered
        .map(|((role, text, item), sequence)| {
            let turn_id = TurnId::new(1);
            let at = Timestamp(1_000 + sequence);
            let mut message =
                StoredMessage::new(sequence, turn_id, role, text.to_owned(), at, item);
            message.tool_call_id = (role == MessageRole::Tool).then(|| call_id("toolu_01"));
            message
        })
        .collect()
}

/// G11, G12: the lines of a chunk, with transcript entries as the CLI wrote them.
#[test]
fn stored_messages_are_read_and_written_byte_for_byte() {
    let mut stored = golden("messages.jsonl");
    stored.push(b'\n');
    let messages = messages();
    assert_eq!(
        String::from_utf8(encode_chunk(&messages).unwrap()).unwrap(),
        String::from_utf8(stored.clone()).unwrap()
    );
    assert_eq!(decode_chunk(&stored).unwrap(), messages);
    let kinds: Vec<_> = messages
        .iter()
        .map(|it| it.framework_item.content().unwrap())
        .collect();
    assert!(matches!(
        kinds.as_slice(),
        [
            ItemContent::UserPrompt(_),
            ItemContent::ClaudeTranscript(_),
            ItemContent::ClaudeTranscript(_),
            ItemContent::ClaudeTranscript(_),
            ItemContent::TurnFailureNote(_),
            ItemContent::Other(_),
        ]
    ));
}

/// One event of each kind.
fn events() -> Vec<SessionEvent> {
    use EventKind::*;
    let (message_id, step_id) = (MessageId::new(1), StepId::new(1));
    let (attempt, tool_call_id) = (1, call_id("toolu_01"));
    let interrupt_id = InterruptId::of_call(TurnId::new(1), &tool_call_id);
    let tool_name = "create_refund".to_owned();
    let step = |step, tool_call_id| StepStarted {
        step_id,
        step,
        tool_call_id,
    };
    let finished = |status| ToolCallFinished {
        tool_call_id: tool_call_id.clone(),
        status,
    };
    let kinds = vec![
        SessionStarted,
        MessageQueued { message_id },
        TurnStarted { message_id },
        step(crate::event::StepKind::RunModel, None),
        step(
            crate::event::StepKind::AwaitToolApproval,
            Some(tool_call_id.clone()),
        ),
        step(crate::event::StepKind::CallTool, Some(tool_call_id.clone())),
        step(
            crate::event::StepKind::CallSingleAttemptTool,
            Some(tool_call_id.clone()),
        ),
        step(crate::event::StepKind::ResumeTurn, None),
        AttemptStarted { step_id, attempt },
        AttemptFailed {
            step_id,
            attempt,
            class: crate::failure::FailureClass::Overloaded,
            retry_at: Some(Timestamp(9_000)),
        },
        AttemptSuperseded { step_id, attempt },
        ToolCallStarted {
            tool_call_id: tool_call_id.clone(),
            tool_name: tool_name.clone(),
        },
        finished(CallStatus::Succeeded),
        finished(CallStatus::Failed),
        finished(CallStatus::Rejected),
        finished(CallStatus::Skipped),
        finished(CallStatus::OutcomeUnknown),
        InterruptRequested {
            interrupt_id: interrupt_id.clone(),
            tool_call_id: tool_call_id.clone(),
            tool_name,
            effect: ToolEffect::NonIdempotentWrite,
            expires_at: None,
        },
        InterruptResolved {
            interrupt_id: interrupt_id.clone(),
            approved: false,
        },
        TurnSuspended,
        TurnResumed,
        MessageCommitted { sequence: 4 },
        UsageReported {
            usage: Usage {
                input_tokens: 1,
                cached_input_tokens: 2,
                output_tokens: 3,
                model_calls: 4,
                cost_nano_usd: 5,
            },
        },
        TurnCompleted,
        TurnFailed {
            class: crate::failure::FailureClass::PromptTooLong,
        },
        InterruptRequested {
            interrupt_id: interrupt_id.clone(),
            tool_call_id,
            tool_name: "refund".to_owned(),
            effect: ToolEffect::NonIdempotentWrite,
            expires_at: Some(Timestamp(9_000)),
        },
        InterruptExpired { interrupt_id },
        TurnCancelRequested,
        TurnCancelled,
        MessageDeleted { message_id },
        MessageSteered { message_id },
        MessageUndelivered { message_id },
        SettingsChanged { revision: 1 },
        SessionClosing {
            reason: EndReason::Closed,
        },
        SessionEnded {
            reason: EndReason::TimedOut,
        },
        SessionForked {
            from: SessionId::new("other").unwrap(),
            last_turn: TurnId::new(3),
        },
        SessionEnded {
            reason: EndReason::StateLimit,
        },
        Diagnostic {
            code: DiagnosticCode::SessionBytes50,
        },
        Diagnostic {
            code: DiagnosticCode::SessionBytes80,
        },
        Diagnostic {
            code: DiagnosticCode::SessionBytes95,
        },
        TurnFailed {
            class: crate::failure::FailureClass::SessionFull,
        },
    ];
    let numbered = kinds.into_iter().zip(1..);
    numbered
        .map(|(kind, cursor)| {
            let turn_id = (cursor > 2).then(|| TurnId::new(1));
            SessionEvent::new(EventCursor(cursor), Timestamp(1_000), turn_id, kind)
        })
        .collect()
}

/// G12: each kind of event, and a kind that this version does not know.
#[test]
fn stored_events_are_read_and_written_byte_for_byte() {
    // The first file trained a dictionary, and so never changes.
    let files = ["events.jsonl", "later_events.jsonl"];
    let stored = files.map(|it| String::from_utf8(golden(it)).unwrap());
    let stored = stored.join("\n");
    let events = events();
    let written: Vec<_> = events
        .iter()
        .map(|it| serde_json::to_string(it).unwrap())
        .collect();
    assert_eq!(written, stored.split('\n').collect::<Vec<_>>());
    for (line, event) in written.iter().zip(events) {
        let read: SessionEvent = read_record("an event", line.as_bytes()).unwrap();
        assert_eq!(read, event);
    }
    let newer = r#"{"format":1,"cursor":7,"at":1000,"kind":"of_a_newer_version","with":{"x":1}}"#;
    let read: SessionEvent = read_record("an event", newer.as_bytes()).unwrap();
    let expected = SessionEvent::new(EventCursor(7), Timestamp(1_000), None, EventKind::Unknown);
    assert_eq!(read, expected);
}

/// G12: a name that this version does not know costs an event nothing but this name; a record with
/// one is refused and not read as something else.
#[test]
fn a_name_of_a_newer_version_is_shown_as_unrecognized() {
    use crate::event::StepKind;
    use crate::failure::FailureClass;
    let kind_of = |kind: &str, fields: &str| {
        let event = format!(r#"{{"format":1,"cursor":7,"at":1000,"kind":"{kind}",{fields}}}"#);
        read_record::<SessionEvent>("an event", event.as_bytes()).map(|it| it.kind)
    };
    let step_id = StepId::new(1);
    let class = FailureClass::Unrecognized;
    for (kind, fields, expected) in [
        (
            "step_started",
            r#""step_id":"s1","step":"OfTomorrow""#,
            EventKind::StepStarted {
                step_id,
                step: StepKind::Unrecognized,
                tool_call_id: None,
            },
        ),
        (
            "attempt_failed",
            r#""step_id":"s1","attempt":1,"class":"of_tomorrow","retry_at":null"#,
            EventKind::AttemptFailed {
                step_id,
                attempt: 1,
                class,
                retry_at: None,
            },
        ),
        (
            "turn_failed",
            r#""class":"of_tomorrow""#,
            EventKind::TurnFailed { class },
        ),
        (
            "tool_call_finished",
            r#""tool_call_id":"toolu_01","status":"of_tomorrow""#,
            EventKind::ToolCallFinished {
                tool_call_id: call_id("toolu_01"),
                status: CallStatus::Unrecognized,
            },
        ),
    ] {
        assert_eq!(kind_of(kind, fields).unwrap(), expected);
    }
    // What is no name at all is no event.
    let damaged = kind_of("turn_failed", r#""class":7"#).unwrap_err();
    assert!(matches!(damaged, RecordError::Damaged { .. }));

    let stored = String::from_utf8(golden("record_requested.json")).unwrap();
    let status = r#""status":"requested""#;
    for name in ["of_tomorrow", "unrecognized"] {
        let newer = stored.replace(status, &format!(r#""status":"{name}""#));
        assert_ne!(newer, stored);
        let error = read_record::<CallRecord>("a record", newer.as_bytes()).unwrap_err();
        assert!(matches!(error, RecordError::Damaged { .. }));
    }
}

/// G12: a record of a newer version is refused by its format before anything else of it is read.
#[test]
fn a_newer_record_is_refused() {
    let newer = format!(r#"{{"shape":"unknown","format":{}}}"#, FORMAT + 1);
    let found_by = |error| match error {
        RecordError::TooNew { found, .. } => found,
        RecordError::Damaged { what, source } => panic!("{what}: {source}"),
    };
    let bytes = newer.as_bytes();
    let call = read_record::<CallRecord>("a record", bytes).unwrap_err();
    let event = read_record::<SessionEvent>("an event", bytes).unwrap_err();
    let mut chunk = golden("messages.jsonl");
    chunk.push(b'\n');
    chunk.extend(bytes);
    let message = decode_chunk(&chunk).unwrap_err();
    let outcome = read_record::<ToolOutcome>("an outcome", bytes).unwrap_err();
    for error in [call, event, message, outcome] {
        assert_eq!(found_by(error), FORMAT + 1);
    }
}

/// G12: a field of a newer version survives a read and a write of a record.
#[test]
fn an_unknown_field_of_a_record_survives() {
    let stored = String::from_utf8(golden("record_requested.json")).unwrap();
    let newer = stored.replace(
        r#"{"format":1,"#,
        r#"{"format":1,"new_field":{"b":1,"a":[2]},"#,
    );
    let record: CallRecord = read_record("a record", newer.as_bytes()).unwrap();
    let written: serde_json::Value =
        serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
    assert_eq!(
        written,
        serde_json::from_str::<serde_json::Value>(&newer).unwrap()
    );
}
