//! Whatever bytes a CLI writes, and however the pipe splits them, reading them never panics, and
//! the lines do not depend on the split.
//!
//! Seeds: the recorded lines in `fixtures/segment` and `fixtures/lines`. `ci.sh` runs it for
//! seconds; `cargo fuzz run cli_output` for as long as you like.
#![no_main]

#[path = "../../src/transport/framing.rs"]
mod framing;

use std::collections::{BTreeMap, BTreeSet};

use abide::ids::{ClaudeSessionId, ToolCallId};
use abide::policy::{Approval, ToolEffect, ToolPolicies, ToolPolicy};
use abide::protocol::{AgentSetup, decode_line};
use abide::record::ToolOutcome;
use abide::segment::{
    Action, GatedPath, HooksAnswer, ProcessEnd, Segment, SegmentPlan, SegmentStart, Standing,
};
use abide::turn::{CallPlace, ResumedCall, ResumedFate, SegmentEvent};
use framing::LineFramer;
use libfuzzer_sys::fuzz_target;

/// Short enough that the fuzzer meets it.
const LINE_BYTES_MAX: usize = 64 * 1024;

fuzz_target!(|stream: &[u8]| {
    let lines = lines_of(stream, stream.len().max(1));
    assert_eq!(lines, lines_of(stream, 1 + stream.len() % 61));
    for (path, start) in starts() {
        read_as(path, start, &lines);
    }
});

fn read_as(path: GatedPath, start: SegmentStart, lines: &[Vec<u8>]) {
    let mut segment = Segment::new(plan(path, start)).expect("the plan is sound");
    drain(&mut segment);
    for line in lines {
        match decode_line(line) {
            Ok(frame) => segment.handle_frame(frame),
            Err(error) => segment.handle_protocol_error(&error),
        }
        drain(&mut segment);
    }
    segment.handle_end_of_output(ProcessEnd {
        exit: "exit status 1",
        stderr_tail: &String::from_utf8_lossy(lines.last().map_or(b"", Vec::as_slice)),
    });
    drain(&mut segment);
    assert!(segment.is_ended());
    let _ = segment.finish();
}

fn lines_of(stream: &[u8], chunk: usize) -> Vec<Vec<u8>> {
    let mut framer = LineFramer::new(LINE_BYTES_MAX);
    let mut lines = Vec::new();
    for bytes in stream.chunks(chunk) {
        framer.space().extend_from_slice(bytes);
        loop {
            match framer.next_line() {
                Ok(Some(line)) => lines.push(line),
                Ok(None) => break,
                Err(framing::LineTooLong) => return lines,
            }
        }
    }
    lines.extend(framer.finish());
    lines
}

/// Answers everything that the segment asks, as a willing session and tool server would.
fn drain(segment: &mut Segment) {
    loop {
        if let Some(frame) = segment.poll_transmit() {
            let line = frame.encode().expect("our own frames can be written");
            assert!(!line.contains('\n'));
            continue;
        }
        match segment.poll_action() {
            Some(Action::Deliver(SegmentEvent::CallStarting { tool_call_id })) => {
                segment.handle_call_granted(&tool_call_id);
            }
            Some(Action::Deliver(SegmentEvent::Checkpoint(_))) => {
                segment.handle_checkpoint_committed();
            }
            Some(Action::Deliver(SegmentEvent::CallStanding { tool_call_id })) => {
                segment.handle_call_standing(&tool_call_id, standing_of(&tool_call_id));
            }
            Some(Action::AskHooks(question)) => {
                let answer = HooksAnswer::Continue {
                    updated_input: None,
                    needs_person: Some(question.input.get().len() % 2 == 0),
                };
                segment.handle_hooks_answer(&question.tool_call_id, answer);
            }
            Some(Action::ServeMcp {
                request_id,
                message,
                ..
            }) => {
                segment.handle_mcp_response(request_id, message);
            }
            Some(_) => {}
            None => return,
        }
    }
}

/// The session's word about a call: any of the three, the same for the same call.
fn standing_of(call: &ToolCallId) -> Standing {
    match call.as_str().len() % 3 {
        0 => Standing::Permitted {
            changed_arguments: None,
        },
        1 => Standing::Final(ToolOutcome::OutcomeUnknown),
        _ => Standing::Open,
    }
}

/// A turn on either path, a call that was permitted, and a call whose record is final.
fn starts() -> [(GatedPath, SegmentStart); 4] {
    let call = |tool: &str, place, fate| SegmentStart::Resume {
        call: ResumedCall::new(
            ToolCallId::new("toolu_000000000000000000000001").expect("an id"),
            tool,
            r#"{"orderId":"7","amount":5}"#,
            place,
            fate,
        ),
    };
    let prompt = vec!["go".to_owned()];
    let told = ResumedFate::Final(ToolOutcome::OutcomeUnknown);
    let turn = SegmentStart::Turn { prompt, uuid: None };
    [
        (GatedPath::Live, turn.clone()),
        (GatedPath::Native, turn),
        (
            GatedPath::Native,
            call("Bash", CallPlace::Segment, ResumedFate::Permitted),
        ),
        (
            GatedPath::Native,
            call("create_refund", CallPlace::Step, told),
        ),
    ]
}

fn plan(path: GatedPath, start: SegmentStart) -> SegmentPlan {
    let resume = match start {
        SegmentStart::Turn { .. } => None,
        _ => ClaudeSessionId::new("00000000-0000-4000-8000-000000000003").ok(),
    };
    let read = ToolPolicy::new(ToolEffect::Read);
    let write = ToolPolicy::new(ToolEffect::NonIdempotentWrite);
    SegmentPlan {
        server_name: "tools".to_owned(),
        custom_tools: BTreeMap::from([
            ("lookup".to_owned(), read),
            ("create_refund".to_owned(), write),
        ]),
        policies: ToolPolicies::new()
            .with("Read", ToolPolicy::new(ToolEffect::Read))
            .with(
                "Bash",
                ToolPolicy::new(ToolEffect::Unclassified).with_approval(Approval::Required),
            ),
        // A resumed call is never asked about again, other calls are.
        asks_hooks: resume.is_some(),
        // A rule of the application says what the hooks say, after them.
        ruled: (resume.is_some().then(|| "Read".to_owned()).into_iter()).collect(),
        has_refusing_rules: false,
        setup: AgentSetup::default(),
        model: None,
        resume,
        answered: BTreeSet::new(),
        offered: BTreeSet::from(["Read".to_owned(), "Bash".to_owned()]),
        path,
        is_warm: false,
        stays: false,
        start,
    }
}
