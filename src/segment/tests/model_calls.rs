//! What a segment reports about its model calls.

use super::*;
use crate::model_call::ModelCallMetadata;

const MODEL: &str = "claude-sonnet-5";

fn started() -> Stepper {
    let mut stepper = Stepper::new(SegmentPlan {
        model: Some("sonnet".to_owned()),
        ..plan(SegmentStart::Turn {
            prompt: vec!["hi".to_owned()],
            uuid: None,
        })
    });
    stepper.json(json!({"type": "system", "subtype": "init", "session_id": "c1", "model": MODEL}));
    stepper
}

fn reply(stepper: &mut Stepper, id: &str, model: Option<&str>, parent: Option<&str>) {
    let mut message = json!({"id": id, "content": [{"type": "text", "text": "a"}]});
    if let Some(model) = model {
        message["model"] = json!(model);
    }
    stepper.json(json!({"type": "assistant", "message": message, "parent_tool_use_id": parent}));
}

fn stream(stepper: &mut Stepper, event: Value) {
    stepper.json(json!({"type": "stream_event", "event": event, "parent_tool_use_id": null}));
}

fn streamed(stepper: &mut Stepper, id: &str, reason: Value) {
    stream(
        stepper,
        json!({"type": "message_start", "message": {"id": id}}),
    );
    stream(
        stepper,
        json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {}}),
    );
    stream(stepper, json!({"type": "message_stop"}));
}

fn known(stepper: &mut Stepper) -> ModelCallMetadata {
    stepper.segment.poll_model_calls().expect("there is news")
}

/// J05, J09: the provider is the one that the CLI reports for the model that was asked for, under the
/// conventions' name; without such a report there is none.
#[test]
fn the_provider_is_what_the_cli_reports_for_the_requested_model() {
    let served = |provider: &str| json!({MODEL: {"provider": provider}});
    for (usage, expected) in [
        (served("firstParty"), Some("anthropic")),
        (served("bedrock"), Some("aws.bedrock")),
        (served("mantle"), Some("aws.bedrock")),
        (served("vertex"), Some("gcp.vertex_ai")),
        (served("foundry"), Some("foundry")),
        (served("anthropicAws"), Some("anthropicAws")),
        (served("anthropicGoogleCloud"), Some("anthropicGoogleCloud")),
        (
            served("one that comes one day"),
            Some("one that comes one day"),
        ),
        (served("gateway"), None),
        (json!({MODEL: {}}), None),
        (json!({MODEL: {"provider": null}}), None),
        (
            json!({"claude-haiku-4-5": {"provider": "firstParty"}}),
            None,
        ),
        (json!({}), None),
        (Value::Null, None),
        // What only spans read breaks no turn.
        (json!({MODEL: {"provider": 7}}), None),
        (json!(7), None),
    ] {
        let mut stepper = started();
        stepper.reply("msg_1", "hi");
        stepper.result(json!({"modelUsage": usage}));
        let known = known(&mut stepper);
        assert_eq!(known.provider_name.as_deref(), expected, "{usage}");
        assert_eq!(known.request_model.as_deref(), Some(MODEL));
        assert!(stepper.finish().is_ok(), "{usage}");
    }
    let mut stepper = started();
    stepper.reply("msg_1", "hi");
    stepper.result(json!({}));
    assert_eq!(known(&mut stepper).provider_name, None);
}

/// J03: the model that was asked for is the options' until the CLI names the one that it asks.
#[test]
fn the_requested_model_is_the_clis_own_word() {
    let mut stepper = Stepper::new(SegmentPlan {
        model: Some("sonnet".to_owned()),
        ..plan(SegmentStart::Turn {
            prompt: vec!["hi".to_owned()],
            uuid: None,
        })
    });
    assert_eq!(known(&mut stepper).request_model.as_deref(), Some("sonnet"));
    // Nothing is said twice.
    assert_eq!(stepper.segment.poll_model_calls(), None);
    stepper.json(json!({"type": "system", "subtype": "init", "session_id": "c1"}));
    assert_eq!(stepper.segment.poll_model_calls(), None);
    stepper.json(json!({"type": "system", "subtype": "init", "session_id": "c1", "model": MODEL}));
    assert_eq!(known(&mut stepper).request_model.as_deref(), Some(MODEL));
}

