//! A runner without a model: the user's message says what happens. The contract is not Claude's alone.

use std::sync::{Arc, Mutex};

use abide::event::LiveTextKind;
use abide::failure::{AttemptFailure, FailureClass};
use abide::ids::ToolCallId;
use abide::policy::{Approval, ToolEffect, ToolPolicy};
use abide::record::{FrameworkItem, MessageRole, ToolOutcome};
use abide::runner::{
    AgentFrameworkRunner, RunModelRequest, SegmentEvent, SegmentLink, SegmentReply, ToolCallEnd,
    ToolCallRequest,
};
use abide::turn::{
    CallPlace, NewMessage, RequestedCall, ResumedCall, ResumedFate, RunModelOutcome,
    SegmentProgress, Usage,
};
use async_trait::async_trait;
use tokio::sync::watch;

use crate::support::patience::watched;

/// What the runner was asked to do, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Run {
    /// A segment, with the texts it was given.
    Segment { attempt: u32, texts: Vec<String> },
    /// A call, with the key it ran under.
    Tool {
        call: String,
        attempt: u32,
        key: String,
    },
}

/// Does what the last user message says:
///
/// - `call <tool>:<id> …`: asks for these calls, and reads their results aloud in the next segment
/// - `spend <tool>:<id> …`: the same, and says that it used a model call
/// - `panic`, `fail`: what it says
/// - `live <text>`: writes live text, then waits for the gate
/// - `wait`: waits for the gate
/// - `stop <text>`: writes live text, then waits until the turn is cancelled, and stops
/// - `settings`: says what the session's settings are
/// - `report <tool>:<id> …`: waits for the gate, reports a checkpoint that asks for these calls, and is
///   ended from outside
/// - `report_last <tool>:<id> …`: the same without the gate, and panics before it is answered
/// - `start <id>`: wants to start this call inside the segment, and says what it is answered
/// - anything else is answered with `re: …`
///
/// Tools: `write` waits for approval, `free` does not, both run once; `idempotent`, `flaky` (its
/// first two starts fail), `panic`; `slow` (once) and `slow_idempotent` wait for the gate; `inside`
/// runs once, inside the next segment, and waits for the gate there.
#[derive(Debug, Clone)]
pub(super) struct Scripted {
    runs: Arc<Mutex<Vec<Run>>>,
    gate: Arc<watch::Sender<bool>>,
    waiting: Arc<watch::Sender<usize>>,
}

impl Scripted {
    /// A runner whose gate is open: nothing waits.
    pub(super) fn open() -> Self {
        let it = Self::closed();
        it.open_gate();
        it
    }

    /// A runner whose gate is closed.
    pub(super) fn closed() -> Self {
        Self {
            runs: Arc::default(),
            gate: Arc::new(watch::Sender::new(false)),
            waiting: Arc::new(watch::Sender::new(0)),
        }
    }

    pub(super) fn open_gate(&self) {
        self.gate.send_replace(true);
    }

    /// Returns once this many runs have come to the closed gate.
    pub(super) async fn waiting(&self, count: usize) {
        let mut waiting = self.waiting.subscribe();
        let came = waiting.wait_for(|it| *it >= count);
        watched(came).await.unwrap();
    }

    pub(super) fn runs(&self) -> Vec<Run> {
        self.runs.lock().unwrap().clone()
    }

    /// The calls that ran: id and number of the start.
    pub(super) fn tools(&self) -> Vec<(String, u32)> {
        let runs = self.runs().into_iter();
        runs.filter_map(|it| match it {
            Run::Tool { call, attempt, .. } => Some((call, attempt)),
            Run::Segment { .. } => None,
        })
        .collect()
    }

    /// The attempts of all segments, in order.
    pub(super) fn segments(&self) -> Vec<u32> {
        let runs = self.runs().into_iter();
        runs.filter_map(|it| match it {
            Run::Segment { attempt, .. } => Some(attempt),
            Run::Tool { .. } => None,
        })
        .collect()
    }

    fn log(&self, run: Run) {
        self.runs.lock().unwrap().push(run);
    }

    /// Says what became of each call; runs those that run inside the segment.
    async fn read_aloud(
        &self,
        calls: Vec<ResumedCall>,
        link: &SegmentLink,
    ) -> Result<RunModelOutcome, AttemptFailure> {
        let mut said = Vec::new();
        for call in calls {
            let outcome = match call.fate {
                ResumedFate::Final(outcome) => outcome,
                ResumedFate::Permitted => self.run_inside(&call.tool_call_id, link).await?,
            };
            said.push(format!("{}: {}", call.tool_call_id, outcome.model_text()));
        }
        Ok(completed(&said.join("; ")))
    }

    async fn run_inside(
        &self,
        id: &ToolCallId,
        link: &SegmentLink,
    ) -> Result<ToolOutcome, AttemptFailure> {
        let refused = |_| AttemptFailure::new(FailureClass::Runner, "refused");
        let tool_call_id = id.clone();
        let starting = SegmentEvent::CallStarting { tool_call_id };
        match link.deliver(starting).await.map_err(refused)? {
            SegmentReply::Granted => {}
            SegmentReply::Final(outcome) => return Ok(outcome),
            other => panic!("a start was answered by {other:?}"),
        }
        self.log(Run::Tool {
            call: id.to_string(),
            attempt: 1,
            key: String::new(),
        });
        self.wait_at_gate().await;
        let outcome = ToolOutcome::Succeeded {
            output: "ran inside".to_owned(),
        };
        let finished = SegmentEvent::CallFinished {
            tool_call_id: id.clone(),
            outcome: outcome.clone(),
        };
        link.deliver(finished).await.map_err(refused)?;
        Ok(outcome)
    }

