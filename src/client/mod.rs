//! What a host calls: start a session, send messages, answer interrupts, look.

mod copies;
mod error;
mod events;
mod inbox;
mod log;
mod questions;
mod receipt;
pub(crate) mod recent;
mod rpc;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, SystemClock};
use crate::engine::live::LiveHub;
use crate::engine::packer::Packer;
use crate::ids::{EventCursor, FlowType, MessageId, RequestId, SessionId, Tenant};
use crate::record::{ArgumentsDigest, CallRecord, Decision, read_record};
use crate::session::{
    self, Input, METADATA_BYTES_MAX, Reply, Resolution, ResolvedArguments, SessionState,
};
use crate::snapshot::AgentSnapshot;
use crate::store::{
    RowKey, RowKind, SessionFilter, SessionPage, SessionSize, StateStore, StoreError,
};

pub use crate::session::{Bug, CloseMode, Refusal, SETTINGS_BYTES_MAX, SteerMode};
pub use error::ClientError;
pub use events::{
    EventBuffer, EventStream, EventStreamOptions, InvalidEventBuffer, Observed, Overflow,
    OverflowPolicy,
};
pub use log::EventPage;
pub use questions::AnswerQuestion;
use receipt::Receipt;
use recent::RecentLogs;
pub use rpc::{Applied, accepted};

/// What a session is started with.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StartSession {
    /// The session's id, chosen by the server side of the application.
    pub session_id: SessionId,
    /// The registered Flow that it runs.
    pub flow_type: FlowType,
    /// Its first message, if there is one already.
    pub initial_message: Option<String>,
    /// Whose it is.
    pub tenant: Option<Tenant>,
    /// What the application wants to remember about it; given to runners.
    pub metadata: BTreeMap<String, String>,
    /// How long the session may take in all; then it ends, whatever it does. Default: without end
    /// (N02).
    pub timeout: Option<Duration>,
}

impl StartSession {
    /// Describes a session without a message, tenant, metadata or timeout.
    #[must_use]
    pub const fn new(session_id: SessionId, flow_type: FlowType) -> Self {
        Self {
            session_id,
            flow_type,
            initial_message: None,
            tenant: None,
            metadata: BTreeMap::new(),
            timeout: None,
        }
    }

    /// Sets the first message.
    #[must_use]
    pub fn with_initial_message(mut self, text: impl Into<String>) -> Self {
        self.initial_message = Some(text.into());
        self
    }

    /// Sets whose session it is.
    #[must_use]
    pub fn with_tenant(mut self, tenant: Tenant) -> Self {
        self.tenant = Some(tenant);
        self
    }

    /// Adds one thing to remember.
    #[must_use]
    pub fn with_metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    /// Sets how long the session may take in all.
    #[must_use]
    pub const fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    fn digest(&self) -> String {
        let content = serde_json::json!([
            self.flow_type,
            self.initial_message,
            self.tenant,
            self.metadata,
            self.timeout.map(|it| it.as_millis().to_string()),
        ]);
        ArgumentsDigest::of(&self.session_id, "start_session", &content.to_string())
            .as_str()
            .to_owned()
    }
}

/// An answer to an interrupt.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ResolveInterrupt {
    resolution: Resolution,
    request_id: Option<RequestId>,
}

impl ResolveInterrupt {
    /// Lets the call run as it is.
    #[must_use]
    pub fn approve(interrupt_id: crate::ids::InterruptId) -> Self {
        Self::new(interrupt_id, Decision::Approve)
    }

    /// Refuses the call; the model is told the message, if there is one.
    #[must_use]
    pub fn reject(interrupt_id: crate::ids::InterruptId, message: Option<String>) -> Self {
        Self::new(interrupt_id, Decision::Reject { message })
    }

    fn new(interrupt_id: crate::ids::InterruptId, decision: Decision) -> Self {
        let resolution = Resolution {
            interrupt_id,
            decision,
            decided_by: None,
            digest: None,
            arguments: ResolvedArguments::AsAsked,
        };
        Self {
            resolution,
            request_id: None,
        }
    }

