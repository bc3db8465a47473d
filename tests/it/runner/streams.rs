//! Broken streams and replies that are not streamed (spec/cli-protocol.md 0.3), on the real CLIs.

use abide::failure::FailureClass;
use abide::testing::messages_api::{Block, Reply, Rule, StreamFault};
use abide::transport::{CliError, CliProcess, LaunchSpec};
use async_trait::async_trait;
use serde_json::json;

use super::*;

const FALLBACK: &str = "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK";
const PROMPT: &str = "refund both";
const WRITE: &str = "mcp__tools__refund";

/// Two writes in one reply; as a stream it always breaks, otherwise it is whole.
fn breaking_writes() -> ModelScript {
    let reply = || {
        Reply::blocks([
            Block::text("one moment"),
            Block::tool_use(WRITE, json!({"order_id": "1"})),
            Block::tool_use(WRITE, json!({"order_id": "2"})),
        ])
    };
    ModelScript::commands()
        .rule(Rule::when(
            |request| {
                request
                    .turn()
                    .is_some_and(|it| it.prompt.trim() == PROMPT && it.results.is_empty())
                    && request.wants_stream()
            },
            reply().fault(StreamFault::CutInBlock(0)),
        ))
        .rule(Rule::prompt(PROMPT, reply()))
        .rule(Rule::results(PROMPT, 2, Reply::text("done")))
}

/// Takes the variable away that this crate sets in each process.
#[derive(Debug)]
struct WithFallback(Arc<dyn CliLauncher>);

#[async_trait]
impl CliLauncher for WithFallback {
    async fn launch(&self, mut spec: LaunchSpec) -> Result<Box<dyn CliProcess>, CliError> {
        assert_eq!(spec.environment.remove(FALLBACK).as_deref(), Some("1"));
        self.0.launch(spec).await
    }
}

/// G5, section 0.3: with the variable that we set the CLI never asks without streaming; the turn
/// fails, and nothing ran.
async fn a_broken_stream_is_never_asked_for_whole(version: &str) {
    let Some(world) = World::real_over(version, breaking_writes()).await else {
        return;
    };
    let mut agent = Agent::build_with(&world, impatient(&world), with_tools);
    agent.say(PROMPT);
    let failure = agent.segment(Vec::new()).await.end.unwrap_err();
    assert_eq!(failure.class, FailureClass::ApiError, "{failure:?}");
    let requests = world.api().unwrap().main_requests();
    assert!(requests.len() > 1 && requests.iter().all(|it| it.wants_stream()));
    assert_eq!(agent.desk.runs(), [] as [&str; 0]);
}

/// G5, section 0.3: without it the reply comes whole and the CLI ignores the deferral. It asks,
/// is refused, and the segment fails: nothing ran.
async fn an_ignored_deferral_of_a_whole_reply_runs_nothing(version: &str) {
    let Some(mut world) = World::real_over(version, breaking_writes()).await else {
        return;
    };
    world.launcher = Arc::new(WithFallback(Arc::clone(&world.launcher)));
    let mut agent = Agent::build_with(&world, impatient(&world), with_tools);
    agent.say(PROMPT);
    let failure = agent.segment(Vec::new()).await.end.unwrap_err();
    assert_eq!(
        (failure.class, failure.detail.as_str()),
        (FailureClass::CliContract, "the CLI ignored a deferral")
    );
    let requests = world.api().unwrap().main_requests();
    assert!(requests.iter().any(|it| !it.wants_stream()));
    assert_eq!(agent.desk.runs(), [] as [&str; 0]);
}

/// The CLI's own number of retries takes it three minutes.
fn impatient(world: &World) -> ClaudeAgentOptions {
    let environment = world.environment.clone();
    world
        .options()
        .with_environment(environment.set("CLAUDE_CODE_MAX_RETRIES", "1"))
}

fn with_tools(builder: ClaudeAgentRunnerBuilder, desk: &Desk) -> ClaudeAgentRunnerBuilder {
    desk.tools()
        .into_iter()
        .fold(builder, ClaudeAgentRunnerBuilder::custom_tool)
}

/// G5: on CLI 2.1.316, with and without the variable.
#[tokio::test]
async fn nothing_runs_after_a_broken_stream_on_cli_2_1_316() {
    a_broken_stream_is_never_asked_for_whole("2.1.316").await;
    an_ignored_deferral_of_a_whole_reply_runs_nothing("2.1.316").await;
}

/// G5: the same on CLI 2.1.332.
#[tokio::test]
async fn nothing_runs_after_a_broken_stream_on_cli_2_1_332() {
    a_broken_stream_is_never_asked_for_whole("2.1.332").await;
    an_ignored_deferral_of_a_whole_reply_runs_nothing("2.1.332").await;
}
