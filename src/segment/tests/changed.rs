//! Recorded conversations with lost, repeated, swapped, foreign and changed lines: never a panic, and
//! never an allow that the record does not give.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;

macro_rules! recorded {
    ($($name:literal),*) => {
        [$(include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"), "/fixtures/segment/2.1.316/", $name, ".jsonl"
        ))),*]
    };
}

const RECORDED: &[&str] = &recorded![
    "plain",
    "inline_read",
    "defer",
    "two_calls_defer_deny",
    "resume_allow_text",
    "bash_approve",
    "bash_reject",
    "subagent_foreground",
    "structured_output",
    "error_529"
];

/// What a turn without a record may run inside its segment, under the plan of these tests.
const PERMITTED: [&str; 4] = ["Read", "Agent", "mcp__tools__lookup", "StructuredOutput"];

#[derive(Debug, Clone)]
enum Change {
    Lose,
    Repeat,
    Swap(prop::sample::Index),
    Replace(prop::sample::Index, prop::sample::Index),
    Byte(prop::sample::Index, u8),
    Cut(prop::sample::Index),
}

fn change() -> impl Strategy<Value = Change> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        Just(Change::Lose),
        Just(Change::Repeat),
        index().prop_map(Change::Swap),
        (index(), index()).prop_map(|(file, line)| Change::Replace(file, line)),
        (index(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        index().prop_map(Change::Cut),
    ]
}

fn changed(recorded: &str, changes: Vec<(prop::sample::Index, Change)>) -> Vec<Vec<u8>> {
    let mut lines: Vec<Vec<u8>> = recorded.lines().map(|it| it.as_bytes().to_vec()).collect();
    for (at, change) in changes {
        let at = at.index(lines.len());
        match change {
            Change::Lose if lines.len() > 1 => drop(lines.remove(at)),
            Change::Lose => {}
            Change::Repeat => lines.insert(at, lines[at].clone()),
            Change::Swap(other) => {
                let other = other.index(lines.len());
                lines.swap(at, other);
            }
            Change::Replace(file, line) => {
                let foreign: Vec<&str> = file.get(RECORDED).lines().collect();
                lines[at] = line.get(&foreign).as_bytes().to_vec();
            }
            Change::Byte(within, byte) if !lines[at].is_empty() => {
                let within = within.index(lines[at].len());
                lines[at][within] = byte;
            }
            Change::Byte(..) => {}
            Change::Cut(within) if !lines[at].is_empty() => {
                let within = within.index(lines[at].len());
                lines[at].truncate(within);
            }
            Change::Cut(_) => {}
        }
    }
    lines
}

/// The tools that each hook request was about.
type Asked = HashMap<String, HashSet<String>>;

fn feed(segment: &mut Segment, line: &[u8], asked: &mut Asked) {
    match decode_line(line) {
        Ok(frame) => {
            if let CliFrame::ControlRequest {
                request_id,
                request: ControlRequest::Hook(hook),
            } = &frame
            {
                let tool = hook.input.tool_name.clone().unwrap_or_default();
                asked.entry(request_id.clone()).or_default().insert(tool);
            }
            segment.handle_frame(frame);
        }
        Err(error) => segment.handle_protocol_error(&error),
    }
}

/// Does what the segment wants; returns the requests that were allowed.
fn allowed(segment: &mut Segment) -> Vec<String> {
    let mut allowed = Vec::new();
    loop {
        if let Some(frame) = segment.poll_transmit() {
            drop(frame.encode().unwrap());
            match frame {
                HostFrame::Hook {
                    request_id,
                    answer: HookAnswer::Allow { .. },
                }
                | HostFrame::Permission {
                    request_id,
                    answer: PermissionAnswer::Allow { .. },
                } => allowed.push(request_id),
                _ => {}
            }
        } else if let Some(action) = segment.poll_action() {
            if let Action::ServeMcp { request_id, .. } = action {
                segment.handle_mcp_failure(request_id);
            }
        } else {
            return allowed;
        }
    }
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 384,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    /// G1, G5: in a turn without a record, whatever the lines are, only what its policies run
    /// unasked is allowed; the segment always ends.
    #[test]
    fn a_turn_allows_only_what_its_policies_run_unasked(
        file in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), change()), 0..12),
    ) {
        let mut segment = Segment::new(plan(SegmentStart::Turn {
            prompt: vec!["go".to_owned()], uuid: None,
        }))
        .unwrap();
        let mut asked = Asked::new();
        for line in changed(file.get::<&str>(RECORDED), changes) {
            feed(&mut segment, &line, &mut asked);
            for request in allowed(&mut segment) {
                let tools = &asked[&request];
                prop_assert!(tools.iter().any(|it| PERMITTED.contains(&it.as_str())), "{tools:?}");
            }
        }
        segment.handle_end_of_output(ProcessEnd { exit: "signal 9", stderr_tail: "" });
        prop_assert!(segment.is_ended());
        drop(segment.finish());
    }

    /// G1, G3: a resumed call that nobody granted a start is never allowed, whatever the lines are.
    #[test]
    fn a_resumed_call_without_its_start_mark_is_never_allowed(
        file in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), change()), 0..12),
    ) {
        let id = ToolCallId::new("toolu_000000000000000000000001").unwrap();
        let call = ResumedCall::new(
            id, "Bash", r#"{"command":"x"}"#, CallPlace::Segment, ResumedFate::Permitted,
        );
        let mut segment = Segment::new(plan(SegmentStart::Resume { call })).unwrap();
        let mut asked = Asked::new();
        for line in changed(file.get::<&str>(RECORDED), changes) {
            feed(&mut segment, &line, &mut asked);
            for request in allowed(&mut segment) {
                let tools = asked.get(&request).cloned().unwrap_or_default();
                prop_assert!(tools.iter().any(|it| PERMITTED.contains(&it.as_str())), "{tools:?}");
            }
        }
    }
}
