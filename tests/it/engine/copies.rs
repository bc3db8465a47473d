//! A failed turn tried again, a session forked, a session removed.

use abide::client::{ClientError, CloseMode, Refusal, SteerMode};
use abide::ids::TurnId;
use abide::settings::SessionSettings;

use super::*;

async fn texts(client: &AgentSessionClient, id: &SessionId) -> Vec<String> {
    let messages = client.snapshot(id).await.unwrap().messages;
    messages.into_iter().map(|it| it.text).collect()
}

/// spec/core.md 31.25: the failed prompt is sent again without a person who types it, once.
#[tokio::test(start_paused = true)]
async fn a_failed_turn_is_tried_again_once() {
    let place = Place::new(Scripted::open());
    let engine = place.engine().await;
    let (client, id) = (engine.client(), session("s"));
    client.start_session(start("s", "fail once")).await.unwrap();
    let mut log = Log::of(&client, &id).await;
    log.turns_over(1).await;
    let failed = TurnId::new(1);
    let other = client.retry_turn(&id, TurnId::new(2), None).await;
    assert!(matches!(
        other,
        Err(ClientError::Refused(Refusal::TurnNotFailed { .. }))
    ));
    client.retry_turn(&id, failed, None).await.unwrap();
    log.turns_over(2).await;
    let texts = texts(&client, &id).await;
    assert_eq!(texts.iter().filter(|it| *it == "fail once").count(), 2);
    let again = client.retry_turn(&id, failed, None).await;
    assert!(matches!(
        again,
        Err(ClientError::Refused(Refusal::TurnNotFailed { .. }))
    ));
}

/// spec/core.md 31.23: the fork goes on from the turn that was named, and neither session sees the
/// other's later turns.
#[tokio::test(start_paused = true)]
async fn a_fork_goes_on_from_the_turn_that_was_named() {
    let place = Place::new(Scripted::open());
    let engine = place.engine().await;
    let (client, id) = (engine.client(), session("s"));
    client.start_session(start("s", "one")).await.unwrap();
    let mut log = Log::of(&client, &id).await;
    log.turns_over(1).await;
    let settings = SessionSettings {
        model: Some("other".to_owned()),
        ..SessionSettings::default()
    };
    client
        .update_settings(&id, 0, settings.clone(), None)
        .await
        .unwrap();
    client.send_user_message(&id, "two", None).await.unwrap();
    log.turns_over(2).await;

    let fork = session("fork");
    let begin = || start("fork", "three");
    let unknown = client.fork_session(&id, TurnId::new(9), begin()).await;
    assert!(matches!(
        unknown,
        Err(ClientError::Refused(Refusal::UnknownTurn { .. }))
    ));
    let nowhere = StartSession::new(session("lost"), FlowType::new("Unknown").unwrap());
    let unknown = client.fork_session(&id, TurnId::new(1), nowhere).await;
    assert!(matches!(unknown, Err(ClientError::UnknownFlowType { .. })));
    let first = TurnId::new(1);
    assert!(client.fork_session(&id, first, begin()).await.unwrap());
    assert!(!client.fork_session(&id, first, begin()).await.unwrap());
    let conflict = client.fork_session(&id, TurnId::new(2), begin()).await;
    assert!(matches!(conflict, Err(ClientError::SessionExists { .. })));
    Log::of(&client, &fork).await.turns_over(1).await;
    let expected = ["one", "re: one", "three", "re: three"];
    assert_eq!(texts(&client, &fork).await, expected);
    let snapshot = client.snapshot(&fork).await.unwrap();
    let turns: Vec<_> = snapshot.messages.iter().map(|it| it.turn_id).collect();
    assert_eq!(turns[2], TurnId::new(2));
    assert_eq!(snapshot.settings.values, settings);
    assert_eq!(
        texts(&client, &id).await,
        ["one", "re: one", "two", "re: two"]
    );
}

/// A turn that went on with a steered message and then failed is no place to fork at, and what is
/// tried again is the message that has no answer.
#[tokio::test(start_paused = true)]
async fn a_steered_turn_that_failed_is_not_forked_and_is_tried_again_from_its_last_message() {
    let place = Place::new(Scripted::closed());
    let engine = place.engine().await;
    let (client, id) = (engine.client(), session("s"));
    client.start_session(start("s", "wait")).await.unwrap();
    place.runner.waiting(1).await;
    client
        .steer_user_message(&id, "fail now", SteerMode::AtBoundary, None)
        .await
        .unwrap();
    place.runner.open_gate();
    let mut log = Log::of(&client, &id).await;
    log.turns_over(1).await;
    let turn = TurnId::new(1);
    let forked = client.fork_session(&id, turn, start("fork", "three")).await;
    assert!(matches!(
        forked,
        Err(ClientError::Refused(Refusal::UnknownTurn { .. }))
    ));
    client.retry_turn(&id, turn, None).await.unwrap();
    log.turns_over(2).await;
    let messages = client.snapshot(&id).await.unwrap().messages;
    let retried = messages.iter().find(|it| it.turn_id == TurnId::new(2));
    assert_eq!(retried.unwrap().text, "fail now");
}

/// A session is removed when it is over, and then its id is free.
#[tokio::test(start_paused = true)]
async fn only_a_session_that_is_over_is_removed() {
    let place = Place::new(Scripted::open());
    let (client, id) = (place.client(), session("s"));
    client.start_session(start("s", "hello")).await.unwrap();
    let early = client.delete_session(&id).await;
    assert!(matches!(
        early,
        Err(ClientError::Refused(Refusal::SessionNotEnded))
    ));
    client
        .close_session(&id, CloseMode::Cancel, None)
        .await
        .unwrap();
    client.delete_session(&id).await.unwrap();
    assert_eq!(place.store.load(&id).await.unwrap(), None);
    assert!(matches!(
        client.delete_session(&id).await,
        Err(ClientError::NoSession { .. })
    ));
    assert!(client.start_session(start("s", "other")).await.unwrap());
}
