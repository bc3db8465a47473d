//! Wall clocks that are set an hour ahead or back while something is due: deadlines and pauses are
//! counted in wall time, leases are not; nothing is lost, done twice or left for ever.

use std::time::Duration;

use abide::client::{ClientError, Refusal};
use abide::clock::Clock as _;
use abide::event::EndReason;
use tokio::time::Instant;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

/// How much later than it is due something is noticed at most: a look at all sessions, and one of a
/// driver that is at work.
const LATE: Duration = Duration::from_secs(15);

/// How a clock is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Jump {
    Ahead,
    Back,
}

impl Jump {
    const BOTH: [Self; 2] = [Self::Ahead, Self::Back];

    fn set(self, clock: &TokioClock) {
        let now = clock.now();
        clock.set(match self {
            Self::Ahead => now.after(HOUR),
            Self::Back => Timestamp(now.0 - HOUR.as_millis() as u64),
        });
    }

    /// How long a wait of this length takes when the clock is set right at its begin.
    fn makes_of(self, wait: Duration) -> Duration {
        match self {
            Self::Ahead => wait.saturating_sub(HOUR),
            Self::Back => wait + HOUR,
        }
    }

    fn check(self, wait: Duration, begun: Instant, what: &str) {
        let (took, right) = (begun.elapsed(), self.makes_of(wait));
        let is_right = took >= right && took <= right + LATE;
        assert!(is_right, "{what} {self:?}: {took:?}, not {right:?}");
    }
}

/// A place whose clock can be set.
fn place_with_clock(runner: Scripted) -> (Place, Arc<TokioClock>) {
    let mut place = Place::new(runner);
    let clock = Arc::new(TokioClock::starting_at(START.after(HOUR * 24)));
    place.options.clock = Arc::clone(&clock) as _;
    (place, clock)
}

/// N35: the deadline of a decision, of a parked turn and of one whose handler runs. It passes once, and
/// setting the clock back does not bring the question back.
#[tokio::test(start_paused = true)]
async fn a_deadline_passes_once_however_the_clock_is_set() {
    for deadline in [HOUR / 2, HOUR * 2] {
        for (message, runs) in [("call write:c1", false), ("call slow:c0 write:c1", true)] {
            for jump in Jump::BOTH {
                let what = format!("{message}, {deadline:?},");
                let (mut place, clock) = place_with_clock(Scripted::closed());
                let options = SessionOptions::default();
                place.flow_options = options.with_interrupt_deadline(deadline);
                let engine = place.engine().await;
                let (client, id) = (engine.client(), session("s"));
                client.start_session(start("s", message)).await.unwrap();
                let mut log = Log::of(&client, &id).await;
                let is_asked = |it: &EventKind| matches!(it, EventKind::InterruptRequested { .. });
                log.until(1, is_asked).await;
                if runs {
                    place.runner.waiting(1).await;
                } else {
                    place.until_not_leased(&id).await;
                }
                let begun = Instant::now();
                jump.set(&clock);
                let is_over = |it: &EventKind| matches!(it, EventKind::InterruptExpired { .. });
                log.until(1, is_over).await;
                jump.check(deadline, begun, &what);
                Jump::Back.set(&clock);
                let late = client.resolve_interrupt(&id, approve("t1/c1")).await;
                let expired = matches!(late, Err(ClientError::Refused(Refusal::Expired { .. })));
                assert!(expired, "{what} {jump:?}: {late:?}");
                place.runner.open_gate();
                log.turns_over(1).await;
                assert_eq!(log.count(is_over), 1, "{what} {jump:?}");
                let ran = if runs {
                    vec![("c0".to_owned(), 1)]
                } else {
                    vec![]
                };
                assert_eq!(place.runner.tools(), ran, "{what} {jump:?}");
            }
        }
    }
}

