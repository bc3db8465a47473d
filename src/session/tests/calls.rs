//! Gated calls in their own Steps: each way a call can end, and the order of several.

use super::*;
use crate::record::{NOT_RUN_PREFIX, SkipReason};
use crate::session::CALL_STARTS_MAX;

const EFFECTS: [ToolEffect; 4] = [
    ToolEffect::Read,
    ToolEffect::IdempotentWrite,
    ToolEffect::NonIdempotentWrite,
    ToolEffect::Unclassified,
];

/// What happens to each start of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Succeeds,
    Fails,
    IsNotRun,
    IsUnknown,
    IsLost,
    /// The first start is lost, the second certainly did not run.
    IsLostThenNotRun,
}

/// G1, G2, E19, N12: each effect and each fate end as the table says, after that many starts.
#[test]
fn each_call_ends_as_its_effect_and_fate_say() {
    use CallStatus::{Failed, OutcomeUnknown, Succeeded};
    use Fate::*;
    let check = |fate, expected: [(CallStatus, u32); 4]| {
        for (effect, expected) in EFFECTS.into_iter().zip(expected) {
            for asks in [false, true] {
                assert_eq!(
                    run_to_its_end(effect, fate, asks),
                    expected,
                    "{effect:?} {fate:?}"
                );
            }
        }
    };
    let once = |status| [(status, 1); 4];
    check(Succeeds, once(Succeeded));
    check(Fails, once(Failed));
    check(IsNotRun, once(Failed));
    let repeated = [
        (Failed, CALL_STARTS_MAX),
        (OutcomeUnknown, CALL_STARTS_MAX),
        (OutcomeUnknown, 1),
        (OutcomeUnknown, 1),
    ];
    check(IsUnknown, repeated);
    check(IsLost, repeated);
    check(
        IsLostThenNotRun,
        [
            (Failed, 2),
            (OutcomeUnknown, 2),
            (OutcomeUnknown, 1),
            (OutcomeUnknown, 1),
        ],
    );
}

fn run_to_its_end(effect: ToolEffect, fate: Fate, asks: bool) -> (CallStatus, u32) {
    let call = if asks {
        asked_call("c1", effect, CallPlace::Step)
    } else {
        free_call("c1", effect, CallPlace::Step)
    };
    let mut world = World::with_calls(vec![call]);
    if asks {
        assert_eq!(world.state.status(), SessionStatus::AwaitingApproval);
        assert_eq!(world.state.due_at(), None);
        world.approve("c1");
    }
    let mut granted = 0;
    while !world.status("c1").is_final() {
        world.now = world.now.max(world.state.due_at().unwrap());
        world.nonces += 1;
        let nonce = format!("n{}", world.nonces);
        let step_id = world.due_step();
        // A loss that this settles may end the Step or make it wait.
        let Reply::Granted(running) = world.begin(step_id, &nonce, world.epoch) else {
            continue;
        };
        granted += 1;
        assert_eq!(world.record("c1").starts, granted);
        match end_of(fate, granted) {
            Some(end) => {
                let attempt = AttemptKey { step_id, running };
                assert_eq!(world.tool_ends(&attempt, end), Reply::Done);
            }
            None => world.epoch.0 += 1,
        }
    }
    let record = world.record("c1");
    assert_eq!(record.starts, granted);
    (record.status, record.starts)
}

/// How a start ends; `None` when its worker dies.
fn end_of(fate: Fate, start: u32) -> Option<ToolCallEnd> {
    let text = || "text".to_owned();
    match fate {
        Fate::Succeeds => Some(succeeded()),
        Fate::Fails => Some(ToolCallEnd::Failed { error: text() }),
        Fate::IsNotRun => Some(ToolCallEnd::NotRun { error: text() }),
        Fate::IsUnknown => Some(ToolCallEnd::Unknown { detail: text() }),
        Fate::IsLostThenNotRun if start > 1 => Some(ToolCallEnd::NotRun { error: text() }),
        Fate::IsLost | Fate::IsLostThenNotRun => None,
    }
}

