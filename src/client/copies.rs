//! Trying a failed turn again, forking a session, and removing one.

use std::sync::Arc;

use super::{AgentSessionClient, ClientError, StartSession, view};
use crate::client::rpc::Applied;
use crate::engine::packer::Packer;
use crate::ids::{MessageId, RequestId, SessionId, TurnId};
use crate::record::{ArgumentsDigest, MessageRole, StoredMessage};
use crate::runner::History;
use crate::session::{self, Bug, Input, Refusal, Reply, SessionState};
use crate::store::StoreError;

impl AgentSessionClient {
    /// Has the message of the last failed turn answered once more, in a new turn. The model reads what
    /// became of the failed one first.
    ///
    /// # Errors
    /// [`Refusal::TurnNotFailed`] when it is not the last turn that failed, or was tried again already;
    /// [`Refusal::SessionBusy`] while a turn is active or a message waits.
    ///
    /// # Cancel safety
    /// A dropped call may have been applied; with a request id the same call again finds out.
    pub async fn retry_turn(
        &self,
        session: &SessionId,
        turn_id: TurnId,
        request_id: Option<RequestId>,
    ) -> Result<Applied<MessageId>, ClientError> {
        let (_, state) = view::load(&self.store, session).await?;
        let messages = self.conversation(&state).await?;
        let asked = messages.into_iter();
        let mut asked = asked.filter(|it| it.turn_id == turn_id && it.role == MessageRole::User);
        // Those that were steered in before have their answers.
        let text = asked.next_back().map_or_else(String::new, |it| it.text);
        let input = Input::RetryTurn { turn_id, text };
        match self.reduce_once(session, input, request_id).await? {
            (Reply::MessageAccepted { message_id, .. }, duplicate) => Ok(Applied {
                value: message_id,
                duplicate,
            }),
            _ => Err(ClientError::Bug(Bug {
                invariant: "a message is answered by its acceptance",
            })),
        }
    }

    /// Starts a session with the conversation of another one up to a completed turn; true when it is
    /// new. What the tools changed in the world is not undone, and files are not copied. Its
    /// settings come along, and everything else is as the request says; an initial message is the
    /// first after that turn.
    ///
    /// # Errors
    /// [`ClientError::NoSession`], [`Refusal::UnknownTurn`] when the conversation has no such turn or
    /// it was not completed, and the errors of [`AgentSessionClient::start_session`].
    ///
    /// # Cancel safety
    /// A dropped call may have started the session; the same call again finds out.
    pub async fn fork_session(
        &self,
        from: &SessionId,
        turn_id: TurnId,
        start: StartSession,
    ) -> Result<bool, ClientError> {
        let digest = ArgumentsDigest::of(
            from,
            "fork_session",
            &format!("{turn_id} {}", start.digest()),
        );
        let digest = digest.as_str().to_owned();
        if let Some(is_same) = self.started_before(&start.session_id, &digest).await? {
            return match is_same {
                true => Ok(false),
                false => Err(ClientError::SessionExists {
                    session: start.session_id,
                }),
            };
        }
        let (_, state) = view::load(&self.store, from).await?;
        let messages = self.completed_turns(&state, turn_id).await?;
        let created = self.created(&start, digest.clone())?;
        let forked = created.fork_from(&state, turn_id, messages)?;
        self.commit_start(start, digest, forked).await
    }

    /// Removes a session that is over, with everything stored under it.
    ///
    /// # Errors
    /// [`ClientError::NoSession`], [`Refusal::SessionNotEnded`]: close it first; and what the store
    /// reports.
    ///
    /// # Cancel safety
    /// A dropped call may have removed it; the same call again finds out.
    pub async fn delete_session(&self, session: &SessionId) -> Result<(), ClientError> {
        let (_, state) = view::load(&self.store, session).await?;
        if !state.lifetime.is_ended() {
            return Err(ClientError::Refused(Refusal::SessionNotEnded));
        }
        match self.store.delete(session).await {
            Ok(true) => Ok(()),
            Ok(false) | Err(StoreError::NoSession { .. }) => Err(ClientError::NoSession {
                session: session.clone(),
            }),
            Err(error) => Err(error.into()),
        }
    }

    async fn conversation(&self, state: &SessionState) -> Result<Vec<StoredMessage>, ClientError> {
        let (store, session) = (Arc::clone(&self.store), state.session_id.clone());
        let history = History::open_impatiently(store, session, state.head).await?;
        Ok(history.read_all().await?)
    }

    /// Returns the conversation up to the end of this turn, which has an answer and is over.
    async fn completed_turns(
        &self,
        state: &SessionState,
        turn_id: TurnId,
    ) -> Result<Vec<StoredMessage>, ClientError> {
        let is_active = state.turn.as_ref().is_some_and(|it| it.turn_id == turn_id);
        let mut messages = self.conversation(state).await?;
        messages.retain(|it| it.turn_id <= turn_id);
        let of_turn = |role| {
            let is_it = move |it: &&StoredMessage| it.turn_id == turn_id && it.role == role;
            messages.iter().any(|it| is_it(&it))
        };
        // A turn that ended without an answer has a note.
        let is_completed = of_turn(MessageRole::Assistant) && !of_turn(MessageRole::Note);
        if is_active || !is_completed {
            return Err(ClientError::Refused(Refusal::UnknownTurn { turn_id }));
        }
        Ok(messages)
    }
}

impl AgentSessionClient {
    /// Commits the start of a session; true when it is new.
    pub(super) async fn commit_start(
        &self,
        start: StartSession,
        digest: String,
        created: session::Reduction,
    ) -> Result<bool, ClientError> {
        let session_id = start.session_id;
        let now = self.clock.now();
        let mut commit = created.to_commit()?;
        if let Some(text) = start.initial_message {
            let first = session::reduce(&created.state, Input::SendUserMessage { text }, now)
                .map_err(ClientError::of_reduce)?;
            commit = commit.followed_by(first.to_commit()?);
        }
        let store = &*self.store;
        Packer::default()
            .pack(store, &session_id, &mut commit)
            .await;
        let committed = self
            .store
            .commit(&session_id, session::NOT_CREATED, None, commit);
        match committed.await {
            Ok(_) => Ok(true),
            Err(error)
                if matches!(error, StoreError::Conflict { .. }) || error.may_have_happened() =>
            {
                match self.started_before(&session_id, &digest).await {
                    Ok(Some(true)) => Ok(false),
                    Ok(Some(false)) => Err(ClientError::SessionExists {
                        session: session_id,
                    }),
                    // What cannot be read back may hold all the same.
                    Err(_) if error.may_have_happened() => Err(error.into()),
                    Ok(None) => Err(error.into()),
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error.into()),
        }
    }
}
