//! Usage of one segment, from its result (I24).

use crate::protocol::{ModelUsage, ResultFrame, TokenUsage};
use crate::turn::Usage;

/// Counts what the replies of the main conversation used while the segment runs. The CLI tells the
/// whole of it, sub-agents and cost included, only in the result, which a parked segment never sees.
#[derive(Debug, Default)]
pub(super) struct Meter {
    current: Option<TokenUsage>,
    complete: Usage,
    reported: Usage,
}

impl Meter {
    /// A reply began.
    pub(super) fn started(&mut self, usage: &TokenUsage) {
        self.current = Some(usage.clone());
    }

    /// The reply told more: each number that is there replaces an earlier one.
    pub(super) fn used(&mut self, usage: &TokenUsage) {
        let current = self.current.get_or_insert_default();
        let take = |old: &mut Option<u64>, new: Option<u64>| *old = new.or(*old);
        take(&mut current.input_tokens, usage.input_tokens);
        take(
            &mut current.cache_creation_input_tokens,
            usage.cache_creation_input_tokens,
        );
        take(
            &mut current.cache_read_input_tokens,
            usage.cache_read_input_tokens,
        );
        take(&mut current.output_tokens, usage.output_tokens);
    }

    /// The reply is over.
    pub(super) fn ended(&mut self) {
        if let Some(current) = self.current.take() {
            self.complete = self.complete.plus(Usage {
                model_calls: 1,
                ..of_tokens(&current)
            });
        }
    }

    /// Takes what was not reported yet.
    pub(super) fn take(&mut self) -> Usage {
        let usage = std::mem::take(&mut self.complete);
        self.reported = self.reported.plus(usage);
        usage
    }

    /// Returns what is left to report of the whole.
    pub(super) const fn rest(&self, whole: Usage) -> Usage {
        whole.minus(self.reported)
    }
}

/// Returns what the segment used, without the count of replies.
///
/// `model_usage_since_last_result` covers sub-agents and counts this segment alone, while
/// `modelUsage` and `total_cost_usd` grow over the whole Claude session, and the numbers in
/// assistant frames are placeholders that repeat with each block (spec/cli-protocol.md 0.10).
pub(super) fn of_result(result: &ResultFrame) -> Usage {
    if let Some(models) = &result.model_usage_since_last_result {
        return models
            .values()
            .map(of_model)
            .fold(Usage::default(), Usage::plus);
    }
    result.usage.as_ref().map(of_tokens).unwrap_or_default()
}

fn of_tokens(usage: &TokenUsage) -> Usage {
    tokens(
        usage.input_tokens,
        usage.cache_creation_input_tokens,
        usage.cache_read_input_tokens,
        usage.output_tokens,
    )
}

fn of_model(model: &ModelUsage) -> Usage {
    Usage {
        cost_nano_usd: nano_usd(model.cost_usd.unwrap_or(0.0)),
        ..tokens(
            model.input_tokens,
            model.cache_creation_input_tokens,
            model.cache_read_input_tokens,
            model.output_tokens,
        )
    }
}

fn tokens(
    input: Option<u64>,
    written: Option<u64>,
    read: Option<u64>,
    output: Option<u64>,
) -> Usage {
    let read = read.unwrap_or(0);
    Usage {
        input_tokens: input
            .unwrap_or(0)
            .saturating_add(written.unwrap_or(0))
            .saturating_add(read),
        cached_input_tokens: read,
        output_tokens: output.unwrap_or(0),
        model_calls: 0,
        cost_nano_usd: 0,
    }
}

fn nano_usd(usd: f64) -> u64 {
    // The cast saturates: what is negative or no number costs nothing.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates"
    )]
    let nano = (usd * 1e9).round() as u64;
    nano
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I24, R83: several segments add up, whatever the session's total says.
    #[test]
    fn usage_counts_this_segment_alone_and_every_model_of_it() {
        let result: ResultFrame = serde_json::from_str(
            r#"{"subtype":"success","is_error":false,"total_cost_usd":9,
            "usage":{"input_tokens":1,"output_tokens":1},
            "modelUsage":{"a":{"inputTokens":900}},
            "model_usage_since_last_result":{
              "a":{"inputTokens":11,"outputTokens":7,"cacheReadInputTokens":2,"cacheCreationInputTokens":3,"costUSD":9.989999999999999e-05},
              "b":{"inputTokens":1,"outputTokens":2,"costUSD":0.5}}}"#,
        )
        .unwrap();
        assert_eq!(
            of_result(&result),
            Usage {
                input_tokens: 17,
                cached_input_tokens: 2,
                output_tokens: 9,
                model_calls: 0,
                cost_nano_usd: 500_099_900,
            }
        );
    }
}
