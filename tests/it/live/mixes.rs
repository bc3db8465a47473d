//! Replies whose calls end in different ways, with a read between them, on the real CLI.

use abide::event::EventKind;

use super::*;

const NOT_RUN: &str = "the tool did not run, so it is safe to call again: an earlier call of the same reply did not succeed";

async fn open(world: &World, session: &SessionId, count: usize) -> Vec<PendingInterrupt> {
    world
        .wait_for_snapshot(session, |it| it.pending_interrupts.len() == count)
        .await
        .pending_interrupts
}

async fn reject(world: &World, session: &SessionId, open: &PendingInterrupt) {
    let message = Some("not this one".to_owned());
    let answer = ResolveInterrupt::reject(open.interrupt_id.clone(), message);
    world
        .client()
        .resolve_interrupt(session, answer)
        .await
        .expect("the rejection is taken");
}

/// What happened, without the keys, sorted: reads may come before the writes of their reply.
fn effects(world: &World) -> Vec<String> {
    let mut lines: Vec<String> = (world.effects.lines().iter())
        .filter_map(|it| it.split(" under ").next().map(str::to_owned))
        .collect();
    lines.sort();
    lines
}

/// Checks the end of the turn: what the model says of each call, and what it cost.
async fn check(
    mut world: World,
    session: &SessionId,
    answer: &[&str],
    happened: &[&str],
    (processes, requests): (usize, usize),
) {
    world.wait_for_turns(session, 1).await;
    assert_eq!(world.last_answer(session).await, answer.join("\n"));
    assert_eq!(effects(&world), happened);
    assert_eq!(
        (world.starts(), model_requests(&world)),
        (processes, requests)
    );
    world.check_cli().await;
}

/// The first write is rejected: the read and the approved write run, the write that nobody has to
/// approve does not.
async fn one_is_rejected(version: &str) {
    let Some(world) = World::real_with(version, GatedCallWait::Live).await else {
        return;
    };
    let script = r#"script: call refund {"order_id":"1"} && call lookup {"order_id":"2"} && call refund {"order_id":"3"} && call set_status {"order_id":"4"}"#;
    let session = world.start_session("rejected", script).await;
    let calls = open(&world, &session, 2).await;
    approve(&world, &session, &calls[1]).await;
    reject(&world, &session, &calls[0]).await;
    let answer = [
        "refund: The user rejected this call: not this one",
        "lookup: order 2 is fine",
        "refund: order 3 is refunded",
        &format!("set_status: {NOT_RUN}"),
    ];
    check(world, &session, &answer, &["lookup 2", "refund 3"], (1, 2)).await;
}

/// The first write fails: the read runs, and no later write does, approved or not.
async fn the_first_one_fails(version: &str) {
    let Some(world) = World::real_with(version, GatedCallWait::Live).await else {
        return;
    };
    let script = r#"script: call refuse {"order_id":"1"} && call lookup {"order_id":"2"} && call refund {"order_id":"3"} && call Bash {"command":"echo ran >> marker"}"#;
    let session = world.start_session("failed", script).await;
    let calls = open(&world, &session, 3).await;
    approve(&world, &session, &calls[1]).await;
    approve(&world, &session, &calls[0]).await;
    world.wait_for_turns(&session, 1).await;
    assert_eq!(world.bash_runs(), 0);
    let answer = [
        "refuse: the desk is closed",
        "lookup: order 2 is fine",
        &format!("refund: {NOT_RUN}"),
        &format!("Bash: {NOT_RUN}"),
    ];
    check(world, &session, &answer, &["lookup 2", "refuse 1"], (1, 2)).await;
}

/// One is approved while the process waits, and runs; then the process is parked, and of the others
/// one is approved and one rejected.
async fn some_are_decided_after_parking(version: &str) {
    let Some(mut world) = World::real_with(version, GatedCallWait::Live).await else {
        return;
    };
    world.session_options.live_window = Duration::from_secs(3);
    world.shut_down().await;
    world.start_engine().await;
    let script = r#"script: call refund {"order_id":"1"} && call lookup {"order_id":"2"} && call refund {"order_id":"3"} && call refund {"order_id":"4"}"#;
    let session = world.start_session("both", script).await;
    let calls = open(&world, &session, 3).await;
    approve(&world, &session, &calls[0]).await;
    let mut is_done = false;
    world
        .wait_for(&session, |it| {
            is_done |= matches!(&it.kind, EventKind::ToolCallFinished { tool_call_id, .. }
                if *tool_call_id == calls[0].tool_call_id);
            matches!(it.kind, EventKind::TurnSuspended)
        })
        .await;
    assert!(is_done, "the first call ran before the process was parked");
    reject(&world, &session, &calls[1]).await;
    approve(&world, &session, &calls[2]).await;
    let answer = [
        "refund: order 1 is refunded",
        "lookup: order 2 is fine",
        "refund: The user rejected this call: not this one",
        "refund: order 4 is refunded",
    ];
    let happened = ["lookup 2", "refund 1", "refund 4"];
    check(world, &session, &answer, &happened, (2, 2)).await;
}

/// Everything is decided after parking, the read between the writes comes to run in the next process
/// at the latest, and runs once.
async fn all_are_decided_after_parking(version: &str) {
    let Some(mut world) = World::real_with(version, GatedCallWait::Live).await else {
        return;
    };
    world.session_options.live_window = Duration::ZERO;
    world.shut_down().await;
    world.start_engine().await;
    let script = r#"script: call refund {"order_id":"1"} && call lookup {"order_id":"2"} && call refund {"order_id":"3"}"#;
    let session = world.start_session("parked", script).await;
    let calls = open(&world, &session, 2).await;
    world.wait_until_parked(&session).await;
    world.shut_down().await;
    world.start_engine().await;
    approve(&world, &session, &calls[1]).await;
    reject(&world, &session, &calls[0]).await;
    let answer = [
        "refund: The user rejected this call: not this one",
        "lookup: order 2 is fine",
        "refund: order 3 is refunded",
    ];
    check(world, &session, &answer, &["lookup 2", "refund 3"], (2, 2)).await;
}

async fn all(version: &str) {
    one_is_rejected(version).await;
    the_first_one_fails(version).await;
    some_are_decided_after_parking(version).await;
    all_are_decided_after_parking(version).await;
}

/// design.md 4: calls of one reply that end in every way, before and after parking, with a read
/// between them: no process and no model call more than if all had succeeded.
#[tokio::test]
async fn calls_of_one_reply_end_in_every_way_on_cli_2_1_316() {
    all("2.1.316").await;
}

/// As above, on the newer pinned CLI.
#[tokio::test]
async fn calls_of_one_reply_end_in_every_way_on_cli_2_1_332() {
    all("2.1.332").await;
}
