//! Steps and attempts: who may act, how often, and what a loss means (design.md 5).
//!
//! An attempt acts only on a grant, and a grant is a commit. Nothing else in this crate decides
//! how often something is tried.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{LeaseEpoch, Nonce, StepId, Timestamp};
use crate::policy::ToolEffect;

/// How often a segment may fail before its turn does (spec/core.md 4).
pub const RUN_MODEL_FAILURES_MAX: u32 = 3;

/// How often an idempotent call is started, lost starts counted (G2).
pub const CALL_STARTS_MAX: u32 = 3;

/// How many attempts in a row a turn may lose with their workers before it fails (G7).
pub const LOST_ATTEMPTS_MAX: u32 = 100;

/// How many segments a turn may have (spec/core.md 21).
pub const SEGMENTS_MAX: u32 = 50;

/// The due time of what need not wait. Never the time of whoever added it: the one who runs it may
/// have a clock that is behind.
const AT_ONCE: Timestamp = Timestamp(0);

/// One Step that a worker runs, and its attempts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StepExecution {
    /// Which Step.
    pub step_id: StepId,
    /// How many attempts were granted.
    pub attempts: u32,
    /// How many of them failed.
    pub failures: u32,
    /// When the next attempt may be granted at the earliest.
    pub not_before: Timestamp,
    /// The attempt that acts now.
    pub running: Option<RunningAttempt>,
}

/// An attempt that was granted and has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunningAttempt {
    /// Which attempt, counted from 1.
    pub attempt: u32,
    /// The worker's name for it: the same nonce gets the same grant again.
    pub nonce: Nonce,
    /// The owner under which it was granted.
    pub epoch: LeaseEpoch,
}

/// Names one granted attempt in reports. A report is taken only while exactly this attempt runs (G8).
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(
    feature = "unstable",
    expect(clippy::exhaustive_structs, reason = "drivers build it")
)]
pub struct AttemptKey {
    /// The Step.
    pub step_id: StepId,
    /// The attempt.
    pub running: RunningAttempt,
}

/// What is to happen when an attempt may be granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Admission {
    /// This attempt was granted before, to the same nonce.
    SameAgain(RunningAttempt),
    /// The attempt that was running is lost; settle that first and ask again.
    PreviousLost,
    /// Somebody else runs it.
    Refused,
    /// It is too early.
    NotYet(Timestamp),
    /// It may be granted.
    Free,
}

impl StepExecution {
    /// Adds a Step that is due at once, whatever the clocks of other processes show.
    #[must_use]
    pub const fn new(step_id: StepId) -> Self {
        Self {
            step_id,
            attempts: 0,
            failures: 0,
            not_before: AT_ONCE,
            running: None,
        }
    }

    /// Decides about a request for an attempt. A larger epoch alone proves a loss: a lease is taken
    /// over only from a holder that is dead or stood still for the lease time.
    pub(super) fn admission(&self, nonce: &Nonce, epoch: LeaseEpoch, now: Timestamp) -> Admission {
        match &self.running {
            Some(running) if running.nonce == *nonce && running.epoch == epoch => {
                Admission::SameAgain(running.clone())
            }
            Some(running) if running.epoch < epoch => Admission::PreviousLost,
            Some(_) => Admission::Refused,
            None if now < self.not_before => Admission::NotYet(self.not_before),
            None => Admission::Free,
        }
    }

    pub(super) fn grant(&mut self, nonce: Nonce, epoch: LeaseEpoch) -> RunningAttempt {
        self.attempts += 1;
        let running = RunningAttempt {
            attempt: self.attempts,
            nonce,
            epoch,
        };
        self.running = Some(running.clone());
        // Whoever has to take it over must find it at once, although its clock may be behind that of
        // whoever put it off.
        self.not_before = AT_ONCE;
        running
    }

    /// Ends the running attempt; the next one may start after `wait`.
    pub(super) fn release(&mut self, now: Timestamp, wait: Duration) {
        self.running = None;
        self.not_before = if wait.is_zero() {
            AT_ONCE
        } else {
            now.after(wait)
        };
    }

    pub(super) fn is_running(&self, key: &AttemptKey) -> bool {
        self.step_id == key.step_id && self.running.as_ref() == Some(&key.running)
    }
}

/// What happens to a call whose start has no known end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterLoss {
    /// It may be started again under its key.
    StartAgain,
    /// It is `outcome_unknown` (G1).
    OutcomeUnknown,
    /// It is `failed`: a read changed nothing.
    Failed,
}

/// Decides about a call whose start has no known end. The only place that decides it.
pub(super) const fn after_loss(effect: ToolEffect, starts: u32) -> AfterLoss {
    match effect {
        ToolEffect::NonIdempotentWrite | ToolEffect::Unclassified => AfterLoss::OutcomeUnknown,
        ToolEffect::IdempotentWrite if starts < CALL_STARTS_MAX => AfterLoss::StartAgain,
        ToolEffect::IdempotentWrite => AfterLoss::OutcomeUnknown,
        ToolEffect::Read if starts < CALL_STARTS_MAX => AfterLoss::StartAgain,
        ToolEffect::Read => AfterLoss::Failed,
    }
}

/// How long to wait after the n-th failure in a row: 1 s, then 5 s (spec/core.md 31.10).
pub(super) const fn wait_after_failure(failures: u32) -> Duration {
    match failures {
        0 | 1 => Duration::from_secs(1),
        _ => Duration::from_secs(5),
    }
}

/// How long to wait after the n-th loss in a row: not at all after the first, so that a restart is
/// immediate; then doubling from 1 s to a minute (G7).
pub(super) const fn wait_after_loss(losses: u32) -> Duration {
    match losses {
        0 | 1 => Duration::ZERO,
        2..=7 => Duration::from_secs(1 << (losses - 2)),
        _ => Duration::from_secs(60),
    }
}
