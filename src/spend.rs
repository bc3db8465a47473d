//! Limits on what turns and sessions may use (spec/core.md 21).

use std::fmt;

use async_trait::async_trait;

use crate::ids::{SessionId, Tenant, TurnId};
use crate::turn::Usage;

/// What a turn and its session used so far, as far as it is committed.
///
/// Cost is what the CLI reported with its results: a segment that is still running, or that was parked,
/// has reported tokens and model calls, and no cost.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Spend {
    /// The session.
    pub session_id: SessionId,
    /// Whose it is.
    pub tenant: Option<Tenant>,
    /// The turn that wants to go on.
    pub turn_id: TurnId,
    /// What the turn used.
    pub turn: Usage,
    /// What the session used, this turn included.
    pub session: Usage,
}

impl Spend {
    /// Describes what was used.
    #[must_use]
    pub const fn new(
        session_id: SessionId,
        tenant: Option<Tenant>,
        turn_id: TurnId,
        turn: Usage,
        session: Usage,
    ) -> Self {
        Self {
            session_id,
            tenant,
            turn_id,
            turn,
            session,
        }
    }
}

/// Whether a turn may go on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "an application builds it; a turn goes on or it does not"
)]
pub enum SpendDecision {
    /// It may.
    GoOn,
    /// The turn fails with [`FailureClass::SpendLimit`](crate::failure::FailureClass::SpendLimit); the
    /// session stays usable.
    Stop {
        /// Why, for people.
        reason: String,
    },
}

/// Decides whether turns may go on. Asked before each segment and at each checkpoint of one, that is
/// after each reply of the model that calls tools: one model call can overshoot. Native segments have
/// no checkpoints, so that a whole segment can.
#[async_trait]
pub trait SpendLimit: Send + Sync + fmt::Debug {
    /// Decides about a turn that wants to go on, within 30 s. A panic, or no answer, fails the attempt.
    /// When it stops a turn, a tool of the CLI that runs at that moment is cut off, and a write among
    /// them is `outcome_unknown`.
    ///
    /// # Cancel safety
    /// A dropped call is asked again.
    async fn check(&self, spend: &Spend) -> SpendDecision;
}

/// The most that may be used of something; what is `None` is not limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(
    clippy::exhaustive_structs,
    reason = "an application writes it as a literal"
)]
pub struct UsageCap {
    /// Tokens of input and output together, cached ones included.
    pub tokens: Option<u64>,
    /// Cost, in billionths of a US dollar, as far as the CLI reports it.
    pub cost_nano_usd: Option<u64>,
    /// Replies of a model, those of sub-agents included.
    pub model_calls: Option<u64>,
}

impl UsageCap {
    /// Returns what is used up, if anything is: nothing more may be used of it.
    #[must_use]
    pub fn used_up(&self, usage: &Usage) -> Option<&'static str> {
        let tokens = usage.input_tokens.saturating_add(usage.output_tokens);
        let rows = [
            (self.tokens, tokens, "tokens"),
            (self.cost_nano_usd, usage.cost_nano_usd, "cost"),
            (self.model_calls, usage.model_calls, "model calls"),
        ];
        let used_up = |(cap, used, _): &(Option<u64>, u64, _)| cap.is_some_and(|it| *used >= it);
        rows.into_iter().find(used_up).map(|(_, _, name)| name)
    }
}

/// The built-in limit: a cap for each turn, and one for each session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(
    clippy::exhaustive_structs,
    reason = "an application writes it as a literal"
)]
pub struct UsageLimit {
    /// What one turn may use.
    pub turn: UsageCap,
    /// What one session may use.
    pub session: UsageCap,
}

#[async_trait]
impl SpendLimit for UsageLimit {
    async fn check(&self, spend: &Spend) -> SpendDecision {
        let of_turn = self.turn.used_up(&spend.turn).map(|it| ("turn", it));
        let of_session = || {
            self.session
                .used_up(&spend.session)
                .map(|it| ("session", it))
        };
        match of_turn.or_else(of_session) {
            Some((whose, what)) => SpendDecision::Stop {
                reason: format!("the {what} of the {whose} are used up"),
            },
            None => SpendDecision::GoOn,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each cap by itself, at its value and below it.
    #[test]
    fn each_cap_is_used_up_at_its_value() {
        let usage = Usage {
            input_tokens: 60,
            output_tokens: 40,
            model_calls: 3,
            cost_nano_usd: 5,
            ..Usage::default()
        };
        type Set = fn(&mut UsageCap, u64);
        let rows: [(Set, u64, &str); 3] = [
            (|cap, it| cap.tokens = Some(it), 100, "tokens"),
            (|cap, it| cap.cost_nano_usd = Some(it), 5, "cost"),
            (|cap, it| cap.model_calls = Some(it), 3, "model calls"),
        ];
        for (set, used, name) in rows {
            let mut cap = UsageCap::default();
            assert_eq!(cap.used_up(&usage), None);
            set(&mut cap, used);
            assert_eq!(cap.used_up(&usage), Some(name));
            set(&mut cap, used + 1);
            assert_eq!(cap.used_up(&usage), None, "{name}");
        }
    }
}
