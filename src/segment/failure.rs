//! What a failed result, a failing API or a dead process stand for (spec/cli-protocol.md 11).

use std::time::Duration;

use super::{ProcessEnd, contract};
use crate::failure::{AttemptFailure, FailureClass};
use crate::protocol::{ResultFrame, RetryFrame};

/// The longest wait that is taken over from the other side: whoever asks for more is asked again
/// after an hour.
const RETRY_AFTER_MS_MAX: u64 = 60 * 60 * 1000;

/// Returns the failure that a result reports. `is_error` decides, not the subtype. `last_retry` is
/// the CLI's last own retry: only it says how long an API that has too much to do wants to be left
/// alone, the result does not.
pub(super) fn of_result(
    result: &ResultFrame,
    last_retry: Option<&RetryFrame>,
) -> Option<AttemptFailure> {
    let unavailable = "tool_deferred_unavailable";
    if result.terminal_reason.as_deref() == Some(unavailable)
        || result.stop_reason.as_deref() == Some(unavailable)
    {
        return Some(contract("the tool of the resumed call is not available"));
    }
    if !result.is_error {
        return None;
    }
    let text = detail(result);
    let mut failure = AttemptFailure::new(class_of(result, &text), text);
    if let FailureClass::Overloaded | FailureClass::RateLimited = failure.class {
        failure.retry_after_ms = last_retry
            .filter(|it| it.error_status == result.api_error_status)
            .and_then(asked_wait_ms);
    }
    Some(failure)
}

fn asked_wait_ms(retry: &RetryFrame) -> Option<u64> {
    let asked = Duration::try_from_secs_f64(retry.retry_delay_ms? / 1000.0).ok()?;
    let asked = u64::try_from(asked.as_millis()).unwrap_or(u64::MAX);
    Some(asked.min(RETRY_AFTER_MS_MAX))
}

fn class_of(result: &ResultFrame, text: &str) -> FailureClass {
    match result.subtype.as_str() {
        "error_max_turns" => return FailureClass::MaxTurns,
        "error_max_budget_usd" => return FailureClass::BudgetExceeded,
        _ => {}
    }
    if result.terminal_reason.as_deref() == Some("prompt_too_long") {
        return FailureClass::PromptTooLong;
    }
    if text.starts_with("No conversation found") {
        return FailureClass::CliContract;
    }
    match result.api_error_status {
        Some(status) => class_of_status(status),
        None if text.starts_with("Not logged in") => FailureClass::Authentication,
        None => FailureClass::ApiError,
    }
}

const fn class_of_status(status: u16) -> FailureClass {
    match status {
        401 | 403 => FailureClass::Authentication,
        429 => FailureClass::RateLimited,
        503 | 529 => FailureClass::Overloaded,
        _ => FailureClass::ApiError,
    }
}

fn detail(result: &ResultFrame) -> String {
    let mut texts: Vec<&str> = result
        .errors
        .iter()
        .flatten()
        .map(|it| it.0.as_str())
        .collect();
    if let Some(text) = &result.result
        && !text.0.is_empty()
    {
        texts.push(&text.0);
    }
    if texts.is_empty() {
        return format!("the CLI reported {}", result.subtype);
    }
    texts.join("; ")
}

/// Returns the failure behind a failed request that the CLI would try again. Refused credentials
/// stay refused, and the CLI would try for minutes.
pub(super) fn of_retry(retry: &RetryFrame) -> Option<AttemptFailure> {
    let status = retry.error_status?;
    match class_of_status(status) {
        FailureClass::Authentication => Some(AttemptFailure::new(
            FailureClass::Authentication,
            format!("the API refused the credentials with status {status}"),
        )),
        _ => None,
    }
}

/// Returns the failure of a process that ended without a result.
pub(super) fn of_process_end(end: ProcessEnd<'_>) -> AttemptFailure {
    let tail = end.stderr_tail.trim();
    let class = if tail.contains("unknown option") {
        FailureClass::CliTooOld
    } else if tail.starts_with("No conversation found") {
        FailureClass::CliContract
    } else {
        FailureClass::CliFailed
    };
    let detail = if tail.is_empty() {
        format!("the CLI ended without a result: {}", end.exit)
    } else {
        format!("the CLI ended without a result: {}: {tail}", end.exit)
    };
    AttemptFailure::new(class, detail)
}
