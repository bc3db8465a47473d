//! What the loop does when the session does not keep up with the CLI.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use serde_json::json;
use tokio::sync::{mpsc, watch};

use super::*;
use crate::ids::{Revision, SessionId, StepId, TurnId};
use crate::policy::{ToolEffect, ToolPolicies, ToolPolicy};
use crate::protocol::AgentSetup;
use crate::runner::SegmentUpdate;
use crate::runner::claude::hooks::Hooks;
use crate::runner::claude::mcp::ServedTools;
use crate::segment::{GatedPath, SegmentPlan, SegmentStart};
use crate::turn::RunModelContext;

/// More lines than this without a pause: the loop reads without end.
const LINES_MAX: usize = 20_000;

/// A CLI that always has another line ready.
#[derive(Debug, Clone)]
struct Flood {
    line: fn(usize) -> serde_json::Value,
    read: Arc<AtomicUsize>,
    answered: Arc<AtomicUsize>,
}

impl Flood {
    fn of(line: fn(usize) -> serde_json::Value) -> Self {
        Self {
            line,
            read: Arc::default(),
            answered: Arc::default(),
        }
    }

    fn read(&self) -> usize {
        self.read.load(Ordering::SeqCst)
    }

    /// Starts the loop over this CLI, and returns what the session would get.
    fn drive(&self) -> (Drive, mpsc::UnboundedReceiver<SegmentUpdate>) {
        let (updates, updated) = mpsc::unbounded_channel();
        let (_, revision) = watch::channel(Revision(0));
        let link = SegmentLink::new(updates, revision);
        let server = ToolServer::start(
            ServedTools {
                server_name: "tools".to_owned(),
                tools: BTreeMap::new(),
                replay_only: None,
                session_id: SessionId::new("s").unwrap(),
            },
            TurnId::new(1),
        );
        let segment = Segment::new(SegmentPlan {
            server_name: "tools".to_owned(),
            custom_tools: BTreeMap::new(),
            policies: ToolPolicies::new().with("Read", ToolPolicy::new(ToolEffect::Read)),
            asks_hooks: false,
            ruled: BTreeSet::new(),
            has_refusing_rules: false,
            setup: AgentSetup::default(),
            model: None,
            resume: None,
            answered: BTreeSet::new(),
            offered: BTreeSet::new(),
            path: GatedPath::Native,
            is_warm: false,
            stays: false,
            start: SegmentStart::Turn {
                prompt: vec!["go".to_owned()],
                uuid: None,
            },
        })
        .unwrap();
        let hooks = HookRuns::new(
            Hooks {
                hooks: Vec::new(),
                deadline: Duration::from_secs(1),
                rules: BTreeMap::new(),
            },
            RunModelContext::new(SessionId::new("s").unwrap(), TurnId::new(1), StepId::new(1)),
        );
        let flood = self.clone();
        let spec = LaunchSpec::new(Vec::new(), BTreeMap::new(), "/".into());
        let care = Care {
            versions: CliVersionPolicy::default(),
            redaction: Redaction::of(&spec.environment, &BTreeMap::new(), None),
            live_window: Duration::from_secs(60),
            live: LiveProof::default(),
        };
        let drive = Box::pin(async move {
            drive(
                &flood,
                Source::Start(spec, server),
                segment,
                hooks,
                link,
                None,
                care,
            )
            .await
            .map(|it| it.outcome)
        });
        (drive, updated)
    }
}

type Drive = Pin<Box<dyn Future<Output = Result<RunModelOutcome, AttemptFailure>> + Send>>;

#[async_trait]
impl CliLauncher for Flood {
    async fn launch(&self, _: LaunchSpec) -> Result<Box<dyn CliProcess>, CliError> {
        Ok(Box::new(self.clone()))
    }
}

#[async_trait]
impl CliProcess for Flood {
    fn process_id(&self) -> Option<u32> {
        None
    }

    fn send(&mut self, _: String) -> Result<(), CliError> {
        self.answered.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    async fn receive(&mut self) -> Result<Option<Vec<u8>>, CliError> {
        let number = self.read.fetch_add(1, Ordering::SeqCst);
        assert!(number < LINES_MAX, "the loop reads without end");
        Ok(Some((self.line)(number).to_string().into_bytes()))
    }

    fn close_input(&mut self) {}

    async fn shutdown(&mut self, _: Duration) -> CliExit {
        CliExit::Exited(0)
    }

    fn stderr_tail(&self) -> String {
        String::new()
    }
}

/// Runs the loop until it waits for something: only then does the paused clock move.
async fn until_it_waits(drive: &mut Drive) {
    let end = tokio::time::timeout(Duration::from_secs(1), drive).await;
    assert!(end.is_err(), "{end:?}");
}

/// The next update that is about the conversation.
fn next_told(updated: &mut mpsc::UnboundedReceiver<SegmentUpdate>) -> SegmentUpdate {
    loop {
        let update = updated.try_recv().unwrap();
        if !matches!(update, SegmentUpdate::ModelCalls(_)) {
            return update;
        }
    }
}

/// R, peers.md 2: live text that the session does not take stops the reading at 1 MiB, and taking it
/// goes on, so that no CLI fills the worker's memory.
#[tokio::test(start_paused = true)]
async fn text_that_the_session_does_not_take_stops_the_reading() {
    let flood = Flood::of(|_| {
        json!({"type": "stream_event", "parent_tool_use_id": null, "event": {
            "type": "content_block_delta",
            "delta": {"type": "text_delta", "text": "x".repeat(1024)}}})
    });
    let (mut drive, mut updated) = flood.drive();
    for round in 1..=3 {
        until_it_waits(&mut drive).await;
        assert_eq!(flood.read(), round * 1024);
        for _ in 0..1024 {
            assert!(matches!(
                next_told(&mut updated),
                SegmentUpdate::Live(_, text) if text.len() == 1024
            ));
        }
    }
}

/// Events that the session does not take stop the reading too, after every hook before them was
/// answered; an answer goes on.
#[tokio::test(start_paused = true)]
async fn events_that_the_session_does_not_take_stop_the_reading() {
    let flood = Flood::of(|number| {
        json!({"type": "control_request", "request_id": format!("r{number}"), "request": {
            "subtype": "hook_callback", "callback_id": "abide-pre-tool-use",
            "tool_use_id": format!("toolu_{number}"),
            "input": {"hook_event_name": "PreToolUse", "tool_name": "Read", "tool_input": {}}}})
    });
    let (mut drive, mut updated) = flood.drive();
    until_it_waits(&mut drive).await;
    let read = EVENTS_WAITING_MAX + 1;
    assert_eq!(flood.read(), read);
    // With the first lines: initialize and the prompt.
    assert_eq!(flood.answered.load(Ordering::SeqCst), read + 2);
    let SegmentUpdate::Event(_, reply) = next_told(&mut updated) else {
        panic!("an event");
    };
    reply.send(Ok(SegmentReply::Accepted)).unwrap();
    until_it_waits(&mut drive).await;
    assert_eq!(flood.read(), read + 1);
}
