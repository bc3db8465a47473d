//! A runner without a CLI, for figures about everything around one.

use std::path::Path;
use std::sync::Arc;

use abide::engine::{LocalEngine, LocalEngineOptions};
use abide::failure::AttemptFailure;
use abide::flow::{AgentSessionFlow, FlowRegistry, SessionOptions};
use abide::ids::{ClaudeSessionId, ToolCallId};
use abide::policy::{ToolEffect, ToolPolicy};
use abide::record::{FrameworkItem, MessageRole};
use abide::runner::{
    AgentFrameworkRunner, RunModelRequest, SegmentLink, ToolCallEnd, ToolCallRequest,
};
use abide::store::{SqliteStateStore, StateStore};
use abide::turn::{CallPlace, NewMessage, RequestedCall, RunModelOutcome, Usage};
use async_trait::async_trait;
use tokio::sync::mpsc::UnboundedSender;

use crate::process::monotonic_ns;

/// A model that asks for these calls, and then answers.
#[derive(Debug, Clone)]
pub(crate) struct Asking {
    tools: &'static [(&'static str, ToolEffect)],
    /// Where each start of a handler is told, by the machine's monotonic clock.
    started: Option<UnboundedSender<u64>>,
}

impl Asking {
    /// For one write that waits for a person.
    pub(crate) const fn a_refund() -> Self {
        Self {
            tools: &[("refund", ToolEffect::NonIdempotentWrite)],
            started: None,
        }
    }

    /// For two writes that wait for nobody: a turn of five Steps.
    pub(crate) const fn two_labels() -> Self {
        Self {
            tools: &[
                ("set_label", ToolEffect::IdempotentWrite),
                ("set_note", ToolEffect::IdempotentWrite),
            ],
            started: None,
        }
    }

    /// For nothing: it answers at once.
    pub(crate) const fn nothing() -> Self {
        Self {
            tools: &[],
            started: None,
        }
    }

    /// Tells when handlers start.
    pub(crate) fn telling(mut self, started: UnboundedSender<u64>) -> Self {
        self.started = Some(started);
        self
    }
}

/// Runs the agent over a database.
pub(crate) async fn engine(database: &Path, agent: Asking) -> LocalEngine {
    let store = SqliteStateStore::open(database).await.expect("a store");
    engine_over(Arc::new(store), agent).await
}

/// Runs the agent over a store. Its segments are no processes: all may run at once.
pub(crate) async fn engine_over(store: Arc<dyn StateStore>, agent: Asking) -> LocalEngine {
    let flow = AgentSessionFlow::new("Figures", agent, SessionOptions::default()).expect("a flow");
    let registry = FlowRegistry::new().register(flow).expect("a registry");
    let mut options = LocalEngineOptions::default();
    options.max_running = usize::MAX >> 3;
    let engine = LocalEngine::start_with(registry, store, options).await;
    engine.expect("an engine")
}

#[async_trait]
impl AgentFrameworkRunner for Asking {
    async fn run_model(
        &self,
        request: RunModelRequest,
        _: SegmentLink,
    ) -> Result<RunModelOutcome, AttemptFailure> {
        let session = ClaudeSessionId::new("11111111-2222-4333-8444-555555555555");
        let item = FrameworkItem::claude_transcript(session.expect("an id"), Vec::new());
        let says = |text: &str| {
            vec![NewMessage {
                role: MessageRole::Assistant,
                text: text.to_owned(),
                tool_call_id: None,
                item: item.expect("JSON"),
            }]
        };
        if self.tools.is_empty() || !request.calls.is_empty() {
            return Ok(RunModelOutcome::TurnCompleted {
                messages: says("It is done."),
                usage: Usage::default(),
            });
        }
        let calls = self.tools.iter().zip(1..);
        let calls = calls.map(|((tool_name, effect), number)| RequestedCall {
            tool_call_id: ToolCallId::new(format!("toolu_{number:02}")).expect("an id"),
            tool_name: (*tool_name).to_owned(),
            arguments: r#"{"order_id":"7","reason":"late and wet"}"#.to_owned(),
            shown_arguments: None,
            policy: ToolPolicy::new(*effect),
            place: CallPlace::Step,
        });
        Ok(RunModelOutcome::ToolCallsRequested {
            calls: calls.collect(),
            messages: says("I will see to it."),
            usage: Usage::default(),
        })
    }

    async fn call_tool(&self, _: ToolCallRequest) -> ToolCallEnd {
        if let Some(started) = &self.started {
            // Nobody may be waiting for it any more.
            let _ = started.send(monotonic_ns());
        }
        ToolCallEnd::Succeeded {
            output: "done".to_owned(),
        }
    }
}
