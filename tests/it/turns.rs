//! What is left of a turn, on each CLI: its note, its usage, the ends of its calls.

use abide::event::EventKind;
use abide::failure::FailureClass;
use abide::turn::Usage;
use serde_json::Value;

use crate::support::{Cli, World};

/// The person's texts in the last request that the CLI got or made.
fn last_prompt(world: &World) -> Vec<String> {
    match &world.cli {
        Cli::Fake { handle, .. } => {
            let launches = handle.launches();
            let lines = &launches.last().expect("a CLI was started").lines_received;
            let prompt = lines
                .iter()
                .map(|line| serde_json::from_str::<Value>(line).expect("a line is JSON"))
                .rfind(|line| line["type"] == "user")
                .expect("the CLI got a prompt");
            let blocks = prompt["message"]["content"].as_array().expect("blocks");
            let text = |it: &Value| it["text"].as_str().expect("a text").to_owned();
            blocks.iter().map(text).collect()
        }
        Cli::Real { api, .. } => {
            let requests = api.main_requests();
            let request = requests.last().expect("the model was asked");
            assert_eq!(request.tool_results(), [], "the failed turn is rolled back");
            // The CLI adds reminders of its own.
            request
                .last_user_texts()
                .into_iter()
                .filter(|it| !it.starts_with("<system-reminder>"))
                .map(str::to_owned)
                .collect()
        }
    }
}

/// L10, L11, I04, M35, G3: a turn that failed after its write leaves its prompt and a note; the
/// next turn tells the model both, in front of its own prompt, and goes on from the turn before.
async fn a_failed_turn_is_told_by_its_note(world: &World) {
    let session = world.start_session("failed", "script: say one").await;
    world.wait_for_turns(&session, 1).await;
    let failing = r#"script: call refund {"order_id":"7"} ;; fail"#;
    world.send(&session, failing).await;
    world.approve(&session).await;
    world.wait_for_turns(&session, 2).await;
    let failure = world.snapshot(&session).await.last_failure;
    assert_eq!(failure.map(|it| it.class), Some(FailureClass::ApiError));
    world.send(&session, "script: recall").await;
    world.wait_for_turns(&session, 3).await;
    let note = "[The previous turn failed (api_error) and its answer is lost.]\n[Calls of that turn, with what became of them:]\n- refund({\"order_id\":\"7\"}): succeeded; do not repeat it";
    assert_eq!(last_prompt(world), [failing, note, "script: recall"]);
    assert_eq!(
        world.last_answer(&session).await,
        format!("recalled: script: say one | {failing} | {note}")
    );
    assert_eq!(world.effects.lines().len(), 1);
}

/// I24, R82, R83: usage adds up over four segments, two of them resumed, and counts nothing twice.
async fn usage_adds_up_over_segments(world: &World) {
    let session = world
        .start_session("usage", r#"script: call refund {"order_id":"1"}"#)
        .await;
    world.approve(&session).await;
    world.wait_for_turns(&session, 1).await;
    world
        .send(&session, r#"script: call refund {"order_id":"2"}"#)
        .await;
    world.approve(&session).await;
    world.wait_for_turns(&session, 2).await;
    // One model call for each segment, and each of them reports the same.
    let cost_nano_usd = match &world.cli {
        Cli::Fake { .. } => 100_000,
        Cli::Real { .. } => 99_900,
    };
    assert_eq!(
        world.snapshot(&session).await.usage,
        Usage {
            input_tokens: 4 * 16,
            cached_input_tokens: 4 * 2,
            output_tokens: 4 * 7,
            model_calls: 4,
            cost_nano_usd: 4 * cost_nano_usd,
        }
    );
}

/// I15, I26: the events of a call of each kind: one start and one end, whatever ran it.
async fn each_call_has_one_end(world: &World) {
    let session = world
        .start_session(
            "ends",
            r#"script: call lookup {"order_id":"7"} && call Bash {"command":"echo ran >> marker"}"#,
        )
        .await;
    world.approve(&session).await;
    world.wait_for_turns(&session, 1).await;
    let mut events = Vec::new();
    world
        .wait_for(&session, |event| {
            match &event.kind {
                EventKind::ToolCallStarted { tool_name, .. } => {
                    events.push(format!("started {tool_name}"));
                }
                EventKind::ToolCallFinished { status, .. } => {
                    events.push(format!("finished {status:?}"));
                }
                _ => {}
            }
            matches!(event.kind, EventKind::TurnCompleted)
        })
        .await;
    events.sort();
    assert_eq!(
        events,
        [
            "finished Succeeded",
            "finished Succeeded",
            "started Bash",
            "started lookup"
        ]
    );
    assert_eq!(world.bash_runs(), 1);
}

async fn all(mut next: impl AsyncFnMut() -> Option<World>) {
    let Some(world) = next().await else {
        return;
    };
    a_failed_turn_is_told_by_its_note(&world).await;
    let Some(mut world) = next().await else {
        return;
    };
    usage_adds_up_over_segments(&world).await;
    world.check_cli().await;
    let Some(mut world) = next().await else {
        return;
    };
    each_call_has_one_end(&world).await;
    world.check_cli().await;
}

/// G3, L10, L11, R82, I15: on the fake CLI.
#[tokio::test]
async fn what_is_left_of_a_turn_on_the_fake_cli() {
    all(async || Some(World::fake().await)).await;
}

/// G3, L10, L11, R82, I15: on CLI 2.1.316.
#[tokio::test]
async fn what_is_left_of_a_turn_on_cli_2_1_316() {
    all(async || World::real("2.1.316").await).await;
}

/// G3, L10, L11, R82, I15: on CLI 2.1.332.
#[tokio::test]
async fn what_is_left_of_a_turn_on_cli_2_1_332() {
    all(async || World::real("2.1.332").await).await;
}
