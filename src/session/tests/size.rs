//! How a session grows, and how it ends when it is full (spec/core.md 22).

use super::*;
use crate::event::{DiagnosticCode, EndReason};
use crate::session::{StoredSize, check_size, size_is_due};

const MIB: u64 = 1024 * 1024;

fn diagnostics(world: &World) -> Vec<DiagnosticCode> {
    let codes = world.events.iter().filter_map(|it| match it.kind {
        EventKind::Diagnostic { code } => Some(code),
        _ => None,
    });
    codes.collect()
}

/// Each share of the limit is told once, however often the session is measured.
#[test]
fn each_share_is_told_once() {
    let mut world = World::new();
    let (half, most, nearly) = (
        DiagnosticCode::SessionBytes50,
        DiagnosticCode::SessionBytes80,
        DiagnosticCode::SessionBytes95,
    );
    for (stored, told) in [
        (499, vec![]),
        (500, vec![half]),
        (799, vec![half]),
        (960, vec![half, most, nearly]),
        (400, vec![half, most, nearly]),
        (999, vec![half, most, nearly]),
    ] {
        world.measure(stored, 1_000);
        assert_eq!(diagnostics(&world), told, "{stored}");
        assert_eq!(world.state.status(), SessionStatus::Idle);
    }
}

/// What is written is counted with the commit that writes it, before it is packed; what was written
/// while the store was asked is not forgotten.
#[test]
fn every_commit_counts_what_it_writes() {
    let mut world = World::new();
    let written = |world: &World| world.state.size.unwrap().written;
    let of_events = |world: &World| {
        let bytes = world
            .events
            .iter()
            .map(|it| serde_json::to_vec(it).unwrap().len() as u64);
        bytes.sum::<u64>()
    };
    assert_eq!(written(&world), of_events(&world));
    world.send("hello");
    let of_chunks = world.chunks.values().map(|it| it.raw_bytes).sum::<u64>();
    assert_eq!(written(&world), of_events(&world) + of_chunks);
    let before = written(&world);
    world.send("waits");
    let message = row(RowKind::Message, "m2");
    let row_bytes = (message.key.len() + world.rows[&message].len()) as u64;
    let all = of_events(&world) + of_chunks + row_bytes;
    assert_eq!(written(&world), all);
    let input = Input::SizeMeasured {
        stored_bytes: 300,
        written_before: before,
        bytes_max: MIB,
    };
    world.apply(input).unwrap();
    let size = world.state.size.unwrap();
    assert_eq!((size.measured, size.written), (300, all - before));
}

/// The store is asked only when a step may have been reached, and not for every commit near it.
#[test]
fn the_store_is_asked_when_a_step_may_be_reached() {
    let mut world = World::new();
    let limit = 256 * MIB;
    let mut is_due = |measured, written, bytes_max, limit| {
        world.state.size = Some(StoredSize {
            measured,
            written,
            bytes_max,
            reached: 50,
        });
        size_is_due(&world.state, limit)
    };
    let seen = Some(limit);
    let step = limit * 80 / 100;
    assert!(!is_due(step - 3 * MIB, 2 * MIB, seen, seen), "out of reach");
    assert!(is_due(step - 3 * MIB, 3 * MIB + 1, seen, seen), "in reach");
    assert!(!is_due(step - 10, MIB - 1, seen, seen), "asked too often");
    assert!(is_due(step, 0, Some(limit * 2), seen), "another limit");
    assert!(!is_due(limit * 9, MIB, seen, None), "no limit");
    assert!(is_due(0, u64::MAX, seen, seen));
    world.state.size = None;
    assert!(size_is_due(&world.state, seen), "nobody counted yet");
    world.measure(0, limit);
    assert!(!size_is_due(&world.state, seen));
    world.close(CloseMode::Reject).unwrap();
    world.state.size = None;
    assert!(!size_is_due(&world.state, seen), "it is over");
}

