//! Two engines fight for the same sessions for a minute of virtual time: they die, stand still and go on,
//! and their clocks jump by an hour. What they do is drawn by seeds, which are printed.

mod check;
mod witness;

use std::sync::Arc;
use std::time::Duration;

use abide::client::ResolveInterrupt;
use abide::clock::Clock as _;
use abide::engine::LocalEngine;
use abide::ids::{SessionId, Timestamp};
use abide::runner::GatedCallWait;
use abide::store::SessionStatus;
use abide::testing::clock::TokioClock;
use abide::testing::faults::CrashingStore;

use crate::support::World;
use crate::support::dice::Dice;
use crate::support::patience::watched;
use witness::Witness;

/// What people ask for; every handler takes its time.
const MESSAGES: [&str; 6] = [
    "script: say hello",
    r#"script: call lookup {"order_id":"1"} && call lookup {"order_id":"2"}"#,
    r#"script: call refund {"order_id":"3"} && call set_status {"order_id":"4"} && call refund {"order_id":"5"}"#,
    r#"script: call lookup {"order_id":"6"} && call refund {"order_id":"7"}"#,
    r#"script: call refund {"order_id":"8"} && call Bash {"command":"echo ran"}"#,
    r#"script: call retry {"order_id":"9"}"#,
];

const SESSIONS: usize = 6;

/// How many messages a session gets in the minute.
const TURNS: usize = 5;

/// What every clock shows at first.
const START: Timestamp = Timestamp(1_800_000_000_000);

const MINUTE: Duration = Duration::from_secs(60);

/// How much time passes between two looks.
const STEP: Duration = Duration::from_millis(100);

const HOUR: Duration = Duration::from_secs(60 * 60);

/// How long a handler takes on either side of its effect.
const PACE: Duration = Duration::from_millis(400);

/// How long the two may need in the end, in virtual time: leases and back-off are part of it.
const PATIENCE: Duration = Duration::from_secs(10 * 60);

/// One of the two engines.
struct Fighter {
    engine: LocalEngine,
    /// Stops answering while the engine stands still.
    store: Arc<CrashingStore>,
    clock: Arc<TokioClock>,
    stands_still: bool,
}

/// How often what was done to engines.
#[derive(Debug, Default)]
struct Deeds {
    kills: usize,
    stalls: usize,
    jumps: usize,
}

struct Fight {
    world: World,
    witness: Witness,
    engines: usize,
    fighters: Vec<Fighter>,
    sessions: Vec<(SessionId, Vec<&'static str>)>,
    dice: Dice,
    deeds: Deeds,
    /// The latest time that any of their clocks showed.
    latest: Timestamp,
}

impl Fight {
    async fn start(seed: u64) -> Self {
        let mut world = World::fake_in_runtime_time();
        world.wait = GatedCallWait::Live;
        world.session_options.live_window = Duration::from_secs(2);
        world.effects.set_pace(PACE);
        world.engine_options.lease_time = Duration::from_secs(2);
        world.engine_options.scan_interval = Duration::from_secs(1);
        world.engine_options.max_running = 4;
        world.engine_options.max_resident = 3;
        let mut fight = Self {
            world,
            witness: Witness::default(),
            engines: 0,
            fighters: Vec::new(),
            sessions: Vec::new(),
            dice: Dice::new(seed),
            deeds: Deeds::default(),
            latest: START,
        };
        for number in 0..SESSIONS {
            let text = *fight.dice.one_of(&MESSAGES);
            let name = format!("s{number}");
            let session = fight.world.start_session(&name, text).await;
            fight.sessions.push((session, vec![text]));
        }
        for _ in 0..2 {
            let fighter = fight.fighter().await;
            fight.fighters.push(fighter);
        }
        fight
    }

    async fn fighter(&mut self) -> Fighter {
        self.engines += 1;
        let inner = Arc::clone(&self.world.store);
        let seen = self.witness.of_engine(self.engines, inner);
        let store = Arc::new(CrashingStore::new(Arc::new(seen), None));
        let clock = Arc::new(TokioClock::starting_at(START));
        self.world.engine_options.clock = Arc::clone(&clock) as _;
        self.world.start_engine_over(Arc::clone(&store) as _).await;
        Fighter {
            engine: self.world.leave_engine(),
            store,
            clock,
            stands_still: false,
        }
    }

