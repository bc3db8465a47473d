//! An API that limits the rate of the real CLI: its wait is kept in the store whoever
//! lives meanwhile, and it is asked again once, when the wait is over (N41).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use abide::event::EventKind;
use abide::failure::FailureClass;
use abide::ids::Timestamp;
use abide::runner::GatedCallWait;
use abide::testing::messages_api::{Failure, ModelScript};

use crate::support::time::StillClock;
use crate::support::{Cli, World};

const START: Timestamp = Timestamp(1_800_000_000_000);

/// What the API asks for, in seconds: the CLI itself waits as long once, before it gives up.
const WAIT_SECONDS: u32 = 1;

/// The real CLI, over an API that limits the first `times` requests for "hello".
async fn limited(version: &str, times: usize, seconds: u32) -> Option<World> {
    let asked = AtomicUsize::new(0);
    let script = ModelScript::commands().route(move |request| {
        let is_it = request.prompts().last() == Some(&"script: say hello");
        let limited = Failure::new(429, "rate_limit_error").retry_after_seconds(seconds);
        (is_it && asked.fetch_add(1, Ordering::SeqCst) < times).then(|| limited.into())
    });
    let mut world = World::real_over(version, script).await?;
    world.wait = GatedCallWait::Live;
    world.variables = vec![("CLAUDE_CODE_MAX_RETRIES", "1")];
    Some(world)
}

fn requests_for(world: &World, prompt: &str) -> usize {
    let Cli::Real { api, .. } = &world.cli else {
        panic!("a real CLI");
    };
    let requests = api.main_requests();
    let of_it = requests
        .iter()
        .filter(|it| it.prompts().last() == Some(&prompt));
    of_it.count()
}

async fn a_limit_outlives_its_worker(version: &str) {
    let Some(mut world) = limited(version, 2, WAIT_SECONDS).await else {
        return;
    };
    let clock = Arc::new(StillClock::at(START));
    world.engine_options.clock = Arc::clone(&clock) as _;
    world.start_engine().await;
    let session = world.start_session("limited", "script: say hello").await;
    let failed = world
        .wait_for(&session, |it| {
            matches!(it.kind, EventKind::AttemptFailed { .. })
        })
        .await;
    let EventKind::AttemptFailed {
        class, retry_at, ..
    } = failed.kind
    else {
        panic!("{failed:?}");
    };
    assert_eq!(class, FailureClass::RateLimited);
    let due = retry_at.expect("it is tried again");
    // CLI 2.1.332 reports a little more than it was asked for (1,229 ms in one run).
    let waits = due.0 - START.0;
    assert!((1000..1500).contains(&waits), "{waits} ms");
    world.crash();

    // A worker that lives before it is due leaves it alone.
    clock.set(Timestamp(due.0 - 1));
    world.start_engine().await;
    let other = world.start_session("other", "script: say other").await;
    world.wait_for_turns(&other, 1).await;
    world.shut_down().await;
    assert_eq!(requests_for(&world, "script: say hello"), 2);

    clock.set(due);
    world.start_engine().await;
    world.wait_for_turns(&session, 1).await;
    assert_eq!(world.last_answer(&session).await, "said: hello");
    assert_eq!(world.snapshot(&session).await.last_failure, None);
    assert_eq!(requests_for(&world, "script: say hello"), 3);
    assert_eq!(world.starts(), 3);
    world.check_cli().await;
}

#[tokio::test]
async fn a_rate_limit_outlives_its_worker_on_cli_2_1_316() {
    a_limit_outlives_its_worker("2.1.316").await;
}

#[tokio::test]
async fn a_rate_limit_outlives_its_worker_on_cli_2_1_332() {
    a_limit_outlives_its_worker("2.1.332").await;
}
