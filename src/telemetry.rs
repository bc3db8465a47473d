//! The spans of attempts: names and fields, one function or type for each span (spec/core.md 24).
//!
//! Names are those of the OpenTelemetry conventions for generative AI; `otel.*` fields are read by
//! layers of the kind of `tracing-opentelemetry` and need no dependency here. No prompt, argument,
//! output or failure text is ever part of a span (G10).

use tracing::Span;
use tracing::field::{Empty, debug};

use crate::failure::{AttemptFailure, FailureClass};
use crate::ids::{SessionId, TurnId};
use crate::policy::ToolEffect;
use crate::record::CallRecord;
use crate::runner::{ModelCallMetadata, SegmentEvent, SegmentUpdate, ToolCallEnd};
use crate::session::{AttemptKey, SessionState};
use crate::turn::{RunModelOutcome, Usage};

/// Which attempt a span belongs to.
#[derive(Debug, Clone)]
pub(crate) struct AttemptNames {
    session: SessionId,
    turn: Option<TurnId>,
    attempt: AttemptKey,
}

impl AttemptNames {
    pub(crate) fn new(session: &SessionId, state: &SessionState, attempt: &AttemptKey) -> Self {
        Self {
            session: session.clone(),
            turn: state.turn.as_ref().map(|it| it.turn_id),
            attempt: attempt.clone(),
        }
    }

    /// Makes the span that everything of a `RunModel` attempt runs in.
    ///
    /// Of the highest level, so that a filter for warnings keeps it: log lines get from it whom they
    /// are about.
    pub(crate) fn run_model(&self) -> Span {
        tracing::error_span!(
            "run_model",
            session = %self.session,
            turn = self.turn.map(display),
            step = %self.attempt.step_id,
            attempt = self.attempt.running.attempt,
        )
    }

    /// Makes the span that everything of an attempt of a gated call runs in.
    pub(crate) fn call_tool(&self) -> Span {
        tracing::error_span!(
            "call_tool",
            session = %self.session,
            turn = self.turn.map(display),
            step = %self.attempt.step_id,
            attempt = self.attempt.running.attempt,
        )
    }
}

/// The `chat` span of one `RunModel` attempt. It ends when this is dropped.
///
/// It is never entered: whether it is a client's is known at its end alone, and a layer that has seen
/// it entered may have told its backend the kind by then.
#[derive(Debug)]
pub(crate) struct ChatSpan {
    span: Span,
    used: Usage,
    known: Option<ModelCallMetadata>,
    failure: Option<FailureClass>,
    is_parked: bool,
}

impl ChatSpan {
    /// Starts the span, as a child of the current one.
    pub(crate) fn start(names: &AttemptNames) -> Self {
        let span = tracing::info_span!(
            "chat",
            otel.name = "chat",
            otel.kind = "internal",
            otel.status_code = Empty,
            "error.type" = Empty,
            gen_ai.operation.name = "chat",
            gen_ai.conversation.id = %names.session,
            gen_ai.provider.name = Empty,
            gen_ai.request.model = Empty,
            gen_ai.response.model = Empty,
            gen_ai.response.id = Empty,
            gen_ai.response.finish_reasons = Empty,
            gen_ai.usage.input_tokens = Empty,
            gen_ai.usage.output_tokens = Empty,
            gen_ai.usage.cache_read.input_tokens = Empty,
            agent.turn.id = names.turn.map(display),
            agent.step.id = %names.attempt.step_id,
            agent.step.attempt = names.attempt.running.attempt,
            agent.step.model_calls = Empty,
        );
        Self {
            span,
            used: Usage::default(),
            known: None,
            failure: None,
            is_parked: false,
        }
    }

    /// Notes what the runner tells of its model calls while it runs.
    pub(crate) fn saw(&mut self, update: &SegmentUpdate) {
        match update {
            SegmentUpdate::ModelCalls(known) => self.known = Some(known.clone()),
            SegmentUpdate::Event(
                SegmentEvent::Checkpoint(progress) | SegmentEvent::ParkRequested(progress),
                _,
            ) => self.used = self.used.plus(progress.usage),
            SegmentUpdate::Event(
                SegmentEvent::CallStanding { .. }
                | SegmentEvent::CallGivenUp { .. }
                | SegmentEvent::CallStarting { .. }
                | SegmentEvent::CallFinished { .. }
                | SegmentEvent::InlineCallStarted { .. }
                | SegmentEvent::InlineCallFinished { .. },
                _,
            )
            | SegmentUpdate::Live(..) => {}
        }
    }

