//! Every call of a client as a table: taken, repeated, in conflict, refused; and a race of two (P03,
//! P04). On both stores.

use std::future::Future;
use std::pin::Pin;

use abide::client::{ClientError, CloseMode, SteerMode, accepted};
use abide::ids::{MessageId, RequestId, TurnId};
use abide::settings::SessionSettings;
use abide::store::SqliteStateStore;

use super::stages::{At, prepare};
use super::*;

type Answer = Result<bool, ClientError>;
type Call = for<'a> fn(
    &'a AgentSessionClient,
    &'a SessionId,
    Option<RequestId>,
) -> Pin<Box<dyn Future<Output = Answer> + 'a>>;

/// One call: as it should be, another one under its request id, and one that is refused. Each tells
/// whether it was a repeat.
struct Row {
    name: &'static str,
    taken: Call,
    other: Call,
    refused: Call,
}

macro_rules! call {
    (|$client:ident, $id:ident, $request:ident| $call:expr) => {
        |$client, $id, $request| Box::pin(async move { Ok($call.await?.duplicate) })
    };
}

fn model(name: &str) -> SessionSettings {
    SessionSettings {
        model: Some(name.to_owned()),
        ..SessionSettings::default()
    }
}

/// Each on a session whose first turn waits for a decision, with messages 2 and 3 queued.
const ROWS: &[Row] = &[
    Row {
        name: "send_user_message",
        taken: call!(|client, id, request| client.send_user_message(id, "four", request)),
        other: call!(|client, id, request| client.send_user_message(id, "five", request)),
        refused: call!(|client, id, request| client.send_user_message(id, " ", request)),
    },
    Row {
        name: "cancel_turn",
        taken: call!(|client, id, request| client.cancel_turn(id, None, None, request)),
        other: call!(|client, id, request| {
            client.cancel_turn(id, None, Some("other".to_owned()), request)
        }),
        refused: call!(|client, id, request| {
            client.cancel_turn(id, Some(TurnId::new(9)), None, request)
        }),
    },
    Row {
        name: "steer_user_message",
        taken: call!(|client, id, request| client.steer_user_message(
            id,
            "now",
            SteerMode::AtBoundary,
            request
        )),
        other: call!(|client, id, request| client.steer_user_message(
            id,
            "never",
            SteerMode::AtBoundary,
            request
        )),
        refused: call!(|client, id, request| client.steer_user_message(
            id,
            "",
            SteerMode::AtBoundary,
            request
        )),
    },
    Row {
        name: "steer_user_message_now",
        taken: call!(|client, id, request| client.steer_user_message(
            id,
            "now",
            SteerMode::Now,
            request
        )),
        // The same words in the other mode are another request.
        other: call!(|client, id, request| client.steer_user_message(
            id,
            "now",
            SteerMode::AtBoundary,
            request
        )),
        refused: call!(|client, id, request| client.steer_user_message(
            id,
            "",
            SteerMode::Now,
            request
        )),
    },
    Row {
        name: "steer_queued_message",
        taken: call!(|client, id, request| {
            client.steer_queued_message(id, MessageId::new(2), SteerMode::AtBoundary, request)
        }),
        other: call!(|client, id, request| {
            client.steer_queued_message(id, MessageId::new(3), SteerMode::AtBoundary, request)
        }),
        refused: call!(|client, id, request| {
            client.steer_queued_message(id, MessageId::new(9), SteerMode::AtBoundary, request)
        }),
    },
    Row {
        name: "delete_queued_message",
        taken: call!(|client, id, request| {
            client.delete_queued_message(id, MessageId::new(2), request)
        }),
        other: call!(|client, id, request| {
            client.delete_queued_message(id, MessageId::new(3), request)
        }),
        refused: call!(|client, id, request| {
            client.delete_queued_message(id, MessageId::new(9), request)
        }),
    },
    Row {
        name: "edit_queued_message",
        taken: call!(|client, id, request| {
            client.edit_queued_message(id, MessageId::new(2), "better", request)
        }),
        other: call!(|client, id, request| {
            client.edit_queued_message(id, MessageId::new(2), "worse", request)
        }),
        refused: call!(|client, id, request| {
            client.edit_queued_message(id, MessageId::new(9), "better", request)
        }),
    },
    Row {
        name: "update_settings",
        taken: call!(|client, id, request| client.update_settings(id, 0, model("a"), request)),
        other: call!(|client, id, request| client.update_settings(id, 0, model("b"), request)),
        refused: call!(|client, id, request| client.update_settings(id, 9, model("a"), request)),
    },
    Row {
        name: "close_session",
        taken: call!(|client, id, request| client.close_session(id, CloseMode::Drain, request)),
        other: call!(|client, id, request| client.close_session(id, CloseMode::Cancel, request)),
        refused: call!(|client, id, request| client.close_session(id, CloseMode::Reject, request)),
    },
];

