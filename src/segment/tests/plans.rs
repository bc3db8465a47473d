//! How a turn goes on from its last checkpoint (spec/cli-protocol.md 17c to 17f).

use super::*;
use crate::ids::ClaudeSessionId;

const FIELDS: &str = r#""timestamp":"2026-01-01T00:00:00.000Z","userType":"external","cwd":"/w","sessionId":"c1","version":"2.1.316""#;

fn entry(text: &str) -> TranscriptEntry {
    TranscriptEntry::from_text(text.to_owned()).unwrap()
}

/// A conversation with a prompt and a reply that asks for these calls; the reply is only announced
/// when `announced`.
fn asked(calls: &[(&str, &str)], announced: bool) -> Conversation {
    let prompt = format!(
        r#"{{"parentUuid":null,"isSidechain":false,"type":"user","message":{{"role":"user","content":"go"}},"uuid":"p",{FIELDS}}}"#
    );
    let mut conversation = Conversation {
        claude_session: ClaudeSessionId::new("c1").ok(),
        entries: vec![entry(&prompt)],
        ..Conversation::default()
    };
    let mut parent = "p".to_owned();
    for (id, tool) in calls {
        let body = format!(
            r#""isSidechain":false,"type":"assistant","message":{{"id":"m1","content":[{{"type":"tool_use","id":"{id}","name":"{tool}","input":{{"n":1}}}}]}},"uuid":"use-{id}""#
        );
        if announced {
            let line = entry(&format!("{{{body}}}"));
            conversation.provisional.push(line);
        } else {
            let line = entry(&format!(r#"{{"parentUuid":"{parent}",{body},{FIELDS}}}"#));
            conversation.entries.push(line);
        }
        parent = format!("use-{id}");
    }
    conversation
}

fn record(id: &str, tool: &str, place: CallPlace, fate: ResumedFate) -> ResumedCall {
    ResumedCall::new(ToolCallId::new(id).unwrap(), tool, "{}", place, fate)
}

fn is_done(text: &str) -> ResumedFate {
    ResumedFate::Final(ToolOutcome::Succeeded {
        output: text.to_owned(),
    })
}

fn live_plan() -> SegmentPlan {
    let mut plan = plan(SegmentStart::Turn {
        prompt: Vec::new(),
        uuid: None,
    });
    plan.path = GatedPath::Live;
    plan.offered = BTreeSet::from(["Read".to_owned(), "Bash".to_owned()]);
    plan
}

/// Shows an entry as what it answers, with its parent.
fn shown(entries: &[TranscriptEntry]) -> Vec<String> {
    let show = |it: &TranscriptEntry| {
        let it: Value = serde_json::from_str(it.as_str()).unwrap();
        let result = &it["message"]["content"][0];
        if it["type"] == "attachment" {
            format!("defer {}", it["attachment"]["toolUseID"].as_str().unwrap())
        } else if it["type"] == "assistant" {
            format!("use {}", result["id"].as_str().unwrap())
        } else {
            let text = result["content"][0]["text"].as_str().unwrap();
            let error = if result["is_error"] == true { "!" } else { "" };
            format!("{}{error}: {text}", result["tool_use_id"].as_str().unwrap())
        }
    };
    entries.iter().map(show).collect()
}

/// 17d, 17e: every recorded outcome becomes a result in the model's order, and the one tool that may
/// run is left to the CLI; announced lines get their place first, and their messages stay.
#[test]
fn outcomes_become_results_and_one_call_is_left_to_the_cli() {
    let calls = [
        ("c1", "mcp__tools__create_refund"),
        ("c2", "Bash"),
        ("c3", "mcp__tools__set_label"),
    ];
    let records = [
        record("c1", "create_refund", CallPlace::Step, is_done("refunded")),
        record("c2", "Bash", CallPlace::Segment, ResumedFate::Permitted),
        record(
            "c3",
            "set_label",
            CallPlace::Step,
            ResumedFate::Final(ToolOutcome::Rejected { message: None }),
        ),
    ];
    let made = super::super::resume(&live_plan(), asked(&calls, true), &records).unwrap();
    let added = &made.entries[made.entries.len() - made.added..];
    assert_eq!(
        shown(added),
        [
            "use c1",
            "use c2",
            "use c3",
            "c1: refunded",
            "c3!: The user rejected this call.",
            "defer c2",
        ]
    );
    assert_eq!(made.told.len(), 3);
    assert_eq!(made.call.unwrap().tool_call_id.as_str(), "c2");
    assert!(!made.answered.contains(&ToolCallId::new("c2").unwrap()));
    // Linear, with the fields of the session, and the same bytes each time.
    for pair in made.entries.windows(2) {
        let head = pair[0].head().unwrap();
        assert_eq!(pair[1].head().unwrap().parent_uuid, head.uuid);
        assert!(pair[1].as_str().ends_with(&format!("{FIELDS}}}")));
    }
    let again = super::super::resume(&live_plan(), asked(&calls, true), &records).unwrap();
    assert_eq!(again.entries, made.entries);
}

/// 17c: an inline call that was interrupted is run again by the CLI; a second one, and one of a tool
/// that is not offered any more, are told that they did not finish.
#[test]
fn one_interrupted_inline_call_runs_again() {
    let calls = [("c1", "Gone"), ("c2", "Read"), ("c3", "mcp__tools__lookup")];
    let made = super::super::resume(&live_plan(), asked(&calls, false), &[]).unwrap();
    let added = shown(&made.entries[made.entries.len() - made.added..]);
    assert_eq!(added.len(), 3);
    assert!(added[0].starts_with("c1!: ") && added[1].starts_with("c3!: "));
    assert_eq!(added[2], "defer c2");
    assert!(made.call.is_none());
}

/// 17f: a transcript whose calls all have results is gone on with as it is.
#[test]
fn an_answered_reply_needs_nothing() {
    let mut conversation = asked(&[("c1", "mcp__tools__lookup")], false);
    conversation.provisional.push(entry(
        r#"{"isSidechain":false,"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":[{"type":"text","text":"fine"}]}]},"uuid":"r1"}"#,
    ));
    let made = super::super::resume(&live_plan(), conversation, &[]).unwrap();
    assert_eq!((made.added, made.told.len()), (1, 1));
    assert_eq!(shown(&made.entries[2..]), ["c1: fine"]);
}

/// spec/core.md 7: texts that came in stand behind every result, and then no call is left to the CLI: it
/// takes a text or a deferral, not both.
#[test]
fn texts_that_came_in_stand_behind_all_results() {
    let calls = [("c1", "Read"), ("c2", "mcp__tools__create_refund")];
    let unread = ["rather this", "and that"].map(str::to_owned);
    let steered = |calls: &[(&str, &str)]| Conversation {
        unread: unread.to_vec(),
        ..asked(calls, true)
    };
    let skipped = record("c2", "create_refund", CallPlace::Step, is_done("refunded"));
    let made = super::super::resume(&live_plan(), steered(&calls), &[skipped]).unwrap();
    assert!(made.call.is_none());
    let (spoken, texts) = made.entries.split_at(made.entries.len() - 2);
    let results = shown(&spoken[spoken.len() - 2..]);
    assert!(results[0].starts_with("c1!: "), "{results:?}");
    assert_eq!(results[1], "c2: refunded");
    for (text, expected) in texts.iter().zip(&unread) {
        let text: Value = serde_json::from_str(text.as_str()).unwrap();
        assert_eq!(text["message"]["content"][0]["text"], expected.as_str());
    }
    let permitted = record("c1", "Bash", CallPlace::Segment, ResumedFate::Permitted);
    let both = steered(&[("c1", "Bash")]);
    let failure = super::super::resume(&live_plan(), both, &[permitted]).unwrap_err();
    assert_eq!(failure.class, FailureClass::Runner);
}

/// design.md 4: what the CLI could not go on from is refused before it starts.
#[test]
fn what_cannot_be_resumed_is_refused() {
    let permitted = |id: &str| record(id, "Bash", CallPlace::Segment, ResumedFate::Permitted);
    let two = asked(&[("c1", "Bash"), ("c2", "Bash")], false);
    let stranger = record("c9", "create_refund", CallPlace::Step, is_done("x"));
    let mut broken = asked(&[("c1", "Bash")], false);
    broken
        .entries
        .push(entry(r#"{"parentUuid":"nobody","uuid":"x"}"#));
    for (conversation, records, what) in [
        (Conversation::default(), vec![], "without a transcript"),
        (two, vec![permitted("c1"), permitted("c2")], "only one call"),
        (asked(&[], false), vec![stranger], "lacks a recorded call"),
        (
            broken,
            vec![permitted("c1")],
            "follows one that is not there",
        ),
    ] {
        let failure = super::super::resume(&live_plan(), conversation, &records).unwrap_err();
        assert_eq!(failure.class, FailureClass::Runner);
        assert!(failure.detail.contains(what), "{}", failure.detail);
    }
}
