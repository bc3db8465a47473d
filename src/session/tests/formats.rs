//! Golden files: what this version stored once is read for ever, and written the same way (G12).

use super::*;
use crate::ids::Tenant;
use crate::record::{FORMAT, RecordError, golden};

/// States in the phases that a session can be stored in, by the name of their golden file.
fn states() -> Vec<(&'static str, SessionState)> {
    let write = ToolEffect::NonIdempotentWrite;
    let mut all = Vec::new();
    let created = create(
        SessionId::new("s").unwrap(),
        FlowType::new("Flow").unwrap(),
        Some(Tenant::new("acme").unwrap()),
        BTreeMap::from([("order".to_owned(), "42".to_owned())]),
        "digest".to_owned(),
        None,
        START,
    );
    all.push(("state_idle.json", created.state));

    let mut world = World::started();
    world.send("and one more");
    world.begin_due();
    all.push(("state_run_model.json", world.state));

    let mut world = World::with_calls(vec![
        call("c1", write, CallPlace::Step),
        call("c2", write, CallPlace::Segment),
        asked_call("c3", ToolEffect::Read, CallPlace::Step),
    ]);
    all.push(("state_awaiting_approval.json", world.state.clone()));
    world.approve("c1");
    world.approve("c2");
    let message = Some("no".to_owned());
    let rejection = Resolution {
        interrupt_id: InterruptId::from_client("t1/c3"),
        decision: Decision::Reject { message },
        decided_by: Some("ann".to_owned()),
        digest: None,
        arguments: ResolvedArguments::AsAsked,
    };
    world.apply(Input::ResolveInterrupt(rejection)).unwrap();
    let attempt = world.begin_due();
    all.push(("state_call_started.json", world.state.clone()));
    world.tool_ends(&attempt, succeeded());
    let attempt = world.begin_due();
    let starting = SegmentEvent::CallStarting {
        tool_call_id: call_id("c2"),
    };
    assert_eq!(world.report(&attempt, starting), Reply::CallGranted);
    all.push(("state_call_started_in_segment.json", world.state.clone()));
    let mut limited = failure(FailureClass::RateLimited);
    limited.retry_after_ms = Some(30_000);
    world.end(&attempt, Err(limited));
    all.push(("state_retry.json", world.state.clone()));
    world.fail_turn();
    all.push(("state_after_failure.json", world.state));

    let mut world = World::with_calls(vec![with_deadline(call("c1", write, CallPlace::Step))]);
    all.push(("state_awaiting_with_deadline.json", world.state.clone()));
    world.update_settings(0, "other-model").unwrap();
    world.steer("rather this").unwrap();
    world.send("and one more");
    world.begin_due();
    world.cancel(Some("enough")).unwrap();
    world.close(CloseMode::Drain).unwrap();
    all.push(("state_cancelling_and_closing.json", world.state));

    let mut world = World::started();
    world.steer("rather this").unwrap();
    world.answer("first answer");
    all.push(("state_steering.json", world.state.clone()));
    world.close(CloseMode::Cancel).unwrap();
    all.push(("state_ended.json", world.state));

    // Stored before anybody counted bytes.
    for (_, state) in &mut all {
        state.size = None;
    }
    let mut world = World::started();
    world.measure(1_100, 1_000);
    all.push(("state_full.json", world.state));
    all
}

/// G12: the golden states are read, and today's machine stores exactly those bytes.
#[test]
fn stored_states_are_read_and_written_byte_for_byte() {
    for (name, state) in states() {
        let stored = golden(name);
        assert_eq!(SessionState::read(&stored).unwrap(), state, "{name}");
        let written = state.write().unwrap();
        assert_eq!(
            String::from_utf8(written).unwrap(),
            String::from_utf8(stored).unwrap(),
            "{name}"
        );
    }
}

/// G12: a state of a newer version is refused by its format, whatever else it holds.
#[test]
fn a_newer_state_is_refused() {
    let newer = format!(r#"{{"shape":"unknown","format":{}}}"#, FORMAT + 1);
    let error = SessionState::read(newer.as_bytes()).unwrap_err();
    let RecordError::TooNew { what, found } = error else {
        panic!("{error}");
    };
    assert_eq!((what, found), ("a session's state", FORMAT + 1));
    let damaged = SessionState::read(br#"{"format":1}"#).unwrap_err();
    assert!(matches!(damaged, RecordError::Damaged { .. }));
}

/// G12: a field that a newer version added survives what this version does to the session.
#[test]
fn an_unknown_field_survives_a_reduction() {
    let mut world = World::with_calls(vec![call(
        "c1",
        ToolEffect::NonIdempotentWrite,
        CallPlace::Step,
    )]);
    let unknown = serde_json::json!({"kept": [1, "x"]});
    let mut stored: serde_json::Value =
        serde_json::from_slice(&world.state.write().unwrap()).unwrap();
    stored["new_field"] = unknown.clone();
    stored["turn"]["calls"][0]["record"]["new_field"] = unknown.clone();
    world.state = SessionState::read(stored.to_string().as_bytes()).unwrap();
    world.approve("c1");
    let stored: serde_json::Value = serde_json::from_slice(&world.state.write().unwrap()).unwrap();
    assert_eq!(stored["new_field"], unknown);
    let record = &world.rows[&row(RowKind::Record, "t1/c1")];
    let record: serde_json::Value = serde_json::from_slice(record).unwrap();
    assert_eq!(record["new_field"], unknown);
}
