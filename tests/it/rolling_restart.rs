//! A worker is replaced three times under twenty active sessions, by a planned shutdown and a new
//! engine: nothing is lost, repeated or counted as lost, and only a model call in flight is made again.

use std::time::Duration;

use abide::client::ResolveInterrupt;
use abide::event::{EventKind, SessionEvent};
use abide::ids::{EventCursor, SessionId};
use abide::runner::GatedCallWait;
use abide::session::SessionState;
use abide::store::SessionStatus;
use abide::testing::launcher::FakeCliHandle;
use tokio::time::Instant;

use crate::support::patience::watched;
use crate::support::{Cli, World};

const RESTARTS: usize = 3;

/// How many sessions of each kind are active at a restart.
const EACH: usize = 5;

/// How long a handler takes on either side of its effect: less than the grace time in all.
const PACE: Duration = Duration::from_secs(10);

/// Two calls that a person has to decide about.
const OPEN: &str = r#"script: call refund {"order_id":"open"} && call refund {"order_id":"open"}"#;

/// A read, then a model call that is held at a gate.
const IN_A_SEGMENT: &str = r#"script: call lookup {"order_id":"read"} ;; pause gate"#;

/// One handler after the other, one for each restart.
const IN_A_HANDLER: &str = r#"script: call refund {"order_id":"slow 1"} && call refund {"order_id":"slow 2"} && call refund {"order_id":"slow 3"}"#;

struct Fleet {
    world: World,
    cli: FakeCliHandle,
    open: Vec<SessionId>,
    in_a_segment: Vec<SessionId>,
    in_a_handler: Vec<SessionId>,
    warm: Vec<SessionId>,
}

impl Fleet {
    async fn start() -> Self {
        let mut world = World::fake_in_runtime_time();
        world.wait = GatedCallWait::Live;
        // Longer than the handlers take, so that nothing is parked but by a restart.
        world.session_options.live_window = Duration::from_secs(60 * 60);
        world.engine_options.max_running = 4 * EACH;
        world.engine_options.max_resident = 8 * EACH;
        world.start_engine().await;
        let cli = match &world.cli {
            Cli::Fake { handle, .. } => handle.clone(),
            Cli::Real { .. } => unreachable!("the fleet has the fake CLI"),
        };
        let mut fleet = Self {
            world,
            cli,
            open: Vec::new(),
            in_a_segment: Vec::new(),
            in_a_handler: Vec::new(),
            warm: Vec::new(),
        };
        fleet.open = fleet.sessions("open", EACH, OPEN).await;
        fleet.in_a_segment = fleet.sessions("segment", EACH, IN_A_SEGMENT).await;
        fleet.in_a_handler = fleet.sessions("handler", EACH, IN_A_HANDLER).await;
        fleet.warm = fleet.sessions("warm", EACH, "script: say 0").await;
        fleet
    }

    async fn sessions(&self, name: &str, count: usize, text: &str) -> Vec<SessionId> {
        let mut sessions = Vec::new();
        for number in 0..count {
            let id = format!("{name}{number}");
            sessions.push(self.world.start_session(&id, text).await);
        }
        sessions
    }