    /// Does something to one of the two.
    async fn disturb(&mut self) {
        let who = self.dice.below(2);
        match self.dice.below(4) {
            0 => {
                self.deeds.kills += 1;
                let next = self.fighter().await;
                let dead = std::mem::replace(&mut self.fighters[who], next);
                // Nothing of a dead process reaches the store any more.
                dead.store.crash();
                drop(dead.engine);
            }
            1 | 2 => {
                let fighter = &mut self.fighters[who];
                fighter.stands_still = !fighter.stands_still;
                if fighter.stands_still {
                    self.deeds.stalls += 1;
                    fighter.store.crash();
                } else {
                    fighter.store.wake();
                }
            }
            _ => {
                self.deeds.jumps += 1;
                let clock = &self.fighters[who].clock;
                let now = clock.now();
                let ahead = self.dice.below(2) == 0;
                clock.set(if ahead {
                    now.after(HOUR)
                } else {
                    Timestamp(now.0 - HOUR.as_millis() as u64)
                });
            }
        }
    }

    /// Lets people do something: one in so many times for each session.
    async fn people(&mut self, one_in: usize) {
        for index in 0..self.sessions.len() {
            if self.dice.below(one_in) != 0 {
                continue;
            }
            let session = self.sessions[index].0.clone();
            let snapshot = self.world.snapshot(&session).await;
            if let Some(open) = snapshot.pending_interrupts.first() {
                let answer = match self.dice.below(8) {
                    0 => ResolveInterrupt::reject(open.interrupt_id.clone(), None),
                    _ => ResolveInterrupt::approve(open.interrupt_id.clone()),
                };
                let client = self.world.client();
                // An engine may have closed it since, as skipped.
                let _ = client.resolve_interrupt(&session, answer).await;
            } else if self.sessions[index].1.len() < TURNS && self.dice.below(4) == 0 {
                let text = *self.dice.one_of(&MESSAGES);
                self.world.send(&session, text).await;
                self.sessions[index].1.push(text);
            }
        }
    }

    async fn are_idle(&self) -> bool {
        for (session, _) in &self.sessions {
            let snapshot = self.world.snapshot(session).await;
            if snapshot.status != SessionStatus::Idle || !snapshot.queued_messages.is_empty() {
                return false;
            }
        }
        true
    }

    async fn run(&mut self) {
        let start = tokio::time::Instant::now();
        while start.elapsed() < MINUTE {
            if self.dice.below(10) == 0 {
                self.disturb().await;
            }
            self.people(8).await;
            // sleeps because only (virtual) time passes here
            tokio::time::sleep(STEP).await;
            let shown = self.fighters.iter().map(|it| it.clock.now());
            self.latest = shown.fold(self.latest, Timestamp::max);
        }
        for fighter in &self.fighters {
            fighter.store.wake();
            // What one of them put off by the clock that was furthest ahead is due by now.
            fighter.clock.set(self.latest.after(HOUR));
        }
        for (session, texts) in &mut self.sessions {
            texts.push("script: recall");
            self.world.send(session, "script: recall").await;
        }
        while !self.are_idle().await {
            assert!(start.elapsed() < PATIENCE, "it never comes to its end");
            self.people(1).await;
            // sleeps because only (virtual) time passes here
            tokio::time::sleep(STEP).await;
            let shown = self.fighters.iter().map(|it| it.clock.now());
            self.latest = shown.fold(self.latest, Timestamp::max);
        }
        for fighter in self.fighters.drain(..) {
            fighter.engine.shutdown().await;
        }
    }
}

/// G1, G2, G6, G8, G13: whatever befalls the two engines, no effect happens twice, no report of an
/// engine that lost its session is taken, and every message gets its turn.
#[tokio::test(start_paused = true)]
async fn two_engines_that_fight_for_a_minute_repeat_nothing() {
    let mut sum = check::Sum::default();
    for seed in 1..=4 {
        let mut fight = Fight::start(seed).await;
        let start = tokio::time::Instant::now();
        watched(fight.run()).await;
        let found = fight.check(&mut sum).await;
        println!(
            "seed {seed}: {:?}, {:?} in all, {sum:?}",
            fight.deeds,
            start.elapsed()
        );
        assert_eq!(found, Vec::<String>::new(), "seed {seed}");
    }
    sum.check_that_they_fought();
}