/// J04: the model that answered is named when every reply of the segment, those of sub-agents included,
/// names the same; J03, J05, J07: with a sub-agent's call nobody knows what was asked for and where.
#[test]
fn models_that_differ_are_not_named() {
    for (replies, expected) in [
        (&[(Some("a"), None), (Some("a"), None)][..], Some("a")),
        (&[(Some("a"), None), (Some("b"), None)], None),
        (
            &[(Some("a"), None), (Some("b"), None), (Some("a"), None)],
            None,
        ),
        (&[(Some("a"), None), (None, None)], None),
        (&[(None, None), (Some("a"), None)], None),
        (
            &[(Some("a"), None), (Some("a"), Some("toolu_1"))],
            Some("a"),
        ),
        (&[(Some("a"), None), (Some("b"), Some("toolu_1"))], None),
        // A text of the CLI itself is no reply.
        (&[(Some("a"), None), (Some("<synthetic>"), None)], Some("a")),
        (&[], None),
    ] {
        let mut stepper = started();
        for (at, (model, parent)) in replies.iter().enumerate() {
            reply(&mut stepper, &format!("msg_{at}"), *model, *parent);
        }
        let known = known(&mut stepper);
        assert_eq!(known.response_model.as_deref(), expected, "{replies:?}");
        let has_sub_agent = replies.iter().any(|(_, parent)| parent.is_some());
        let requested = (!has_sub_agent).then_some(MODEL);
        assert_eq!(known.request_model.as_deref(), requested, "{replies:?}");
    }
    // The last reply of a sub-agent stands in its own transcript alone (capture `subagent_foreground`).
    let mut stepper = started();
    reply(&mut stepper, "msg_1", Some("a"), None);
    let message = json!({"id": "msg_2", "model": "b", "content": []});
    stepper.json(
        json!({"type": "transcript_mirror", "filePath": "/p/c1/subagents/agent-1.jsonl",
        "entries": [{"type": "assistant", "uuid": "u", "message": message}]}),
    );
    let known = known(&mut stepper);
    assert_eq!(known.model_calls, 2);
    assert_eq!((known.request_model, known.response_model), (None, None));
}

/// J06, J08: the id and the finish reason are those of the only reply, as the model's stream says them;
/// neither another stream's reason nor the result's is taken for it.
#[test]
fn the_only_reply_has_an_id_and_a_finish_reason() {
    let facts = |stepper: &mut Stepper| {
        let known = known(stepper);
        (known.model_calls, known.response_id, known.finish_reason)
    };
    let text = |it: &str| Some(it.to_owned());
    let mut stepper = started();
    streamed(&mut stepper, "msg_1", json!("tool_use"));
    reply(&mut stepper, "msg_1", Some("a"), None);
    assert_eq!(facts(&mut stepper), (1, text("msg_1"), text("tool_use")));
    // A second one has taken their meaning.
    reply(&mut stepper, "msg_2", Some("a"), None);
    assert_eq!(facts(&mut stepper), (2, None, None));

    // A stream that broke, and a reply that was not streamed.
    let mut stepper = started();
    streamed(&mut stepper, "msg_1", json!("end_turn"));
    reply(&mut stepper, "msg_2", Some("a"), None);
    assert_eq!(facts(&mut stepper), (1, text("msg_2"), None));

    // A sub-agent's reply counts.
    let mut stepper = started();
    streamed(&mut stepper, "msg_1", json!("tool_use"));
    reply(&mut stepper, "msg_1", Some("a"), None);
    reply(&mut stepper, "msg_2", Some("a"), Some("toolu_1"));
    assert_eq!(facts(&mut stepper), (2, None, None));

    // The result's reason is the CLI's.
    let mut stepper = started();
    streamed(&mut stepper, "msg_1", Value::Null);
    stepper.reply("msg_1", "hi");
    stepper.result(json!({"stop_reason": "end_turn"}));
    assert_eq!(facts(&mut stepper), (1, text("msg_1"), None));
    assert!(stepper.finish().is_ok());
}