/// An answer is held against the clock of whoever takes it: set ahead over the deadline it is too late,
/// set back it is in time, also after the time at which it would have been too late.
#[tokio::test(start_paused = true)]
async fn an_answer_is_in_time_by_the_clock_at_its_commit() {
    for jump in Jump::BOTH {
        let (mut place, clock) = place_with_clock(Scripted::open());
        let deadline = HOUR / 2;
        place.flow_options = SessionOptions::default().with_interrupt_deadline(deadline);
        let engine = place.engine().await;
        let (client, id) = (engine.client(), session("s"));
        client
            .start_session(start("s", "call write:c1"))
            .await
            .unwrap();
        let mut log = Log::of(&client, &id).await;
        log.suspended().await;
        jump.set(&clock);
        if jump == Jump::Back {
            // sleeps because only (virtual) time passes here
            tokio::time::sleep(deadline + LATE).await;
        }
        let answer = client.resolve_interrupt(&id, approve("t1/c1")).await;
        let in_time = jump == Jump::Back;
        assert_eq!(answer.is_ok(), in_time, "{jump:?}: {answer:?}");
        log.turns_over(1).await;
        assert_eq!(place.runner.tools().len(), usize::from(in_time), "{jump:?}");
    }
}

/// N02: the time of a session, of one that is idle and of one at work.
#[tokio::test(start_paused = true)]
async fn the_time_of_a_session_follows_the_clock() {
    for timeout in [HOUR / 2, HOUR * 2] {
        for jump in Jump::BOTH {
            let (place, clock) = place_with_clock(Scripted::closed());
            let engine = place.engine().await;
            let client = engine.client();
            let flow_type = FlowType::new("Scripted").unwrap();
            let idle = StartSession::new(session("idle"), flow_type).with_timeout(timeout);
            client.start_session(idle).await.unwrap();
            let busy = start("busy", "wait").with_timeout(timeout);
            client.start_session(busy).await.unwrap();
            place.runner.waiting(1).await;
            let begun = Instant::now();
            jump.set(&clock);
            for name in ["idle", "busy"] {
                let mut log = Log::of(&client, &session(name)).await;
                let reason = EndReason::TimedOut;
                // What runs gets its grace time after that.
                log.until(1, |it| *it == EventKind::SessionClosing { reason })
                    .await;
                jump.check(timeout, begun, name);
                log.until(1, |it| *it == EventKind::SessionEnded { reason })
                    .await;
            }
        }
    }
}

/// N07: the pause before a segment is tried again: ahead it is over, back it takes as much longer; the
/// segment is tried as often as ever.
#[tokio::test(start_paused = true)]
async fn a_segment_is_tried_again_however_the_clock_is_set() {
    for jump in Jump::BOTH {
        let (place, clock) = place_with_clock(Scripted::open());
        let engine = place.engine().await;
        let (client, id) = (engine.client(), session("s"));
        client.start_session(start("s", "panic")).await.unwrap();
        let mut log = Log::of(&client, &id).await;
        let is_failed = |it: &EventKind| matches!(it, EventKind::AttemptFailed { .. });
        log.until(1, is_failed).await;
        let begun = Instant::now();
        jump.set(&clock);
        log.turns_over(1).await;
        // The first pause is set off by the jump, the second is as it was.
        jump.check(Duration::ZERO, begun, "a pause");
        assert_eq!(place.runner.segments(), [1, 2, 3], "{jump:?}");
    }
}

/// G8: a worker that is gone is replaced after the lease time, whatever its clock and its heir's show;
/// what it had started is started once more and no more often.
#[tokio::test(start_paused = true)]
async fn a_lease_is_taken_over_in_its_time_however_the_clock_is_set() {
    for jump in Jump::BOTH {
        let (place, clock) = place_with_clock(Scripted::closed());
        let gone = place.engine().await;
        let (client, id) = (place.client(), session("s"));
        client.start_session(start("s", "wait")).await.unwrap();
        place.runner.waiting(1).await;
        drop(gone);
        let _heir = place.engine().await;
        let begun = Instant::now();
        jump.set(&clock);
        place.runner.waiting(2).await;
        let took = begun.elapsed();
        let lease_time = place.options.lease_time;
        let in_time = took >= lease_time && took <= lease_time + LATE;
        assert!(in_time, "{jump:?}: {took:?}");
        place.runner.open_gate();
        Log::of(&client, &id).await.turns_over(1).await;
        assert_eq!(place.runner.segments(), [1, 2], "{jump:?}");
    }
}