    async fn wait_at_gate(&self) {
        let mut gate = self.gate.subscribe();
        self.waiting.send_modify(|it| *it += 1);
        gate.wait_for(|it| *it).await.unwrap();
    }
}

#[async_trait]
impl AgentFrameworkRunner for Scripted {
    async fn run_model(
        &self,
        request: RunModelRequest,
        link: SegmentLink,
    ) -> Result<RunModelOutcome, AttemptFailure> {
        let messages = request.history.read_all().await.unwrap();
        self.log(Run::Segment {
            attempt: request.context.attempt,
            texts: messages.iter().map(|it| it.text.clone()).collect(),
        });
        if !request.calls.is_empty() {
            return self.read_aloud(request.calls, &link).await;
        }
        let last = messages
            .into_iter()
            .rfind(|it| it.role == MessageRole::User);
        let text = last.unwrap().text;
        let (verb, rest) = text.split_once(' ').unwrap_or((&text, ""));
        match verb {
            "call" => return Ok(requested(rest, 0)),
            "spend" => return Ok(requested(rest, 1)),
            "panic" => panic!("as the test asked"),
            "fail" => return Err(AttemptFailure::new(FailureClass::Options, "as asked")),
            "live" => {
                for piece in rest.split_inclusive(' ') {
                    link.live(LiveTextKind::Text, piece);
                }
                self.wait_at_gate().await;
            }
            "wait" => self.wait_at_gate().await,
            "stop" => {
                link.live(LiveTextKind::Text, rest);
                self.waiting.send_modify(|it| *it += 1);
                link.cancelled().await;
                return Ok(RunModelOutcome::Cancelled {
                    partial: None,
                    usage: Usage {
                        model_calls: 1,
                        ..Usage::default()
                    },
                });
            }
            "settings" => {
                let model = request.context.settings.model;
                return Ok(completed(&format!("{model:?}")));
            }
            "report" => {
                self.wait_at_gate().await;
                // Where the engine goes down, nobody answers.
                let _ = link.deliver(reported(rest)).await;
                std::future::pending::<()>().await;
            }
            "report_last" => tokio::select! {
                biased;
                answer = link.deliver(reported(rest)) => panic!("too late: {answer:?}"),
                () = std::future::ready(()) => panic!("as the test asked"),
            },
            "start" => {
                let tool_call_id = ToolCallId::new(rest).unwrap();
                let starting = SegmentEvent::CallStarting { tool_call_id };
                let answer = link.deliver(starting).await;
                return Ok(completed(&format!("{answer:?}")));
            }
            _ => {}
        }
        Ok(completed(&format!("re: {text}")))
    }

    async fn call_tool(&self, call: ToolCallRequest) -> ToolCallEnd {
        self.log(Run::Tool {
            call: call.tool_call_id.to_string(),
            attempt: call.attempt,
            key: call.idempotency_key.to_string(),
        });
        match call.tool_name.as_str() {
            "flaky" if call.attempt < 3 => {
                return ToolCallEnd::Unknown {
                    detail: "as asked".to_owned(),
                };
            }
            "panic" => panic!("as the test asked"),
            "slow" | "slow_idempotent" => self.wait_at_gate().await,
            _ => {}
        }
        ToolCallEnd::Succeeded {
            output: format!("ran {}", call.arguments),
        }
    }
}

fn requested(calls: &str, model_calls: u64) -> RunModelOutcome {
    let calls = calls.split(' ').map(|it| {
        let (tool, id) = it.split_once(':').unwrap();
        RequestedCall {
            tool_call_id: ToolCallId::new(id).unwrap(),
            tool_name: tool.to_owned(),
            arguments: format!("{{\"for\":\"{id}\"}}"),
            shown_arguments: None,
            policy: policy(tool),
            place: match tool {
                "inside" => CallPlace::Segment,
                _ => CallPlace::Step,
            },
        }
    });
    RunModelOutcome::ToolCallsRequested {
        calls: calls.collect(),
        messages: vec![message("I call tools.")],
        usage: Usage {
            model_calls,
            ..Usage::default()
        },
    }
}

/// A checkpoint that asks for the calls.
fn reported(calls: &str) -> SegmentEvent {
    match requested(calls, 0) {
        RunModelOutcome::ToolCallsRequested {
            calls,
            messages,
            usage,
        } => SegmentEvent::Checkpoint(SegmentProgress {
            messages,
            ended: Vec::new(),
            calls,
            usage,
        }),
        other => panic!("it asks for calls: {other:?}"),
    }
}

fn policy(tool: &str) -> ToolPolicy {
    match tool {
        "write" => ToolPolicy::new(ToolEffect::NonIdempotentWrite),
        "free" | "panic" | "slow" | "inside" => {
            ToolPolicy::new(ToolEffect::NonIdempotentWrite).with_approval(Approval::NotRequired)
        }
        "idempotent" | "flaky" | "slow_idempotent" => ToolPolicy::new(ToolEffect::IdempotentWrite),
        other => panic!("no tool {other}"),
    }
}

fn completed(text: &str) -> RunModelOutcome {
    RunModelOutcome::TurnCompleted {
        messages: vec![message(text)],
        usage: Usage {
            model_calls: 1,
            ..Usage::default()
        },
    }
}

fn message(text: &str) -> NewMessage {
    NewMessage {
        role: MessageRole::Assistant,
        text: text.to_owned(),
        tool_call_id: None,
        item: FrameworkItem::from_text(r#"{"kind":"scripted"}"#.to_owned()).unwrap(),
    }
}