/// G1: the mark is committed with the grant, before any worker acts on it.
#[test]
fn a_start_mark_is_part_of_the_grant() {
    let mut world = World::with_calls(vec![free_call(
        "c1",
        ToolEffect::NonIdempotentWrite,
        CallPlace::Step,
    )]);
    assert_eq!(world.status("c1"), CallStatus::Decided);
    world.wait(Duration::from_secs(7));
    let running = world.begin_due();
    let record = world.record("c1");
    assert_eq!((record.status, record.starts), (CallStatus::Started, 1));
    assert_eq!(record.started_at, Some(START.after(Duration::from_secs(7))));
    let again = world.begin(running.step_id, "n2", world.epoch);
    assert_eq!(again, Reply::Granted(running.running));
    assert_eq!(world.record("c1").starts, 1);
}

/// What the model reads of each end is a constant or the tool's own words.
#[test]
fn the_model_reads_how_a_call_ended() {
    for (end, text) in [
        (succeeded(), "done".to_owned()),
        (
            ToolCallEnd::Failed {
                error: "refused".to_owned(),
            },
            "refused".to_owned(),
        ),
        (
            ToolCallEnd::NotRun {
                error: "no such tool".to_owned(),
            },
            format!("{NOT_RUN_PREFIX}: no such tool"),
        ),
        (
            ToolCallEnd::Unknown {
                detail: "never shown".to_owned(),
            },
            crate::record::OUTCOME_UNKNOWN_TEXT.to_owned(),
        ),
    ] {
        let mut world = World::with_calls(vec![free_call(
            "c1",
            ToolEffect::NonIdempotentWrite,
            CallPlace::Step,
        )]);
        let attempt = world.begin_due();
        world.tool_ends(&attempt, end);
        assert_eq!(world.outcome_of("c1").model_text(), text);
    }
}

/// Failed starts of an idempotent call wait one second, then five.
#[test]
fn an_idempotent_call_is_tried_again_after_a_pause() {
    let mut world = World::with_calls(vec![free_call(
        "c1",
        ToolEffect::IdempotentWrite,
        CallPlace::Step,
    )]);
    let mut waits = Vec::new();
    while let Some(due) = (!world.status("c1").is_final())
        .then(|| world.state.due_at())
        .flatten()
    {
        waits.push(due.0.saturating_sub(world.now.0));
        let attempt = world.begin_due();
        let unknown = ToolCallEnd::Unknown {
            detail: "timeout".to_owned(),
        };
        world.tool_ends(&attempt, unknown);
    }
    assert_eq!(waits, [0, 1_000, 5_000]);
}

/// G8: a worker that was fenced off reports too late: its report changes nothing.
#[test]
fn a_late_success_of_a_lost_start_changes_nothing() {
    let mut world = World::with_calls(vec![free_call(
        "c1",
        ToolEffect::NonIdempotentWrite,
        CallPlace::Step,
    )]);
    let lost = world.begin_due();
    assert_eq!(world.crash_and_begin(), Reply::Superseded);
    assert_eq!(world.status("c1"), CallStatus::OutcomeUnknown);
    let before = world.state.clone();
    assert_eq!(world.tool_ends(&lost, succeeded()), Reply::Superseded);
    assert_eq!(world.state, before);
}

/// design.md 4: a later call waits for the earlier ones, decided or not; reads too.
#[test]
fn calls_run_in_the_order_in_which_the_model_asked() {
    let write = ToolEffect::NonIdempotentWrite;
    let mut world = World::with_calls(vec![
        call("c1", write, CallPlace::Step),
        free_call("c2", write, CallPlace::Step),
        call("c3", write, CallPlace::Step),
    ]);
    world.approve("c3");
    assert_eq!(due_steps(&world.state), []);
    assert_eq!(world.state.status(), SessionStatus::AwaitingApproval);
    let third = world.record("c3").step_id.unwrap();
    let jumped = world.begin(third, "early", world.epoch);
    assert_eq!(jumped, Reply::Superseded);
    world.approve("c1");
    for id in ["c1", "c2", "c3"] {
        let attempt = world.begin_due();
        assert_eq!(world.status(id), CallStatus::Started);
        world.tool_ends(&attempt, succeeded());
        assert_eq!(world.status(id), CallStatus::Succeeded);
    }
    assert!(matches!(
        due_steps(&world.state).as_slice(),
        [DueStep::RunModel { .. }]
    ));
}

