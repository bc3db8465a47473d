//! Cancelling while a tool of the real CLI runs: how long it may go on, and what its record says (G1).

use abide::ids::SessionId;
use abide::record::{CallStatus, ToolOutcome};
use abide::runner::GatedCallWait;
use abide::store::SessionStatus;

use crate::support::World;

/// Approves a shell command, waits until it has begun, cancels, and returns how its record ends.
async fn cancelled_bash(version: &str, command: &str) -> Option<(World, SessionId, ToolOutcome)> {
    let world = World::real_with(version, GatedCallWait::Live).await?;
    let input = serde_json::json!({ "command": command });
    let prompt = format!("script: call Bash {input}");
    let session = world.start_session("bash", &prompt).await;
    let open = world.wait_for_interrupt(&session).await;
    world.approve(&session).await;
    world.wait_for_file("marker").await;
    let client = world.client();
    let cancelled = client.cancel_turn(&session, None, None, None).await;
    cancelled.expect("the cancel is taken");
    world.wait_for_turns(&session, 1).await;
    let outcome = world.outcome(&session, &open).await;
    Some((world, session, outcome))
}

async fn check_next_turn(mut world: World, session: &SessionId) {
    world.send(session, "script: say next").await;
    world.wait_for_turns(session, 2).await;
    assert_eq!(world.last_answer(session).await, "said: next");
    assert_eq!(world.bash_runs(), 1);
    let snapshot = world.snapshot(session).await;
    assert_eq!(snapshot.status, SessionStatus::Idle);
    world.check_cli().await;
}

/// A command that ends within its patience has its true result.
async fn a_short_command(version: &str) {
    let command = "echo ran >> marker; sleep 1; echo done";
    let Some((world, session, outcome)) = cancelled_bash(version, command).await else {
        return;
    };
    assert_eq!(outcome.status(), CallStatus::Succeeded);
    check_next_turn(world, &session).await;
}

/// G1: one that does not is ended with the CLI, and nobody claims to know what it did.
async fn a_long_command(version: &str) {
    let command = "echo ran >> marker; sleep 600; echo ran >> marker";
    let Some((world, session, outcome)) = cancelled_bash(version, command).await else {
        return;
    };
    assert_eq!(outcome, ToolOutcome::OutcomeUnknown);
    check_next_turn(world, &session).await;
}

#[tokio::test]
async fn a_short_command_that_is_cancelled_ends_by_itself_on_cli_2_1_316() {
    a_short_command("2.1.316").await;
}

/// G1: what a command that was cut off did is not known.
#[tokio::test]
async fn a_long_command_that_is_cancelled_is_unknown_on_cli_2_1_316() {
    a_long_command("2.1.316").await;
}

#[tokio::test]
async fn a_short_command_that_is_cancelled_ends_by_itself_on_cli_2_1_332() {
    a_short_command("2.1.332").await;
}

#[tokio::test]
async fn a_long_command_that_is_cancelled_is_unknown_on_cli_2_1_332() {
    a_long_command("2.1.332").await;
}
