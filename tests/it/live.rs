//! Gated calls that wait with their process, on the real CLI: how many processes and how many model
//! calls a reply with four of them costs (design.md 4).

mod mixes;

use std::time::Duration;

use abide::client::ResolveInterrupt;
use abide::ids::SessionId;
use abide::runner::GatedCallWait;
use abide::snapshot::PendingInterrupt;

use crate::support::{Cli, World};

/// Two calls that wait for a person, one that does not, and a tool of the CLI.
const FOUR_CALLS: &str = r#"script: call refund {"order_id":"1"} && call set_status {"order_id":"2"} && call refund {"order_id":"3"} && call Bash {"command":"echo ran >> marker; cat marker"}"#;

/// In which order the three that wait are approved.
const ORDERS: [[usize; 3]; 3] = [[0, 1, 2], [2, 1, 0], [1, 2, 0]];

/// What each CLI ends with: the model read all four results, in its own order.
const ANSWER: &str = "refund: order 1 is refunded\nset_status: order 2 has a status\nrefund: order 3 is refunded\nBash: ran";

/// Waits until the reply has asked for all three decisions.
async fn open_calls(world: &World, session: &SessionId) -> Vec<PendingInterrupt> {
    world
        .wait_for_snapshot(session, |it| it.pending_interrupts.len() == 3)
        .await
        .pending_interrupts
}

async fn approve(world: &World, session: &SessionId, open: &PendingInterrupt) {
    let answer =
        ResolveInterrupt::approve(open.interrupt_id.clone()).for_digest(open.digest.clone());
    world
        .client()
        .resolve_interrupt(session, answer)
        .await
        .expect("the approval is taken");
}

/// Checks that everything ran once, in the model's order, and that the model read it.
async fn check_four_calls(world: &World, session: &SessionId) {
    world.wait_for_turns(session, 1).await;
    assert_eq!(world.last_answer(session).await, ANSWER);
    let effects = world.effects.lines();
    let done: Vec<&str> = (effects.iter())
        .filter_map(|it| it.split(" under ").next())
        .collect();
    assert_eq!(done, ["refund 1", "set_status 2", "refund 3"]);
    assert_eq!(world.bash_runs(), 1);
}

fn model_requests(world: &World) -> usize {
    match &world.cli {
        Cli::Real { api, .. } => api.main_requests().len(),
        Cli::Fake { .. } => panic!("this test is about the real CLI"),
    }
}

/// Four gated calls of one reply, decided within the window in three orders: one process, and no
/// model call beyond the two that the conversation has.
async fn decided_in_time(version: &str) {
    for order in ORDERS {
        let Some(mut world) = World::real_with(version, GatedCallWait::Live).await else {
            return;
        };
        let session = world.start_session("four", FOUR_CALLS).await;
        let open = open_calls(&world, &session).await;
        for index in order {
            approve(&world, &session, &open[index]).await;
        }
        check_four_calls(&world, &session).await;
        assert_eq!(
            (world.starts(), model_requests(&world)),
            (1, 2),
            "{order:?}"
        );
        world.check_cli().await;
    }
}

/// The same calls, decided after parking, while two workers come and go: a second process, and still
/// no further model call.
async fn decided_after_parking(version: &str) {
    for order in ORDERS {
        let Some(mut world) = World::real_with(version, GatedCallWait::Live).await else {
            return;
        };
        world.session_options.live_window = Duration::ZERO;
        world.shut_down().await;
        world.start_engine().await;
        let session = world.start_session("four", FOUR_CALLS).await;
        let open = open_calls(&world, &session).await;
        world.wait_until_parked(&session).await;
        world.crash();
        approve(&world, &session, &open[order[0]]).await;
        world.start_engine().await;
        approve(&world, &session, &open[order[1]]).await;
        world.shut_down().await;
        world.start_engine().await;
        approve(&world, &session, &open[order[2]]).await;
        check_four_calls(&world, &session).await;
        assert_eq!(
            (world.starts(), model_requests(&world)),
            (2, 2),
            "{order:?}"
        );
        world.check_cli().await;
    }
}

/// For comparison, the CLI's own deferral: a process for each call and one more, and the model is
/// asked again for each call after the first.
async fn decided_natively(version: &str) {
    let Some(mut world) = World::real_with(version, GatedCallWait::Native).await else {
        return;
    };
    let session = world.start_session("four", FOUR_CALLS).await;
    for _ in 0..3 {
        world.approve(&session).await;
    }
    world.wait_for_turns(&session, 1).await;
    assert_eq!(world.effects.lines().len(), 3);
    assert_eq!(world.bash_runs(), 1);
    assert_eq!((world.starts(), model_requests(&world)), (5, 5));
    world.check_cli().await;
}

#[tokio::test]
async fn four_calls_decided_in_time_cost_one_process_on_cli_2_1_316() {
    decided_in_time("2.1.316").await;
}

#[tokio::test]
async fn four_calls_decided_in_time_cost_one_process_on_cli_2_1_332() {
    decided_in_time("2.1.332").await;
}

#[tokio::test]
async fn four_calls_decided_after_parking_cost_two_processes_on_cli_2_1_316() {
    decided_after_parking("2.1.316").await;
}

#[tokio::test]
async fn four_calls_decided_after_parking_cost_two_processes_on_cli_2_1_332() {
    decided_after_parking("2.1.332").await;
}

#[tokio::test]
async fn four_calls_decided_natively_cost_five_processes_on_cli_2_1_316() {
    decided_natively("2.1.316").await;
}

#[tokio::test]
async fn four_calls_decided_natively_cost_five_processes_on_cli_2_1_332() {
    decided_natively("2.1.332").await;
}

/// design.md 4: the next message finds the process warm; after a restart, or with the process ended,
/// another one starts and knows the same.
async fn stays_for_the_next_message(version: &str) {
    let Some(mut world) = World::real_with(version, GatedCallWait::Live).await else {
        return;
    };
    let session = world.start_session("warm", "script: say one").await;
    world.wait_for_turns(&session, 1).await;
    world
        .send(&session, r#"script: call refund {"order_id":"7"}"#)
        .await;
    world.approve(&session).await;
    world.wait_for_turns(&session, 2).await;
    assert_eq!(
        world.last_answer(&session).await,
        "refund: order 7 is refunded"
    );
    world
        .send(&session, r#"script: call lookup {"order_id":"8"}"#)
        .await;
    world.wait_for_turns(&session, 3).await;
    assert_eq!(world.starts(), 1);
    world.shut_down().await;
    world.start_engine().await;
    world.send(&session, "script: recall").await;
    world.wait_for_turns(&session, 4).await;
    assert_eq!(world.starts(), 2);
    let earlier = [
        "script: say one",
        r#"script: call refund {"order_id":"7"}"#,
        r#"script: call lookup {"order_id":"8"}"#,
    ];
    let recalled = format!("recalled: {}", earlier.join(" | "));
    assert_eq!(world.last_answer(&session).await, recalled);
    world.check_cli().await;
}

#[tokio::test]
async fn the_next_message_finds_the_process_warm_on_cli_2_1_316() {
    stays_for_the_next_message("2.1.316").await;
}

#[tokio::test]
async fn the_next_message_finds_the_process_warm_on_cli_2_1_332() {
    stays_for_the_next_message("2.1.332").await;
}