fn request() -> Option<RequestId> {
    Some(RequestId::new("r1").unwrap())
}

async fn waiting_session(place: &Place, name: &str) -> SessionId {
    prepare(place, &[(name.to_owned(), At::Waiting)]).await;
    session(name)
}

async fn every_call_is_taken_once(place: &Place) {
    let client = place.client();
    for row in ROWS {
        let name = row.name;
        let id = waiting_session(place, name).await;
        let revision = async || client.snapshot(&id).await.unwrap().revision;

        let before = revision().await;
        let refused = accepted((row.refused)(&client, &id, request()).await);
        assert!(!refused.unwrap(), "{name}: refused");
        assert_eq!(
            revision().await,
            before,
            "{name}: a refusal changes nothing"
        );

        let taken = (row.taken)(&client, &id, request()).await.unwrap();
        assert!(!taken, "{name}: the refusal used the request id up");
        let after = revision().await;
        assert_eq!(after.0, before.0 + 1, "{name}: one commit");

        let repeated = (row.taken)(&client, &id, request()).await.unwrap();
        assert!(repeated, "{name}: a repeat is said to be one");
        let conflict = (row.other)(&client, &id, request()).await.unwrap_err();
        assert!(
            matches!(conflict, ClientError::RequestConflict { .. }),
            "{name}: {conflict}"
        );
        assert_eq!(revision().await, after, "{name}: neither changes anything");
    }
}

#[tokio::test(start_paused = true)]
async fn every_call_is_taken_once_in_memory() {
    every_call_is_taken_once(&Place::new(Scripted::open())).await;
}

#[tokio::test]
async fn every_call_is_taken_once_in_a_file() {
    let directory = tempfile::TempDir::new().unwrap();
    let mut place = Place::new(Scripted::open());
    let store = SqliteStateStore::open(directory.path().join("s.sqlite")).await;
    place.store = Arc::new(store.unwrap());
    every_call_is_taken_once(&place).await;
}

/// The same call twice at the same time, under one request id: one is taken, the other is a repeat.
#[tokio::test(flavor = "multi_thread")]
async fn of_the_same_call_twice_at_once_one_is_a_repeat() {
    for row in ROWS {
        let place = Place::new(Scripted::open());
        let id = waiting_session(&place, row.name).await;
        let (one, other) = (place.client(), place.client());
        let (first, second) = tokio::join!(
            (row.taken)(&one, &id, request()),
            (row.taken)(&other, &id, request()),
        );
        let mut repeats = [first.unwrap(), second.unwrap()];
        repeats.sort_unstable();
        assert_eq!(repeats, [false, true], "{}", row.name);
    }
}

/// N22: every call names a session that is not there.
#[tokio::test(start_paused = true)]
async fn every_call_names_a_session_that_is_not_there() {
    let place = Place::new(Scripted::open());
    for row in ROWS {
        let error = (row.taken)(&place.client(), &session("nobody"), None).await;
        assert!(
            matches!(error, Err(ClientError::NoSession { .. })),
            "{}",
            row.name
        );
    }
}
