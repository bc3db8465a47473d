//! Tools of other servers, and entries that are no messages.

use super::*;

/// E02, N30: a tool of another server has its policy under its full name, and under no other.
#[test]
fn a_tool_of_another_server_goes_by_its_full_name() {
    let read = ToolPolicy::new(ToolEffect::Read);
    let mut plan = plan(SegmentStart::Turn {
        prompt: vec!["go".to_owned()],
        uuid: None,
    });
    plan.policies = ToolPolicies::new()
        .with("mcp__docs__search", read)
        .with("fetch", read)
        .with("mcp__tools__create_refund", read);
    let mut stepper = Stepper::new(plan);
    stepper.take();
    for (id, tool, answer) in [
        ("toolu_1", "mcp__docs__search", r#"hook "allow""#),
        ("toolu_2", "mcp__tools__create_refund", r#"hook "defer""#),
    ] {
        stepper.hook("r", id, tool);
        assert_eq!(stepper.take()[0], answer, "{tool}");
    }
    let mut plan = super::plan(SegmentStart::Turn {
        prompt: vec!["go".to_owned()],
        uuid: None,
    });
    plan.policies = ToolPolicies::new().with("fetch", read);
    let mut stepper = Stepper::new(plan);
    stepper.take();
    stepper.hook("r", "toolu_3", "mcp__docs__fetch");
    assert_eq!(stepper.take(), [r#"hook "defer""#]);
}

/// L34, G11: what the CLI writes when it compacts its context stays in the transcript as it is.
#[test]
fn entries_of_a_compaction_are_kept() {
    let boundary = json!({"type": "system", "subtype": "compact_boundary", "uuid": "b1",
        "parentUuid": null, "logicalParentUuid": "u0", "compactMetadata": {"trigger": "auto", "preTokens": 1e5}});
    let summary = json!({"type": "user", "uuid": "b2", "parentUuid": "b1", "isCompactSummary": true,
        "message": {"role": "user", "content": "This session is being continued from another."}});
    let mut stepper = turn();
    stepper.mirror(boundary.clone());
    stepper.mirror(summary.clone());
    stepper.reply("m1", "hi");
    stepper.result(json!({}));
    let RunModelOutcome::TurnCompleted { messages, .. } = stepper.finish().unwrap() else {
        panic!("the turn is complete");
    };
    let [message] = &messages[..] else {
        panic!("{messages:?}");
    };
    assert_eq!(outline(message).0, "Assistant: hi");
    let kept: Vec<String> = entries(&message.item)
        .iter()
        .map(|it| it.as_str().to_owned())
        .collect();
    assert_eq!(kept[..2], [boundary.to_string(), summary.to_string()]);
    assert_eq!(kept.len(), 3);
}

/// Reports R43 and R44: a line that is cut, or that two entries share, is never part of a transcript;
/// a segment that was given one fails, and nothing is left out of a transcript without a word.
#[test]
fn cut_and_joined_entries_are_refused() {
    for text in [r#"{"type":"user","uu"#, r#"{"type":"user"}{"type":"user"}"#] {
        assert!(TranscriptEntry::from_text(text.to_owned()).is_err());
        let item =
            format!(r#"{{"kind":"claude_transcript","session_id":"c1","entries":[{text}]}}"#);
        assert!(FrameworkItem::from_text(item).is_err());
        let mut stepper = turn();
        stepper.json(
            json!({"type": "assistant", "uuid": "a1", "parent_tool_use_id": null,
            "message": {"id": "m1", "model": "m", "content": []}}),
        );
        stepper.line(&format!(
            r#"{{"type":"transcript_mirror","filePath":"/p/c1.jsonl","entries":[{text}]}}"#
        ));
        stepper.result(json!({}));
        assert_eq!(stepper.failure().0, FailureClass::CliContract);
    }
}
