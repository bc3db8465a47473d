//! Sessions brought to where a test of calls begins.

use abide::client::CloseMode;

use super::*;

/// What a session is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    /// It does not exist.
    Nothing,
    /// Its first turn waits for a decision about `t1/c1`; `m2` and `m3` are queued.
    Waiting,
    /// Its first turn failed.
    Failed,
    /// Its first turn is completed.
    Idle,
    /// The same, and it is over.
    Ended,
}

impl At {
    const fn first_message(self) -> Option<&'static str> {
        match self {
            Self::Nothing => None,
            Self::Waiting => Some("call write:c1"),
            Self::Failed => Some("fail"),
            Self::Idle | Self::Ended => Some("hello"),
        }
    }
}

/// Brings sessions there; no engine runs after that.
pub(super) async fn prepare(place: &Place, sessions: &[(String, At)]) {
    let client = place.client();
    for (name, at) in sessions {
        if let Some(text) = at.first_message() {
            client.start_session(start(name, text)).await.unwrap();
        }
    }
    let engine = place.engine().await;
    for (name, at) in sessions {
        let id = session(name);
        match at {
            At::Nothing => {}
            At::Waiting => Log::of(&client, &id).await.suspended().await,
            At::Failed | At::Idle | At::Ended => Log::of(&client, &id).await.turns_over(1).await,
        }
    }
    engine.shutdown().await;
    for (name, at) in sessions {
        let id = session(name);
        match at {
            At::Nothing | At::Failed | At::Idle => {}
            At::Waiting => {
                for text in ["two", "three"] {
                    client.send_user_message(&id, text, None).await.unwrap();
                }
            }
            At::Ended => {
                let closed = client.close_session(&id, CloseMode::Reject, None);
                closed.await.unwrap();
            }
        }
    }
}