    /// Says who decided; kept with the record.
    #[must_use]
    pub fn decided_by(mut self, person: impl Into<String>) -> Self {
        self.resolution.decided_by = Some(person.into());
        self
    }

    /// Binds the answer to the input that the person saw: for another one it is refused (G4).
    #[must_use]
    pub fn for_digest(mut self, digest: ArgumentsDigest) -> Self {
        self.resolution.digest = Some(digest);
        self
    }

    /// Lets the call run with other arguments: a JSON object as text, not longer than 256 KiB. The record
    /// gets a new digest, and the model is told with the result. The application's hooks and approval
    /// rules are not asked about them: the person's word is the last one. A rejection with changed
    /// arguments is refused ([`Refusal::ArgumentsOfRejected`]).
    ///
    /// A tool of the CLI is given them as the hooks' answer, and the note stands beside its result
    /// (measured on CLI 2.1.316 and 2.1.332). The CLI does not check them against the tool's schema as
    /// it checks the model's; what the tool cannot run with, it answers with an error.
    #[must_use]
    pub fn with_changed_arguments(mut self, arguments: impl Into<String>) -> Self {
        self.resolution.arguments = ResolvedArguments::Changed(arguments.into());
        self
    }

    /// Names the request: the same request again gets the same answer.
    #[must_use]
    pub fn with_request_id(mut self, request_id: RequestId) -> Self {
        self.request_id = Some(request_id);
        self
    }
}

/// What became of a message that was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AcceptedMessage {
    /// Its id.
    pub message_id: MessageId,
    /// True when it waits for the running turn to end.
    pub queued: bool,
    /// True when this request had been accepted before and nothing changed now.
    pub duplicate: bool,
}

/// Starts sessions, sends messages, answers interrupts and reads, over a store.
///
/// Any process may hold one: what it does is one commit, and whoever owns the session sees it. No
/// engine needs to run for it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct AgentSessionClient {
    store: Arc<dyn StateStore>,
    clock: Arc<dyn Clock>,
    recent: RecentLogs,
    engine: Option<EngineSide>,
}

/// What a client has when an engine of this process made it.
#[derive(Debug, Clone)]
pub(crate) struct EngineSide {
    pub(crate) live: LiveHub,
    pub(crate) recent: RecentLogs,
    pub(crate) flow_types: Arc<BTreeSet<FlowType>>,
}

impl AgentSessionClient {
    /// Makes a client for the sessions of a store, without live text: that goes out by the engine's
    /// own client, [`LocalEngine::client`](crate::engine::LocalEngine::client).
    #[must_use]
    pub fn new(store: Arc<dyn StateStore>) -> Self {
        Self {
            store,
            clock: Arc::new(SystemClock),
            recent: RecentLogs::default(),
            engine: None,
        }
    }

    pub(crate) fn of_engine(
        store: Arc<dyn StateStore>,
        clock: Arc<dyn Clock>,
        engine: EngineSide,
    ) -> Self {
        Self {
            store,
            clock,
            recent: engine.recent.clone(),
            engine: Some(engine),
        }
    }

    /// Starts a session; true when it is new. The same request for the same id again is the same
    /// session and changes nothing.
    ///
    /// # Errors
    /// [`ClientError::SessionExists`] when the id is taken by another request,
    /// [`ClientError::UnknownFlowType`] when the engine that made this client does not run it,
    /// [`ClientError::Refused`] when the first message or the metadata is refused, and what the
    /// store reports.
    ///
    /// # Cancel safety
    /// A dropped call may have started the session; the same call again finds out.
    pub async fn start_session(&self, start: StartSession) -> Result<bool, ClientError> {
        let digest = start.digest();
        let created = self.created(&start, digest.clone())?;
        self.commit_start(start, digest, created).await
    }

