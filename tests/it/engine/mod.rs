//! The local engine over a runner that has no model: what it promises to every runner.

mod broken_store;
mod call_faults;
mod clients;
mod clocks;
mod coded;
mod copies;
mod events;
mod inbox;
mod many_events;
mod races;
mod receipts;
mod recovery;
mod scripted;
mod size;
mod slow_readers;
mod stages;
mod store_faults;
mod turns;
mod wishes;

use std::sync::Arc;

use abide::client::{AgentSessionClient, EventStream, Observed, ResolveInterrupt, StartSession};
use abide::engine::{LocalEngine, LocalEngineOptions};
use abide::event::{EventKind, SessionEvent};
use abide::flow::{AgentSessionFlow, FlowRegistry, SessionOptions};
use abide::ids::{EventCursor, FlowType, InterruptId, SessionId, Timestamp};
use abide::record::MessageRole;
use abide::spend::UsageLimit;
use abide::store::{MemoryStateStore, SessionStatus, StateStore};
use abide::testing::clock::TokioClock;

use crate::support::patience::watched;
use scripted::{Run, Scripted};

/// Where the virtual wall clock starts.
const START: Timestamp = Timestamp(1_000_000);

/// A store, a runner and a clock, over which engines come and go.
struct Place {
    store: Arc<dyn StateStore>,
    runner: Scripted,
    options: LocalEngineOptions,
    flow_options: SessionOptions,
    spend_limit: Option<UsageLimit>,
}

impl Place {
    /// On virtual time, in memory.
    fn new(runner: Scripted) -> Self {
        let mut options = LocalEngineOptions::default();
        options.clock = Arc::new(TokioClock::starting_at(START));
        // Its scripted segments have no tool boundary to wait for.
        options.boundary_grace = std::time::Duration::ZERO;
        Self {
            store: Arc::new(MemoryStateStore::new()),
            runner,
            options,
            flow_options: SessionOptions::default(),
            spend_limit: None,
        }
    }

    async fn engine(&self) -> LocalEngine {
        self.engine_of("Scripted").await
    }

    async fn engine_of(&self, flow_type: &str) -> LocalEngine {
        let mut flow =
            AgentSessionFlow::new(flow_type, self.runner.clone(), self.flow_options.clone())
                .unwrap();
        if let Some(limit) = self.spend_limit {
            flow = flow.with_spend_limit(limit);
        }
        let registry = FlowRegistry::new().register(flow).unwrap();
        LocalEngine::start_with(registry, Arc::clone(&self.store), self.options.clone())
            .await
            .unwrap()
    }

    /// A client that knows no engine: everything goes through the store.
    fn client(&self) -> AgentSessionClient {
        AgentSessionClient::new(Arc::clone(&self.store))
    }

    fn now(&self) -> Timestamp {
        self.options.clock.now()
    }

    /// Waits until nobody owns the session, as while it is parked (G9).
    async fn until_not_leased(&self, session: &SessionId) {
        for _ in 0..10_000 {
            if self
                .store
                .load(session)
                .await
                .unwrap()
                .unwrap()
                .lease
                .is_none()
            {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("the session stays leased");
    }
}

fn session(name: &str) -> SessionId {
    SessionId::new(name).unwrap()
}

fn start(name: &str, text: &str) -> StartSession {
    let flow_type = FlowType::new("Scripted").unwrap();
    StartSession::new(session(name), flow_type).with_initial_message(text)
}

fn approve(id: &str) -> ResolveInterrupt {
    ResolveInterrupt::approve(InterruptId::from_client(id))
}

fn reject(id: &str, message: &str) -> ResolveInterrupt {
    ResolveInterrupt::reject(InterruptId::from_client(id), Some(message.to_owned()))
}

/// One reader of the log of a session.
struct Log {
    stream: EventStream,
    seen: Vec<SessionEvent>,
}

impl Log {
    async fn of(client: &AgentSessionClient, session: &SessionId) -> Self {
        Self {
            stream: client.events(session, EventCursor(0)).await.unwrap(),
            seen: Vec::new(),
        }
    }

    /// Reads on until this kind of event has come this often since the beginning.
    async fn until(&mut self, count: usize, is_it: impl Fn(&EventKind) -> bool) {
        watched(async {
            while self.count(&is_it) < count {
                match self.stream.next().await.unwrap().unwrap() {
                    Observed::Event(event) => self.seen.push(event),
                    Observed::CaughtUp | Observed::Interrupt(_) | Observed::Live(_) => {}
                    other => panic!("unknown: {other:?}"),
                }
            }
        })
        .await;
    }

    fn count(&self, is_it: impl Fn(&EventKind) -> bool) -> usize {
        self.seen.iter().filter(|it| is_it(&it.kind)).count()
    }

    /// Reads on until this many turns are over.
    async fn turns_over(&mut self, count: usize) {
        self.until(count, |it| {
            matches!(
                it,
                EventKind::TurnCompleted | EventKind::TurnFailed { .. } | EventKind::TurnCancelled
            )
        })
        .await;
    }

    async fn suspended(&mut self) {
        self.until(1, |it| matches!(it, EventKind::TurnSuspended))
            .await;
    }
}

/// What people see of the conversation.
async fn texts(client: &AgentSessionClient, session: &SessionId) -> Vec<String> {
    let snapshot = client.snapshot(session).await.unwrap();
    snapshot.messages.into_iter().map(|it| it.text).collect()
}
