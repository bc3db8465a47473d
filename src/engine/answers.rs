//! What a segment tells its session, committed, and the answer that it gets.

use super::steps::{StepContext, check_limits};
use crate::failure::AttemptFailure;
use crate::ids::{InterruptId, ToolCallId, TurnId};
use crate::runner::{LinkError, SegmentEvent, SegmentReply, SegmentUpdate};
use crate::session::{AttemptKey, Input, Reply};
use crate::store::RowKind;

/// What an update did to the gated calls that run inside the segment.
pub(super) enum CallChange {
    Started,
    Ended,
    None,
    /// The attempt is over: the turn waits without a process.
    Parked,
    /// The turn may not go on.
    Stopped(AttemptFailure),
}

/// Reduces and commits what the segment says, and answers it.
pub(super) async fn answer(
    context: &StepContext,
    attempt: &AttemptKey,
    turn_id: TurnId,
    live: &mut super::live::LiveWriter,
    update: SegmentUpdate,
) -> CallChange {
    match update {
        SegmentUpdate::Live(kind, piece) => {
            live.write(kind, piece.into_text());
            CallChange::None
        }
        SegmentUpdate::ModelCalls(_) => CallChange::None,
        SegmentUpdate::Event(event, reply) => {
            let ends_call = matches!(event, SegmentEvent::CallFinished { .. });
            let is_checkpoint = matches!(event, SegmentEvent::Checkpoint(_));
            let input = Input::Segment {
                attempt: attempt.clone(),
                event,
            };
            let applied = context.deliver(input).await;
            if is_checkpoint
                && let Ok(applied) = &applied
                && let Err(failure) = check_limits(context, &applied.state).await
            {
                // Unanswered, the CLI asks the model nothing more.
                return CallChange::Stopped(failure);
            }
            let answer = match applied.map(|it| it.reply) {
                Ok(Reply::CallGranted) => (context.check_fence().await)
                    .map(|()| SegmentReply::Granted)
                    .map_err(|_| LinkError::Superseded),
                Ok(Reply::CallIsFinal(id)) => final_reply(context, turn_id, &id).await,
                Ok(Reply::CallNotPermitted) => Ok(SegmentReply::NotPermitted),
                Ok(Reply::CallIsOpen) => Ok(SegmentReply::Open),
                Ok(Reply::CallIsPermitted { changed_in }) => {
                    permitted_reply(context, changed_in).await
                }
                Ok(Reply::Parked) => Ok(SegmentReply::Parked),
                Ok(Reply::Done) => Ok(SegmentReply::Accepted),
                Ok(
                    Reply::Superseded
                    | Reply::NotYet(_)
                    | Reply::Granted(_)
                    | Reply::MessageAccepted { .. }
                    | Reply::InterruptResolved { .. }
                    | Reply::TurnCancelled { .. }
                    | Reply::SessionClosing { .. }
                    | Reply::SettingsUpdated { .. },
                ) => Err(LinkError::Superseded),
                Err(error) => Err(error),
            };
            let change = match &answer {
                Ok(SegmentReply::Granted) => CallChange::Started,
                Ok(SegmentReply::Accepted) if ends_call => CallChange::Ended,
                Ok(SegmentReply::Accepted) if is_checkpoint => {
                    live.committed();
                    CallChange::None
                }
                Ok(
                    SegmentReply::Accepted
                    | SegmentReply::Final(_)
                    | SegmentReply::NotPermitted
                    | SegmentReply::Open
                    | SegmentReply::Permitted { .. },
                )
                | Err(_) => CallChange::None,
                Ok(SegmentReply::Parked) => CallChange::Parked,
            };
            // The segment may have ended meanwhile.
            let _ = reply.send(answer);
            change
        }
    }
}

/// A person's arguments are read before the call's start mark is asked for: a store that cannot be
/// read costs no start.
async fn permitted_reply(
    context: &StepContext,
    changed_in: Option<InterruptId>,
) -> Result<SegmentReply, LinkError> {
    let Some(key) = changed_in else {
        return Ok(SegmentReply::Permitted {
            changed_arguments: None,
        });
    };
    match context.row(RowKind::ChangedArguments, key.as_str()).await {
        Ok(arguments) => Ok(SegmentReply::Permitted {
            changed_arguments: Some(arguments),
        }),
        Err(error) => {
            tracing::warn!(session = %context.session, %error, "a call's changed arguments cannot be read");
            Err(LinkError::Closed)
        }
    }
}

async fn final_reply(
    context: &StepContext,
    turn_id: TurnId,
    id: &ToolCallId,
) -> Result<SegmentReply, LinkError> {
    let key = InterruptId::of_call(turn_id, id);
    match context.outcome(key.as_str()).await {
        Ok(outcome) => Ok(SegmentReply::Final(outcome)),
        Err(error) => {
            tracing::warn!(session = %context.session, %error, "a call's outcome cannot be read");
            Err(LinkError::Closed)
        }
    }
}
