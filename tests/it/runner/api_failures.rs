//! An API that fails, and a CLI that is killed: what the real CLI 2.1.316 makes of it, and what we
//! make of that (spec/cli-protocol.md 11).

use std::sync::atomic::{AtomicUsize, Ordering};

use abide::failure::FailureClass;
use abide::testing::messages_api::{Answer, Failure, Reply, StreamFault};
use abide::transport::{CliError, CliProcess, LaunchSpec};
use async_trait::async_trait;

use super::*;

const VERSION: &str = "2.1.316";

/// The real CLI, over an API that fails the first `times` model calls of a session.
async fn failing(times: usize, answer: impl Into<Answer>) -> Option<World> {
    let answer = answer.into();
    let asked = AtomicUsize::new(0);
    let script = ModelScript::commands().route(move |request| {
        let is_main = !request.tools().is_empty();
        (is_main && asked.fetch_add(1, Ordering::SeqCst) < times).then(|| answer.clone())
    });
    let mut world = World::real_over(VERSION, script).await?;
    // The CLI would go on for minutes.
    world.set("CLAUDE_CODE_MAX_RETRIES", "1");
    Some(world)
}

async fn failure_in(world: &World) -> AttemptFailure {
    let mut agent = Agent::new(world);
    agent.say("script: say hello");
    agent.segment(Vec::new()).await.end.unwrap_err()
}

/// 529 and a broken stream that go away: the CLI tries again by itself, and the turn has one answer.
#[tokio::test]
async fn trouble_that_goes_away_is_no_failure() {
    let broken = Reply::text("never heard").fault(StreamFault::CutInBlock(0));
    for trouble in [
        Answer::Failure(Failure::new(529, "overloaded_error")),
        Answer::Failure(Failure::new(429, "rate_limit_error").retry_after_seconds(1)),
        Answer::Reply(broken),
    ] {
        let Some(world) = failing(1, trouble).await else {
            return;
        };
        let mut agent = Agent::new(&world);
        assert_eq!(agent.turn("script: say hello").await, "said: hello");
    }
}

/// 529, 429, 400 and 401 for ever: their classes, and the hint of an API with too much to do. A
/// refused key ends the attempt at the CLI's first retry of ten.
#[tokio::test]
async fn trouble_that_stays_has_its_class_and_its_hint() {
    let busy = Failure::new(529, "overloaded_error");
    let limited = Failure::new(429, "rate_limit_error").retry_after_seconds(2);
    let wrong = Failure::new(400, "invalid_request_error").message("something is wrong");
    for (failure, class) in [
        (busy, FailureClass::Overloaded),
        (limited, FailureClass::RateLimited),
        (wrong, FailureClass::ApiError),
    ] {
        let Some(world) = failing(usize::MAX, failure).await else {
            return;
        };
        let failure = failure_in(&world).await;
        assert_eq!(failure.class, class, "{failure}");
        match class {
            // The CLI's own guess: half a second, give or take.
            FailureClass::Overloaded => {
                assert!(
                    failure
                        .retry_after_ms
                        .is_some_and(|it| (1..10_000).contains(&it))
                );
            }
            FailureClass::RateLimited => assert_eq!(failure.retry_after_ms, Some(2000)),
            _ => {
                assert_eq!(failure.retry_after_ms, None);
                assert_eq!(failure.detail, "API Error: 400 something is wrong");
            }
        }
    }
    let refused = Failure::new(401, "authentication_error");
    let Some(mut world) = failing(usize::MAX, refused).await else {
        return;
    };
    world.set("CLAUDE_CODE_MAX_RETRIES", "10");
    let failure = failure_in(&world).await;
    assert_eq!(failure.class, FailureClass::Authentication);
    assert_eq!(
        failure.detail,
        "the API refused the credentials with status 401"
    );
    let Kind::Real(api) = &world.kind else {
        panic!("a real CLI");
    };
    let calls = api.main_requests().len();
    assert!(calls <= 2, "{calls} model calls");
}

/// An API that is not there.
#[tokio::test]
async fn an_unreachable_api_is_an_error_of_the_api() {
    let Some(mut world) = World::real(VERSION).await else {
        return;
    };
    world.set("CLAUDE_CODE_MAX_RETRIES", "1");
    world.set("ANTHROPIC_BASE_URL", "http://127.0.0.1:1");
    let failure = failure_in(&world).await;
    assert_eq!(failure.class, FailureClass::ApiError);
    assert_eq!(failure.retry_after_ms, None);
}

/// What a test does with each launch of a CLI.
struct Watched {
    inner: Arc<dyn CliLauncher>,
    process: Arc<Mutex<Option<u32>>>,
    argument: Option<&'static str>,
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watched")
    }
}

#[async_trait]
impl CliLauncher for Watched {
    async fn launch(&self, mut spec: LaunchSpec) -> Result<Box<dyn CliProcess>, CliError> {
        spec.arguments.extend(self.argument.map(ToOwned::to_owned));
        let process = self.inner.launch(spec).await?;
        *self.process.lock().unwrap() = process.process_id();
        Ok(process)
    }
}

/// A CLI that does not know an option of ours is too old, and the option is named.
#[tokio::test]
async fn an_option_that_the_cli_does_not_know_is_named() {
    let Some(mut world) = World::real(VERSION).await else {
        return;
    };
    world.launch_through(|inner| Watched {
        inner,
        process: Arc::default(),
        argument: Some("--no-such-flag"),
    });
    let failure = failure_in(&world).await;
    assert_eq!(failure.class, FailureClass::CliTooOld);
    assert_eq!(
        failure.detail,
        "the CLI ended without a result: exit status 1: error: unknown option '--no-such-flag'"
    );
}

/// R57: a CLI that is killed in the middle of an answer fails the attempt and leaves the history as
/// it was: the next attempt answers the same prompt.
#[tokio::test]
async fn a_killed_cli_fails_its_attempt_only() {
    let Some(mut world) = World::real(VERSION).await else {
        return;
    };
    let process = Arc::new(Mutex::new(None));
    world.launch_through(|inner| Watched {
        inner,
        process: Arc::clone(&process),
        argument: None,
    });
    let mut agent = Agent::new(&world);
    agent.turn("script: say one").await;
    agent.say("script: say two ;; pause never");
    let Kind::Real(api) = &world.kind else {
        panic!("a real CLI");
    };
    let gate = api.gate("never");
    let (segment, ()) = tokio::join!(agent.segment(Vec::new()), async {
        gate.wait_until_reached(1).await;
        let pid = process.lock().unwrap().unwrap();
        let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    });
    let failure = segment.end.unwrap_err();
    assert_eq!(failure.class, FailureClass::CliFailed);
    assert_eq!(failure.detail, "the CLI ended without a result: signal 9");
    gate.open();
    let segment = agent.segment(Vec::new()).await;
    assert_eq!(agent.complete(segment), "said: two");
    assert_eq!(
        agent.turn("script: recall").await,
        "recalled: script: say one | script: say two ;; pause never"
    );
}