    /// Makes the first reduction of a session.
    fn created(
        &self,
        start: &StartSession,
        digest: String,
    ) -> Result<session::Reduction, ClientError> {
        let engine = self.engine.as_ref();
        if engine.is_some_and(|it| !it.flow_types.contains(&start.flow_type)) {
            return Err(ClientError::UnknownFlowType {
                flow_type: start.flow_type.clone(),
            });
        }
        // As it becomes part of the state: an escaped character takes up to six bytes.
        let metadata = serde_json::to_vec(&start.metadata).map_err(|_| Bug {
            invariant: "metadata is JSON",
        })?;
        if metadata.len() > METADATA_BYTES_MAX {
            return Err(ClientError::Refused(Refusal::FieldTooLong {
                field: "metadata",
                bytes_max: METADATA_BYTES_MAX,
            }));
        }
        let now = self.clock.now();
        Ok(session::create(
            start.session_id.clone(),
            start.flow_type.clone(),
            start.tenant.clone(),
            start.metadata.clone(),
            digest,
            start.timeout.map(|it| now.after(it)),
            now,
        ))
    }

    /// Sends a message. It becomes a turn of its own, in the order in which messages were accepted (G6).
    ///
    /// # Errors
    /// [`ClientError::NoSession`], [`ClientError::Refused`] (blank, too long, queue full),
    /// [`ClientError::RequestConflict`], and what the store reports.
    ///
    /// # Cancel safety
    /// A dropped call may have been accepted; with a request id the same call again finds out.
    pub async fn send_user_message(
        &self,
        session: &SessionId,
        text: impl Into<String>,
        request_id: Option<RequestId>,
    ) -> Result<AcceptedMessage, ClientError> {
        let input = Input::SendUserMessage { text: text.into() };
        match self.reduce_once(session, input, request_id).await? {
            (Reply::MessageAccepted { message_id, queued }, duplicate) => Ok(AcceptedMessage {
                message_id,
                queued,
                duplicate,
            }),
            _ => Err(ClientError::Bug(Bug {
                invariant: "a message is answered by its acceptance",
            })),
        }
    }

    /// Answers an interrupt; false when this very answer had been given before and nothing changed.
    /// Of two different answers the one whose commit comes first wins.
    ///
    /// # Errors
    /// [`ClientError::NoSession`], [`ClientError::Refused`] (unknown, already resolved, another
    /// digest), [`ClientError::RequestConflict`], and what the store reports.
    ///
    /// # Cancel safety
    /// A dropped call may have been applied; the same call again finds out.
    pub async fn resolve_interrupt(
        &self,
        session: &SessionId,
        answer: ResolveInterrupt,
    ) -> Result<bool, ClientError> {
        let input = Input::ResolveInterrupt(answer.resolution);
        match self.reduce_once(session, input, answer.request_id).await? {
            (
                Reply::InterruptResolved {
                    duplicate: repeated,
                },
                duplicate,
            ) => Ok(!repeated && !duplicate),
            _ => Err(ClientError::Bug(Bug {
                invariant: "an answer is answered by its resolution",
            })),
        }
    }