/// design.md 4: what an earlier end does to the writes after it, approved or free.
#[test]
fn later_writes_are_skipped_after_one_that_did_not_succeed() {
    use CallStatus::{Decided, OutcomeUnknown, Rejected, Requested, Skipped, Succeeded};
    let write = ToolEffect::NonIdempotentWrite;
    let calls = || {
        vec![
            call("first", write, CallPlace::Step),
            call("asked", write, CallPlace::Step),
            free_call("free", ToolEffect::IdempotentWrite, CallPlace::Step),
            asked_call("read", ToolEffect::Read, CallPlace::Step),
        ]
    };
    let later = ["asked", "free", "read"];
    let failed = ToolCallEnd::Failed {
        error: "no".to_owned(),
    };
    let unknown = ToolCallEnd::Unknown {
        detail: "?".to_owned(),
    };
    for (end, status, expected) in [
        (succeeded(), Succeeded, [Requested, Decided, Requested]),
        (failed, CallStatus::Failed, [Skipped, Skipped, Requested]),
        (unknown, OutcomeUnknown, [Skipped, Skipped, Requested]),
    ] {
        let mut world = World::with_calls(calls());
        world.approve("first");
        let attempt = world.begin_due();
        world.tool_ends(&attempt, end);
        assert_eq!(world.status("first"), status);
        assert_eq!(world.statuses(&later), expected);
    }
    let mut world = World::with_calls(calls());
    world.reject("first");
    assert_eq!(world.status("first"), Rejected);
    assert_eq!(world.statuses(&later), [Requested, Skipped, Requested]);
    assert_eq!(
        world.outcome_of("free"),
        ToolOutcome::Skipped {
            reason: SkipReason::EarlierWrite
        }
    );
    world.approve("asked");
    let attempt = world.begin_due();
    world.tool_ends(&attempt, succeeded());
    assert_eq!(world.status("asked"), Succeeded);
}

/// A read that failed stops nothing.
#[test]
fn a_failed_read_skips_nothing() {
    let mut world = World::with_calls(vec![
        free_call("c1", ToolEffect::Read, CallPlace::Step),
        free_call("c2", ToolEffect::NonIdempotentWrite, CallPlace::Step),
    ]);
    let attempt = world.begin_due();
    let failed = ToolCallEnd::Failed {
        error: "no".to_owned(),
    };
    world.tool_ends(&attempt, failed);
    assert_eq!(world.status("c2"), CallStatus::Decided);
}

/// A person cannot answer for a call that was skipped meanwhile.
#[test]
fn a_skipped_call_cannot_be_decided_any_more() {
    let write = ToolEffect::NonIdempotentWrite;
    let mut world = World::with_calls(vec![
        free_call("c1", write, CallPlace::Step),
        call("c2", write, CallPlace::Step),
    ]);
    let attempt = world.begin_due();
    let failed = ToolCallEnd::Failed {
        error: "no".to_owned(),
    };
    world.tool_ends(&attempt, failed);
    assert_eq!(
        refused(world.resolve("c2", Decision::Approve)),
        Refusal::AlreadyResolved {
            interrupt_id: InterruptId::of_call(TurnId::new(1), &call_id("c2")),
            decision: None,
            decided_by: None,
        }
    );
}

/// A call id may come back in a later turn; its record is another one.
#[test]
fn two_turns_may_use_the_same_call_id() {
    let mut world = World::with_calls(vec![free_call("c1", ToolEffect::Read, CallPlace::Step)]);
    let attempt = world.begin_due();
    world.tool_ends(&attempt, succeeded());
    world.answer("done");
    world.send("again");
    world.ask_for(vec![free_call("c1", ToolEffect::Read, CallPlace::Step)]);
    let attempt = world.begin_due();
    world.tool_ends(&attempt, succeeded());
    world.answer("done");
    let keys: Vec<_> = world.records().into_keys().map(str::to_owned).collect();
    assert_eq!(keys, ["t1/c1", "t2/c1"]);
}