/// G6: a full session finishes its turn, with the records of what it started; what waits is reported,
/// and nothing more is taken.
#[test]
fn a_full_session_finishes_its_turn_and_ends() {
    let write = ToolEffect::NonIdempotentWrite;
    let mut world = World::with_calls(vec![call("c1", write, CallPlace::Step)]);
    let waiting = world.send("waits");
    world.approve("c1");
    let attempt = world.begin_due();
    world.measure(1_000, 1_000);
    let reason = EndReason::StateLimit;
    let undelivered = |message_id| EventKind::MessageUndelivered { message_id };
    assert!(world.kinds_since(0).contains(&undelivered(waiting)));
    let full = Refusal::SessionEnded { reason };
    assert_eq!(refused(world.try_send("more")), full);
    assert_eq!(refused(world.steer("more")), full);
    world.tool_ends(&attempt, succeeded());
    assert_eq!(world.status("c1"), CallStatus::Succeeded);
    assert_eq!(check_size(&world.state), Ok(()));
    world.answer("done");
    assert_eq!(world.texts().pop().unwrap().1, "done");
    assert_eq!(world.state.status(), SessionStatus::Ended);
    let last = world.events.last().map(|it| it.kind.clone());
    assert_eq!(last, Some(EventKind::SessionEnded { reason }));
    assert_eq!(refused(world.try_send("more")), full);
}

/// An idle session that is full is over at once.
#[test]
fn a_full_session_without_a_turn_ends_at_once() {
    let mut world = World::new();
    world.measure(1_000, 1_000);
    assert_eq!(world.state.status(), SessionStatus::Ended);
    assert_eq!(world.state.due_at(), None);
}

/// G6: a message that was steered into the last turn of a full session, which ended without it, is
/// reported too: it would be a turn of its own. So are those of a session that drains.
#[test]
fn no_turn_begins_in_a_full_session() {
    let mut world = World::started();
    world.steer("rather this").unwrap();
    world.measure(1_000, 1_000);
    world.fail_turn();
    let message_id = MessageId::new(2);
    let undelivered = EventKind::MessageUndelivered { message_id };
    assert!(world.kinds_since(0).contains(&undelivered));
    assert_eq!(world.state.status(), SessionStatus::Ended);

    let mut world = World::started();
    world.send("waits");
    world.close(CloseMode::Drain).unwrap();
    world.measure(1_000, 1_000);
    assert!(world.kinds_since(0).contains(&undelivered));
    world.answer("hi");
    assert_eq!(world.state.status(), SessionStatus::Ended);
}

/// A turn that goes on and on is stopped a quarter beyond the limit, for good, and its note is written.
#[test]
fn a_turn_may_pass_the_limit_by_a_quarter() {
    let mut world = World::started();
    let attempt = world.begin_due();
    world.measure(1_249, 1_000);
    assert_eq!(check_size(&world.state), Ok(()));
    world.measure(1_250, 1_000);
    let failure = check_size(&world.state).unwrap_err();
    assert_eq!(failure.class, FailureClass::SessionFull);
    world.end(&attempt, Err(failure));
    assert_eq!(world.state.status(), SessionStatus::Ended);
    let class = FailureClass::SessionFull;
    assert!(
        world
            .kinds_since(0)
            .contains(&EventKind::TurnFailed { class })
    );
    assert_eq!(world.texts().pop().unwrap().0, MessageRole::Note);
}

/// A message that goes in now stands in two chunks, and both are counted.
#[test]
fn a_message_that_goes_in_now_is_counted_twice() {
    let mut world = World::with_calls(vec![call(
        "c1",
        ToolEffect::NonIdempotentWrite,
        CallPlace::Step,
    )]);
    world.steer_now("never mind").unwrap();
    let (events, before) = (world.events.len(), world.state.size.unwrap().written);
    let chunks: BTreeSet<_> = world.chunks.keys().copied().collect();
    world.take_steered();
    let new_chunks = world.chunks.iter().filter(|it| !chunks.contains(it.0));
    let in_chunks: Vec<_> = new_chunks.map(|it| it.1.raw_bytes).collect();
    assert_eq!(in_chunks.len(), 2);
    let in_events = world.events[events..].iter();
    let in_events: u64 = in_events
        .map(|it| serde_json::to_vec(it).unwrap().len() as u64)
        .sum();
    let written = world.state.size.unwrap().written - before;
    assert_eq!(written, in_chunks.iter().sum::<u64>() + in_events);
}