    /// Returns the session as it is now, with its whole conversation.
    ///
    /// # Errors
    /// [`ClientError::NoSession`], and what the store reports.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn snapshot(&self, session: &SessionId) -> Result<AgentSnapshot, ClientError> {
        view::snapshot(&self.store, session, None).await
    }

    /// Returns how many bytes the session takes, plain and as it is stored.
    ///
    /// # Errors
    /// [`ClientError::NoSession`], and what the store reports.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn session_size(&self, session: &SessionId) -> Result<SessionSize, ClientError> {
        match self.store.size(session).await {
            Err(StoreError::NoSession { session }) => Err(ClientError::NoSession { session }),
            size => Ok(size?),
        }
    }

    /// Returns the session's events after a cursor: first the stored ones, then the open interrupts and
    /// [`Observed::CaughtUp`], then new ones as they are committed, without a gap (G13). The cursor holds
    /// in every process, and after any restart.
    ///
    /// # Errors
    /// [`ClientError::NoSession`], and what the store reports.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn events(
        &self,
        session: &SessionId,
        after: EventCursor,
    ) -> Result<EventStream, ClientError> {
        self.events_with(session, after, EventStreamOptions::default())
            .await
    }

    /// Lists sessions by id, at most `limit`.
    ///
    /// # Errors
    /// What the store reports.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn list_sessions(
        &self,
        filter: &SessionFilter,
        limit: usize,
    ) -> Result<SessionPage, ClientError> {
        Ok(self.store.list(filter, limit).await?)
    }

    /// Reduces and commits one request; the flag says that it had been answered before.
    async fn reduce_once(
        &self,
        session: &SessionId,
        input: Input,
        request_id: Option<RequestId>,
    ) -> Result<(Reply, bool), ClientError> {
        let digest = receipt::digest(session, &input);
        loop {
            let (revision, state) = view::load(&self.store, session).await?;
            if let Some(id) = &request_id
                && let Some(earlier) = self
                    .read_row::<Receipt>(session, RowKind::Receipt, id.as_str())
                    .await?
            {
                let reply =
                    earlier
                        .answer_for(&digest)
                        .ok_or_else(|| ClientError::RequestConflict {
                            request_id: id.clone(),
                        })?;
                return Ok((reply, true));
            }
            let mut reduction = match session::reduce(&state, input.clone(), self.clock.now()) {
                Ok(reduction) => reduction,
                Err(error) => {
                    return Ok((
                        self.answer_from_record(session, &input, error).await?,
                        false,
                    ));
                }
            };
            // With a request id even "nothing changed" is an answer that a repeat must get.
            if reduction.is_unchanged() && request_id.is_none() {
                return Ok((reduction.reply, false));
            }
            if let Some(id) = &request_id {
                let receipt = Receipt::encode(digest.clone(), &reduction.reply)?;
                reduction.put_row(RowKind::Receipt, id.as_str(), receipt);
            }
            let mut commit = reduction.to_commit()?;
            Packer::default()
                .pack(&*self.store, session, &mut commit)
                .await;
            match self.store.commit(session, revision, None, commit).await {
                Ok(_) => return Ok((reduction.reply, false)),
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// An answer to an interrupt of an earlier turn is answered from its record.
    async fn answer_from_record(
        &self,
        session: &SessionId,
        input: &Input,
        error: session::ReduceError,
    ) -> Result<Reply, ClientError> {
        if let Input::ResolveInterrupt(resolution) = input
            && matches!(
                error,
                session::ReduceError::Refused(Refusal::UnknownInterrupt { .. })
            )
        {
            let id = &resolution.interrupt_id;
            if let Some(record) = self
                .read_row::<CallRecord>(session, RowKind::Record, id.as_str())
                .await?
            {
                let decision = session::normalized(resolution.decision.clone());
                let changed = resolution.arguments.text();
                let reply = session::answer_again(
                    session,
                    &record,
                    id.clone(),
                    &decision,
                    changed,
                    resolution.digest.as_ref(),
                );
                return reply.map_err(ClientError::Refused);
            }
        }
        Err(ClientError::of_reduce(error))
    }

    async fn read_row<T: serde::de::DeserializeOwned>(
        &self,
        session: &SessionId,
        kind: RowKind,
        key: &str,
    ) -> Result<Option<T>, ClientError> {
        let keys = [RowKey {
            kind,
            key: key.to_owned(),
        }];
        let row = self.store.read_rows(session, &keys).await?.pop().flatten();
        row.map(|bytes| read_record(kind.name(), &bytes))
            .transpose()
            .map_err(|it| ClientError::Store(it.into()))
    }

    async fn started_before(
        &self,
        session: &SessionId,
        digest: &str,
    ) -> Result<Option<bool>, ClientError> {
        match self.store.load(session).await? {
            Some(stored) => {
                let state = SessionState::read(&stored.state).map_err(StoreError::from)?;
                Ok(Some(state.start_digest == digest))
            }
            None => Ok(None),
        }
    }
}