    /// Waits until something holds; only (virtual) time passes meanwhile.
    async fn until(&self, holds: impl Fn(&Self) -> bool) {
        while !holds(self) {
            // sleeps because only (virtual) time passes here
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn approve_all(&self, session: &SessionId, count: usize) {
        let open = self
            .world
            .wait_for_snapshot(session, |it| it.pending_interrupts.len() == count)
            .await;
        for open in open.pending_interrupts {
            let answer = ResolveInterrupt::approve(open.interrupt_id);
            let taken = self.world.client().resolve_interrupt(session, answer).await;
            taken.expect("the approval is taken");
        }
    }

    /// Waits until every session is as active as its kind says, for the n-th time.
    async fn is_active(&self, round: usize) {
        for session in &self.open {
            let fits = self
                .world
                .wait_for_snapshot(session, |it| it.pending_interrupts.len() == 2);
            fits.await;
        }
        // Each one's handler of this round is on its way, and has had its effect: none is quicker.
        let starts = EACH + EACH * round;
        self.until(|it| it.world.effects.starts() == starts).await;
        let effects = EACH + EACH * (round - 1);
        assert_eq!(self.world.effects.lines().len(), effects);
        for session in &self.warm {
            self.world.wait_for_turns(session, round).await;
        }
    }

    /// Ends the engine in order and starts the next one.
    async fn restart(&mut self) {
        let start = Instant::now();
        self.world.shut_down().await;
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "the grace time was enough"
        );
        assert_eq!(self.cli.running(), 0, "a process outlived its worker");
        let all = [
            &self.open,
            &self.in_a_segment,
            &self.in_a_handler,
            &self.warm,
        ];
        for session in all.into_iter().flatten() {
            let stored = self.world.store.load(session).await.expect("a load");
            let stored = stored.expect("the session");
            assert_eq!(stored.lease, None, "{session}");
            let state = SessionState::read(&stored.state).expect("a state");
            let losses = state.turn.map_or(0, |it| it.lost_attempts);
            assert_eq!(losses, 0, "{session}: given back, not lost");
        }
        self.world.start_engine().await;
    }

    async fn events(&self, session: &SessionId) -> Vec<SessionEvent> {
        let read = self
            .world
            .store
            .read_events(session, EventCursor(0), usize::MAX);
        (read.await.expect("events").iter())
            .map(|it| serde_json::from_slice(&it.bytes).expect("an event"))
            .collect()
    }

    /// Checks that a session is done with so many turns, and that none of its attempts was lost.
    async fn check(&self, session: &SessionId, turns: usize) {
        self.world.wait_for_turns(session, turns).await;
        let snapshot = self.world.snapshot(session).await;
        assert_eq!(snapshot.status, SessionStatus::Idle, "{session}");
        let events = self.events(session).await;
        let mut given_back = 0;
        for (event, cursor) in events.iter().zip(1..) {
            assert_eq!(event.cursor, EventCursor(cursor), "{session}");
            let is_failure = matches!(
                event.kind,
                EventKind::AttemptFailed { .. } | EventKind::TurnFailed { .. }
            );
            given_back += usize::from(matches!(event.kind, EventKind::AttemptSuperseded { .. }));
            assert!(!is_failure, "{session}: {:?}", event.kind);
        }
        assert!(given_back <= RESTARTS, "{session}: {given_back}");
    }

    fn count(&self, line: &str) -> usize {
        let lines = self.world.effects.lines();
        lines.iter().filter(|it| it.starts_with(line)).count()
    }
}

async fn roll() {
    let mut fleet = Fleet::start().await;
    // The reads are over before handlers become slow.
    fleet.until(|it| it.count("lookup read") == EACH).await;
    fleet.world.effects.set_pace(PACE);
    for session in &fleet.in_a_handler {
        fleet.approve_all(session, 3).await;
    }
    for round in 1..=RESTARTS {
        fleet.is_active(round).await;
        fleet.restart().await;
        // What was open is parked now; others are live at the next restart.
        let more = fleet.sessions(&format!("open-{round}-"), 2, OPEN).await;
        fleet.open.extend(more);
        for session in &fleet.warm {
            fleet
                .world
                .send(session, &format!("script: say {round}"))
                .await;
        }
    }
    fleet.world.effects.set_pace(Duration::ZERO);
    fleet.world.open_gate("gate");
    for session in &fleet.open {
        fleet.approve_all(session, 2).await;
    }
    for session in &fleet.open {
        fleet.check(session, 1).await;
        let refunded = "refund: order open is refunded";
        let answer = fleet.world.last_answer(session).await;
        assert_eq!(answer, format!("{refunded}\n{refunded}"));
    }
    for session in &fleet.in_a_segment {
        fleet.check(session, 1).await;
        let answer = fleet.world.last_answer(session).await;
        assert_eq!(answer, "lookup: order read is fine");
    }
    for session in &fleet.in_a_handler {
        fleet.check(session, 1).await;
        let done = |it| format!("refund: order slow {it} is refunded");
        let answer = fleet.world.last_answer(session).await;
        assert_eq!(answer, [done(1), done(2), done(3)].join("\n"));
    }
    for session in &fleet.warm {
        fleet.check(session, 1 + RESTARTS).await;
        let answer = fleet.world.last_answer(session).await;
        assert_eq!(answer, format!("said: {RESTARTS}"));
    }
    let open = fleet.open.len();
    for (line, count) in [
        ("refund open", 2 * open),
        ("lookup read", EACH),
        ("refund slow", 3 * EACH),
    ] {
        assert_eq!(fleet.count(line), count, "{line}");
    }
    // Two for each reply with calls; the held one is made again by each worker; one a warm message.
    let requests = 2 * open + (2 + RESTARTS) * EACH + 2 * EACH + (1 + RESTARTS) * EACH;
    // The sessions in a handler are parked by the first restart and go on in the last worker.
    println!(
        "{} processes, {requests} model requests",
        fleet.world.starts()
    );
    assert_eq!(fleet.cli.model_requests(), requests as u64);
    let processes = 2 * (open - 2) + 2 + (1 + RESTARTS) * EACH + 2 * EACH + (1 + RESTARTS) * EACH;
    assert_eq!(fleet.world.starts(), processes);
    fleet.world.check_cli().await;
}

/// G1, G3, G6, G7: twenty sessions outlive three planned restarts at no cost but that of the model
/// calls that were in flight.
#[tokio::test(start_paused = true)]
async fn a_rolling_restart_under_twenty_sessions_costs_no_attempt() {
    watched(roll()).await;
}