    /// Notes that the session took the attempt's request to park.
    pub(crate) const fn parked(&mut self) {
        self.is_parked = true;
    }

    /// Notes how the attempt ended. One that was parked may end in the refusal of a late word of its
    /// own, which is no failure.
    pub(crate) fn ended(&mut self, end: &Result<RunModelOutcome, AttemptFailure>) {
        match end {
            Ok(
                RunModelOutcome::TurnCompleted { usage, .. }
                | RunModelOutcome::ToolCallsRequested { usage, .. }
                | RunModelOutcome::Cancelled { usage, .. },
            ) => self.used = self.used.plus(*usage),
            Ok(RunModelOutcome::Parked) => {}
            Err(_) if self.is_parked => {}
            Err(failure) => self.failure = Some(failure.class),
        }
    }

    /// A runner that says nothing of its calls is taken at the usage that it reports.
    fn model_calls(&self) -> u64 {
        self.known
            .as_ref()
            .map_or(self.used.model_calls, |it| it.model_calls)
    }
}

impl Drop for ChatSpan {
    fn drop(&mut self) {
        let span = &self.span;
        let model_calls = self.model_calls();
        span.record("agent.step.model_calls", model_calls);
        if model_calls == 1 {
            span.record("otel.kind", "client");
        }
        // Usage of a reply that was lost on the way is not known, and of several it belongs to none.
        if model_calls == 1 && self.used.model_calls == 1 {
            span.record("gen_ai.usage.input_tokens", self.used.input_tokens);
            span.record("gen_ai.usage.output_tokens", self.used.output_tokens);
            span.record(
                "gen_ai.usage.cache_read.input_tokens",
                self.used.cached_input_tokens,
            );
        }
        if let Some(class) = self.failure {
            record_error(span, class.name());
        }
        let Some(known) = &self.known else { return };
        if let Some(model) = &known.request_model {
            span.record("otel.name", format!("chat {model}"));
        }
        for (field, value) in [
            ("gen_ai.request.model", &known.request_model),
            ("gen_ai.response.model", &known.response_model),
            ("gen_ai.provider.name", &known.provider_name),
            ("gen_ai.response.id", &known.response_id),
        ] {
            if let Some(value) = value {
                span.record(field, value.as_str());
            }
        }
        if let Some(reason) = &known.finish_reason {
            span.record("gen_ai.response.finish_reasons", debug([reason]));
        }
    }
}

/// Makes the `execute_tool` span of one start of a gated call, as a child of the current one.
pub(crate) fn execute_tool(names: &AttemptNames, call: &CallRecord) -> Span {
    tracing::info_span!(
        "execute_tool",
        otel.name = format!("execute_tool {}", call.tool_name),
        otel.kind = "internal",
        otel.status_code = Empty,
        "error.type" = Empty,
        gen_ai.operation.name = "execute_tool",
        gen_ai.conversation.id = %names.session,
        gen_ai.tool.name = call.tool_name,
        gen_ai.tool.call.id = %call.tool_call_id,
        gen_ai.tool.type = "function",
        agent.turn.id = names.turn.map(display),
        agent.step.id = %names.attempt.step_id,
        agent.step.attempt = names.attempt.running.attempt,
        agent.tool.effect = effect_name(call.policy.effect),
        agent.tool.status = Empty,
    )
}

/// Notes how a start of a gated call ended. An end that is not known is an error like the others: the
/// call may be started again, or its record says so.
pub(crate) fn tool_ended(span: &Span, end: &ToolCallEnd) {
    let (status, is_error) = match end {
        ToolCallEnd::Succeeded { .. } => ("succeeded", false),
        ToolCallEnd::Failed { .. } => ("failed", true),
        ToolCallEnd::NotRun { .. } => ("not_run", true),
        ToolCallEnd::Unknown { .. } => ("outcome_unknown", true),
    };
    span.record("agent.tool.status", status);
    if is_error {
        record_error(span, status);
    }
}

fn record_error(span: &Span, kind: &str) {
    span.record("otel.status_code", "error");
    span.record("error.type", kind);
}

const fn effect_name(effect: ToolEffect) -> &'static str {
    match effect {
        ToolEffect::Read => "read",
        ToolEffect::IdempotentWrite => "idempotent_write",
        ToolEffect::NonIdempotentWrite => "non_idempotent_write",
        ToolEffect::Unclassified => "unclassified",
    }
}
