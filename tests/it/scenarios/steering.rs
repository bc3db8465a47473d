//! Steering the running turn, at its boundary and at once, with a CLI underneath (N18, spec/core.md 7).

use abide::client::SteerMode;
use abide::event::EventKind;
use abide::ids::SessionId;
use abide::record::{CallStatus, MessageRole};
use abide::runner::GatedCallWait;
use abide::store::SessionStatus;

use super::Scenario;
use super::wishes::{REFUND, park_at_once};
use crate::support::{Cli, World};

pub(crate) const STEERING: &[Scenario] = &[
    Scenario {
        name: "steered while streaming",
        run: |it| Box::pin(steered_while_streaming(it)),
        is_central: true,
    },
    Scenario {
        name: "steered while a call waits live",
        run: |it| Box::pin(steered_while_a_call_waits(it, SteerMode::AtBoundary, false)),
        is_central: true,
    },
    Scenario {
        name: "steered while a call is parked",
        run: |it| Box::pin(steered_while_a_call_waits(it, SteerMode::AtBoundary, true)),
        is_central: false,
    },
    Scenario {
        name: "steered now while streaming",
        run: |it| Box::pin(steered_now_while_streaming(it)),
        is_central: true,
    },
    Scenario {
        name: "steered now before the first reply",
        run: |it| Box::pin(steered_now_before_the_first_reply(it)),
        is_central: true,
    },
    Scenario {
        name: "steered now while a call waits live",
        run: |it| Box::pin(steered_while_a_call_waits(it, SteerMode::Now, false)),
        is_central: true,
    },
    Scenario {
        name: "steered now while a call is parked",
        run: |it| Box::pin(steered_while_a_call_waits(it, SteerMode::Now, true)),
        is_central: true,
    },
    Scenario {
        name: "steered now, and the worker dies",
        run: |it| Box::pin(steered_now_and_the_worker_dies(it)),
        is_central: false,
    },
];

async fn steered_while_streaming(world: &mut World) {
    let session = world.start_session("steer", "script: stall middle").await;
    world.wait_for_live_text(&session).await;
    steer(world, &session, SteerMode::AtBoundary).await;
    world.open_gate("middle");
    check_steered(world, &session).await;
}

/// What was streaming is dropped, and the model is asked again from the last tool boundary, with the
/// read's result and the message.
async fn steered_now_while_streaming(world: &mut World) {
    let session = world.start_session("now", "script: stall middle").await;
    world.wait_for_live_text(&session).await;
    steer(world, &session, SteerMode::Now).await;
    check_steered(world, &session).await;
    world.open_gate("middle");
    let said = world.conversation(&session).await;
    assert!(
        said.iter().all(|it| it.0 != MessageRole::Partial),
        "{said:?}"
    );
    if matches!(world.wait, GatedCallWait::Live) {
        check_one_request_with_both(world, 3);
    }
    check_next_turn(world, &session).await;
}

/// Nothing is stored yet but the prompt: both texts are asked for together.
async fn steered_now_before_the_first_reply(world: &mut World) {
    let prompt = "script: say never ;; pause first";
    let session = world.start_session("now", prompt).await;
    world
        .wait_for(&session, |it| {
            matches!(it.kind, EventKind::AttemptStarted { .. })
        })
        .await;
    steer(world, &session, SteerMode::Now).await;
    check_steered(world, &session).await;
    world.open_gate("first");
    check_next_turn(world, &session).await;
}

/// G6, G7: the next worker goes on from the same place with the same message, once.
async fn steered_now_and_the_worker_dies(world: &mut World) {
    let session = world.start_session("now", "script: stall middle").await;
    world.wait_for_live_text(&session).await;
    let client = world.client();
    let text = "script: say steered ;; pause later";
    let steered = client.steer_user_message(&session, text, SteerMode::Now, None);
    steered.await.expect("the message is taken");
    let second = |kind: &EventKind| match kind {
        EventKind::AttemptStarted { step_id, .. } => step_id.number() > 1,
        _ => false,
    };
    world.wait_for(&session, |it| second(&it.kind)).await;
    world.crash();
    world.start_engine().await;
    world.open_gate("middle");
    world.open_gate("later");
    check_steered(world, &session).await;
    world.send(&session, "script: recall").await;
    world.wait_for_turns(&session, 2).await;
    let recalled = world.last_answer(&session).await;
    assert_eq!(recalled.matches("say steered").count(), 1, "{recalled}");
}

/// The call is skipped; at the boundary the model answers to that before it reads the message, now it
/// is told both in one request.
async fn steered_while_a_call_waits(world: &mut World, mode: SteerMode, parked: bool) {
    if parked {
        park_at_once(world).await;
    }
    let session = world.start_session("steer", REFUND).await;
    let open = world.wait_for_interrupt(&session).await;
    if parked {
        world.wait_until_parked(&session).await;
    }
    steer(world, &session, mode).await;
    check_steered(world, &session).await;
    let outcome = world.outcome(&session, &open).await;
    assert_eq!(outcome.status(), CallStatus::Skipped);
    match mode {
        SteerMode::AtBoundary => {}
        SteerMode::Now => check_one_request_with_both(world, 2),
    }
    assert_eq!(world.effects.lines(), Vec::<String>::new());
    check_next_turn(world, &session).await;
}

async fn steer(world: &World, session: &SessionId, mode: SteerMode) {
    let client = world.client();
    let steered = client.steer_user_message(session, "script: say steered", mode, None);
    steered.await.expect("the message is taken");
}

/// The answer to the steered message ends the one turn there is.
async fn check_steered(world: &World, session: &SessionId) {
    world.wait_for_turns(session, 1).await;
    let snapshot = world.snapshot(session).await;
    assert_eq!(snapshot.last_failure, None);
    assert_eq!(world.last_answer(session).await, "said: steered");
    assert_eq!(snapshot.status, SessionStatus::Idle);
    let first = snapshot.messages[0].turn_id;
    assert!(snapshot.messages.iter().all(|it| it.turn_id == first));
}

/// The next turn has the whole conversation.
async fn check_next_turn(world: &World, session: &SessionId) {
    world.send(session, "script: recall").await;
    world.wait_for_turns(session, 2).await;
    let recalled = world.last_answer(session).await;
    assert!(recalled.ends_with("| script: say steered"), "{recalled}");
}

/// The real CLI asked the model this often until the message was answered, the last time with the
/// results and the message behind the model's last words.
fn check_one_request_with_both(world: &World, requests: usize) {
    let Cli::Real { api, .. } = &world.cli else {
        return;
    };
    let asked = api.main_requests();
    assert_eq!(asked.len(), requests);
    let messages = asked[requests - 1].body["messages"].as_array();
    let messages = messages.expect("messages");
    let unanswered = messages.iter().rev();
    let unanswered: String = unanswered
        .take_while(|it| it["role"] != "assistant")
        .map(ToString::to_string)
        .collect();
    assert!(unanswered.contains("tool_result"), "{unanswered}");
    assert!(unanswered.contains("script: say steered"), "{unanswered}");
}
