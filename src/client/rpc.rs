//! What else a client may do to a session than to start it, to write to it and to decide.
//!
//! Each call is one commit. With a request id the same call again gets the first answer and changes
//! nothing (P03), and another call under that id is refused (P04).

use super::{AgentSessionClient, ClientError};
use crate::ids::{MessageId, RequestId, SessionId, TurnId};
use crate::session::{Bug, CloseMode, Input, Reply, SteerMode, Steering};
use crate::settings::SessionSettings;

/// Tells whether a call was taken: a refusal is `false`.
///
/// # Errors
/// Every error that is no refusal.
pub fn accepted<T>(result: Result<T, ClientError>) -> Result<bool, ClientError> {
    match result {
        Ok(_) => Ok(true),
        Err(ClientError::Refused(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// What became of a call that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Applied<T> {
    /// What the call is answered by.
    pub value: T,
    /// True when it had been taken before and nothing changed now.
    pub duplicate: bool,
}

impl AgentSessionClient {
    /// Cancels the active turn, or this one if it is active. Calls that did not start are skipped; a
    /// segment and handlers that run get the engine's grace time, and what became of them is recorded;
    /// then the turn is over, and a note tells the model. Until then the turn stays active, and it
    /// never answers.
    ///
    /// # Errors
    /// [`Refusal::TurnNotActive`](crate::client::Refusal::TurnNotActive), which also a turn gets that
    /// ended meanwhile; the errors of [`AgentSessionClient::send_user_message`] otherwise.
    ///
    /// # Cancel safety
    /// A dropped call may have been applied; with a turn id or a request id the same call again finds
    /// out. With neither it would cancel the next turn.
    pub async fn cancel_turn(
        &self,
        session: &SessionId,
        turn_id: Option<TurnId>,
        reason: Option<String>,
        request_id: Option<RequestId>,
    ) -> Result<Applied<TurnId>, ClientError> {
        let input = Input::CancelTurn { turn_id, reason };
        match self.reduce_once(session, input, request_id).await? {
            (
                Reply::TurnCancelled {
                    turn_id,
                    duplicate: repeated,
                },
                duplicate,
            ) => Ok(applied(turn_id, repeated || duplicate)),
            _ => Err(unanswered("a cancel is answered by its turn")),
        }
    }

    /// Puts a new message into the running turn, when the model has answered or at once, as `mode`
    /// says. Calls that wait for a person are skipped, and the model is told. Without a running turn
    /// the message starts one.
    ///
    /// # Errors
    /// As [`AgentSessionClient::send_user_message`]; with [`SteerMode::Now`] also
    /// [`Refusal::CallRuns`](crate::client::Refusal::CallRuns) while a call that was decided about is
    /// not over.
    ///
    /// # Cancel safety
    /// A dropped call may have been accepted; with a request id the same call again finds out.
    pub async fn steer_user_message(
        &self,
        session: &SessionId,
        text: impl Into<String>,
        mode: SteerMode,
        request_id: Option<RequestId>,
    ) -> Result<Applied<MessageId>, ClientError> {
        let steering = Steering::New(text.into());
        self.steer(session, steering, mode, request_id).await
    }

    /// Puts a queued message into the running turn, as [`AgentSessionClient::steer_user_message`] does.
    ///
    /// # Errors
    /// [`Refusal::UnknownMessage`](crate::client::Refusal::UnknownMessage) when it does not wait any
    /// more, [`Refusal::TurnNotActive`](crate::client::Refusal::TurnNotActive) when no turn runs;
    /// [`Refusal::CallRuns`](crate::client::Refusal::CallRuns) as there.
    ///
    /// # Cancel safety
    /// A dropped call may have been applied; with a request id the same call again finds out.
    pub async fn steer_queued_message(
        &self,
        session: &SessionId,
        message_id: MessageId,
        mode: SteerMode,
        request_id: Option<RequestId>,
    ) -> Result<Applied<MessageId>, ClientError> {
        let steering = Steering::Queued(message_id);
        self.steer(session, steering, mode, request_id).await
    }

    async fn steer(
        &self,
        session: &SessionId,
        steering: Steering,
        mode: SteerMode,
        request_id: Option<RequestId>,
    ) -> Result<Applied<MessageId>, ClientError> {
        let input = Input::SteerUserMessage { steering, mode };
        match self.reduce_once(session, input, request_id).await? {
            (Reply::MessageAccepted { message_id, .. }, duplicate) => {
                Ok(applied(message_id, duplicate))
            }
            _ => Err(unanswered("a message is answered by its acceptance")),
        }
    }

    /// Takes a message back that waits for its turn.
    ///
    /// # Errors
    /// [`Refusal::UnknownMessage`](crate::client::Refusal::UnknownMessage) when it does not wait: it
    /// was taken up, or deleted before.
    ///
    /// # Cancel safety
    /// A dropped call may have been applied; with a request id the same call again finds out.
    pub async fn delete_queued_message(
        &self,
        session: &SessionId,
        message_id: MessageId,
        request_id: Option<RequestId>,
    ) -> Result<Applied<()>, ClientError> {
        let input = Input::DeleteQueuedMessage { message_id };
        match self.reduce_once(session, input, request_id).await? {
            (Reply::Done, duplicate) => Ok(applied((), duplicate)),
            _ => Err(unanswered("a deletion is answered by its effect")),
        }
    }

    /// Sends another text instead of a message that waits for its turn. It gets a new id and a place
    /// behind all others.
    ///
    /// # Errors
    /// As [`AgentSessionClient::delete_queued_message`] and [`AgentSessionClient::send_user_message`].
    ///
    /// # Cancel safety
    /// A dropped call may have been applied; with a request id the same call again finds out.
    pub async fn edit_queued_message(
        &self,
        session: &SessionId,
        message_id: MessageId,
        text: impl Into<String>,
        request_id: Option<RequestId>,
    ) -> Result<Applied<MessageId>, ClientError> {
        let text = text.into();
        let input = Input::EditQueuedMessage { message_id, text };
        match self.reduce_once(session, input, request_id).await? {
            (Reply::MessageAccepted { message_id, .. }, duplicate) => {
                Ok(applied(message_id, duplicate))
            }
            _ => Err(unanswered("a message is answered by its acceptance")),
        }
    }

    /// Closes the session. It takes nothing new from now on, and is over as soon as nothing runs for
    /// it any more; its conversation and its log stay readable.
    ///
    /// # Errors
    /// [`Refusal::SessionBusy`](crate::client::Refusal::SessionBusy) with [`CloseMode::Reject`].
    ///
    /// # Cancel safety
    /// A dropped call may have been applied; the same call again finds out.
    pub async fn close_session(
        &self,
        session: &SessionId,
        mode: CloseMode,
        request_id: Option<RequestId>,
    ) -> Result<Applied<()>, ClientError> {
        let input = Input::CloseSession { mode };
        match self.reduce_once(session, input, request_id).await? {
            (
                Reply::SessionClosing {
                    duplicate: repeated,
                },
                duplicate,
            ) => Ok(applied((), repeated || duplicate)),
            _ => Err(unanswered("a close is answered by its effect")),
        }
    }

    /// Replaces the settings that later turns run with; returns their revision. A turn that is active
    /// keeps what it began with.
    ///
    /// # Errors
    /// [`Refusal::SettingsChanged`](crate::client::Refusal::SettingsChanged) when they have another
    /// revision than the expected one (the first is 0),
    /// [`Refusal::FieldTooLong`](crate::client::Refusal::FieldTooLong) over
    /// [`SETTINGS_BYTES_MAX`](crate::client::SETTINGS_BYTES_MAX).
    ///
    /// # Cancel safety
    /// A dropped call may have been applied; with a request id the same call again finds out.
    pub async fn update_settings(
        &self,
        session: &SessionId,
        expected_revision: u64,
        settings: SessionSettings,
        request_id: Option<RequestId>,
    ) -> Result<Applied<u64>, ClientError> {
        let input = Input::UpdateSettings {
            expected_revision,
            settings,
        };
        match self.reduce_once(session, input, request_id).await? {
            (Reply::SettingsUpdated { revision }, duplicate) => Ok(applied(revision, duplicate)),
            _ => Err(unanswered(
                "a change of settings is answered by its revision",
            )),
        }
    }
}

const fn applied<T>(value: T, duplicate: bool) -> Applied<T> {
    Applied { value, duplicate }
}

const fn unanswered(invariant: &'static str) -> ClientError {
    ClientError::Bug(Bug { invariant })
}
