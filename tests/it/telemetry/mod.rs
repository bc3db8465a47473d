//! The spans of attempts and the context of log lines, as a layer of the host sees them.

mod hosts;
mod spans;

use std::sync::Arc;
use std::time::Duration;

use abide::client::{AgentSessionClient, ResolveInterrupt, StartSession};
use abide::engine::{LocalEngine, LocalEngineOptions};
use abide::event::EventKind;
use abide::flow::{AgentSessionFlow, FlowRegistry, SessionOptions};
use abide::ids::{FlowType, SessionId, Timestamp};
use abide::policy::{ToolEffect, ToolPolicies, ToolPolicy};
use abide::record::MessageRole;
use abide::runner::{
    AgentFrameworkRunner, ClaudeAgentOptions, ClaudeAgentRunner, CliEnvironment, GatedCallWait,
    PreToolUse, PreToolUseDecision, PreToolUseHook,
};
use abide::store::MemoryStateStore;
use abide::testing::clock::TokioClock;
use abide::testing::fake_cli::Fault;
use abide::testing::launcher::{FakeCliHandle, FakeCliLauncher};
use abide::tool::{CustomTool, ToolContext, ToolError, ToolOutput};
use async_trait::async_trait;
use tempfile::TempDir;
use tracing::subscriber::DefaultGuard;

use crate::support::{World, ends_turn, wait_for_event};
use spans::{Fields, Seen, Spans};

const MODEL: &str = "claude-sonnet-5";
const DATED_MODEL: &str = "claude-sonnet-5-20260101";

/// An engine with one Flow, and everything that it traces.
struct Traced {
    spans: Spans,
    client: AgentSessionClient,
    engine: LocalEngine,
    session: SessionId,
    turns: usize,
    interrupts: usize,
    _guard: DefaultGuard,
}

impl Traced {
    async fn over(runner: impl AgentFrameworkRunner + 'static) -> Self {
        Self::over_with(runner, SessionOptions::default()).await
    }

    async fn over_with(
        runner: impl AgentFrameworkRunner + 'static,
        options: SessionOptions,
    ) -> Self {
        let (spans, guard) = Spans::collect();
        let flow = AgentSessionFlow::new("Traced", runner, options).unwrap();
        let registry = FlowRegistry::new().register(flow).unwrap();
        let store = Arc::new(MemoryStateStore::new());
        let mut options = LocalEngineOptions::default();
        options.clock = Arc::new(TokioClock::starting_at(Timestamp(1_000_000)));
        let engine = LocalEngine::start_with(registry, store, options)
            .await
            .unwrap();
        let client = engine.client();
        let session = SessionId::new("traced").unwrap();
        let flow_type = FlowType::new("Traced").unwrap();
        let start = StartSession::new(session.clone(), flow_type);
        client.start_session(start).await.unwrap();
        Self {
            spans,
            client,
            engine,
            session,
            turns: 0,
            interrupts: 0,
            _guard: guard,
        }
    }

    async fn say(&self, text: &str) {
        let sent = self.client.send_user_message(&self.session, text, None);
        sent.await.unwrap();
    }

    async fn turn(&mut self, text: &str) {
        self.say(text).await;
        self.turn_over().await;
    }

    async fn turn_over(&mut self) {
        self.turns += 1;
        self.nth(self.turns, ends_turn).await;
    }

    /// Waits until this kind of event has come this often.
    async fn nth(&self, count: usize, is_it: impl Fn(&EventKind) -> bool) {
        let mut seen = 0;
        wait_for_event(&self.client, &self.session, |it| {
            seen += usize::from(is_it(&it.kind));
            seen == count
        })
        .await;
    }

    /// Waits until no attempt has an open span; the process may stay.
    async fn until_attempts_are_over(&self) {
        for _ in 0..10_000 {
            if self.spans.named("run_model").iter().all(|it| it.is_closed) {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("the span of an attempt stays open");
    }

    /// Decides about the call that is open next, and waits for the end of the turn.
    async fn decide(&mut self, rejection: Option<&str>) {
        self.interrupts += 1;
        self.nth(self.interrupts, |it| {
            matches!(it, EventKind::InterruptRequested { .. })
        })
        .await;
        let snapshot = self.client.snapshot(&self.session).await.unwrap();
        let id = snapshot.pending_interrupts[0].interrupt_id.clone();
        let answer = match rejection {
            Some(message) => ResolveInterrupt::reject(id, Some(message.to_owned())),
            None => ResolveInterrupt::approve(id),
        };
        let resolved = self.client.resolve_interrupt(&self.session, answer);
        resolved.await.unwrap();
        self.turn_over().await;
    }

    /// The turn's end was committed before its Step's task was over.
    async fn ended(self) -> Spans {
        self.engine.shutdown().await;
        self.spans
    }

    async fn only_chat(self) -> Fields {
        let spans = self.ended().await;
        let [chat] = <[Seen; 1]>::try_from(spans.named("chat")).expect("one attempt");
        assert_eq!(spans.parent_of(&chat), "run_model");
        // A layer that has seen a span entered may have told its kind already.
        assert!(chat.is_closed && !chat.was_entered);
        chat.fields
    }
}

/// Logs, and leaves each call as it is.
#[derive(Debug)]
struct Looks;

#[async_trait]
impl PreToolUseHook for Looks {
    async fn pre_tool_use(
        &self,
        _: PreToolUse,
    ) -> Result<PreToolUseDecision, Box<dyn std::error::Error + Send + Sync>> {
        tracing::info!("a hook looks");
        Ok(PreToolUseDecision::unchanged())
    }
}

/// A runner over the fake CLI whose gated calls wait like this.
fn agent(wait: GatedCallWait, options: ClaudeAgentOptions) -> (ClaudeAgentRunner, FakeCliHandle) {
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct Order {
        order_id: String,
    }
    let launcher = FakeCliLauncher::new();
    let handle = launcher.handle();
    let policies = ToolPolicies::new().with("Agent", ToolPolicy::new(ToolEffect::Read));
    let look_up = async |order: Order, _: ToolContext| {
        tracing::info!("a handler looks up");
        Ok(ToolOutput::text(format!("{} is fine", order.order_id)))
    };
    let refund = async |order: Order, _: ToolContext| {
        tracing::info!("a handler refunds");
        Ok(ToolOutput::text(format!("{} is refunded", order.order_id)))
    };
    let refuse = async |order: Order, _: ToolContext| {
        Err(ToolError::failed(format!("no {}", order.order_id)))
    };
    let fail = async |_: Order, _: ToolContext| Err(ToolError::attempt("the line is cut"));
    let runner = ClaudeAgentRunner::builder(options)
        .tool_policies(policies)
        .gated_call_wait(wait)
        .custom_tool(CustomTool::new("lookup", "Reads", look_up).with_effect(ToolEffect::Read))
        .custom_tool(CustomTool::new("fail", "Fails", fail).with_effect(ToolEffect::Read))
        .custom_tool(CustomTool::new("refund", "Refunds", refund))
        .custom_tool(CustomTool::new("refuse", "Refuses", refuse))
        .pre_tool_use_hook(Looks)
        .launcher(Arc::new(launcher))
        .build()
        .unwrap();
    (runner, handle)
}

fn options(directory: &TempDir) -> ClaudeAgentOptions {
    ClaudeAgentOptions::new(directory.path())
        .with_environment(CliEnvironment::empty())
        .with_model(MODEL)
        .with_tools(["Agent"])
}

async fn traced(wait: GatedCallWait) -> (Traced, FakeCliHandle, TempDir) {
    let directory = TempDir::new().unwrap();
    let (runner, handle) = agent(wait, options(&directory));
    (Traced::over(runner).await, handle, directory)
}

/// The span without what names the attempt.
fn facts(mut fields: Fields) -> Vec<(String, String)> {
    for name in [
        "gen_ai.operation.name",
        "gen_ai.conversation.id",
        "agent.turn.id",
        "agent.step.id",
        "agent.step.attempt",
    ] {
        assert!(fields.remove(name).is_some(), "{name} is missing");
    }
    fields.into_iter().collect()
}

fn told<'a>(facts: &[(&'a str, &'a str)]) -> Vec<(String, String)> {
    let owned = facts.iter().map(|(name, value)| (*name, *value));
    owned
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// J01, J02, J03, J04, J06: an attempt with one model call is a client's span, with the usage, the id
/// and the finish reason of its reply.
#[tokio::test]
async fn an_attempt_with_one_model_call_is_a_client_span() {
    let (mut traced, _, _directory) = traced(GatedCallWait::Live).await;
    traced.turn("script: say hi").await;
    let fields = traced.only_chat().await;
    assert_eq!(fields["gen_ai.operation.name"], "chat");
    assert_eq!(fields["gen_ai.conversation.id"], "traced");
    assert_eq!(fields["agent.turn.id"], "t1");
    assert_eq!(fields["agent.step.id"], "s1");
    assert_eq!(fields["agent.step.attempt"], "1");
    let expected = told(&[
        ("agent.step.model_calls", "1"),
        ("gen_ai.provider.name", "anthropic"),
        ("gen_ai.request.model", MODEL),
        ("gen_ai.response.finish_reasons", r#"["end_turn"]"#),
        ("gen_ai.response.id", "msg_000000010000000000000001"),
        ("gen_ai.response.model", DATED_MODEL),
        ("gen_ai.usage.cache_read.input_tokens", "2"),
        ("gen_ai.usage.input_tokens", "16"),
        ("gen_ai.usage.output_tokens", "7"),
        ("otel.kind", "client"),
        ("otel.name", "chat claude-sonnet-5"),
    ]);
    assert_eq!(facts(fields), expected);
}

/// J02, J06: an attempt with two model calls is no client's span and has none of a reply's facts.
#[tokio::test]
async fn an_attempt_with_two_model_calls_is_an_internal_span() {
    for wait in [GatedCallWait::Live, GatedCallWait::Native] {
        let (mut traced, _, _directory) = traced(wait).await;
        traced.turn(r#"script: call lookup {"order_id":"7"}"#).await;
        let expected = told(&[
            ("agent.step.model_calls", "2"),
            ("gen_ai.provider.name", "anthropic"),
            ("gen_ai.request.model", MODEL),
            ("gen_ai.response.model", DATED_MODEL),
            ("otel.kind", "internal"),
            ("otel.name", "chat claude-sonnet-5"),
        ]);
        assert_eq!(facts(traced.only_chat().await), expected);
    }
}

/// J07: a sub-agent's calls count, and nobody says which model was asked for and where.
#[tokio::test]
async fn a_segment_with_a_sub_agent_names_no_requested_model() {
    let (mut traced, _, _directory) = traced(GatedCallWait::Live).await;
    let input = serde_json::json!({"description": "a job", "prompt": "script: say hi", "subagent_type": "general-purpose"});
    traced.turn(&format!("script: call Agent {input}")).await;
    let expected = told(&[
        ("agent.step.model_calls", "3"),
        ("otel.kind", "internal"),
        ("otel.name", "chat"),
    ]);
    assert_eq!(facts(traced.only_chat().await), expected);
}

/// J01, J08, N46: a turn with a write is two attempts of the model and one of the tool; the first ends
/// for the model's reason, not for the CLI's `tool_deferred`.
#[tokio::test]
async fn a_gated_call_is_a_span_between_two_of_the_model() {
    let (mut traced, _, _directory) = traced(GatedCallWait::Native).await;
    traced.say(r#"script: call refund {"order_id":"7"}"#).await;
    traced.decide(None).await;
    let spans = traced.ended().await;
    let chats: Vec<_> = (spans.named("chat").into_iter())
        .map(|it| {
            let fields = &it.fields;
            let at = fields["agent.step.id"].clone();
            (
                at,
                fields["otel.kind"].clone(),
                fields["gen_ai.response.finish_reasons"].clone(),
            )
        })
        .collect();
    let chat = |step: &str, reason: &str| {
        (
            step.to_owned(),
            "client".to_owned(),
            format!("[{reason:?}]"),
        )
    };
    assert_eq!(chats, [chat("s1", "tool_use"), chat("s5", "end_turn")]);
    let [tool] = <[Seen; 1]>::try_from(spans.named("execute_tool")).expect("one start");
    assert_eq!(spans.parent_of(&tool), "call_tool");
    assert!(tool.is_closed);
    assert_eq!(tool.fields["gen_ai.operation.name"], "execute_tool");
    assert_eq!(tool.fields["gen_ai.conversation.id"], "traced");
    assert_eq!(tool.fields["agent.turn.id"], "t1");
    assert_eq!(tool.fields["agent.step.id"], "s3");
    assert_eq!(tool.fields["agent.step.attempt"], "1");
    let expected = told(&[
        ("agent.tool.effect", "unclassified"),
        ("agent.tool.status", "succeeded"),
        ("gen_ai.tool.call.id", "toolu_000000010000000000000001"),
        ("gen_ai.tool.name", "refund"),
        ("gen_ai.tool.type", "function"),
        ("otel.kind", "internal"),
        ("otel.name", "execute_tool refund"),
    ]);
    assert_eq!(facts(tool.fields), expected);
}

/// J02, J06: an attempt that is parked, or given back, has the facts of its one reply, although no
/// result came.
#[tokio::test]
async fn an_attempt_without_a_result_has_the_facts_of_its_reply() {
    for window in [Duration::ZERO, Duration::from_secs(60)] {
        let directory = TempDir::new().unwrap();
        let (runner, _) = agent(GatedCallWait::Live, options(&directory));
        let mut session_options = SessionOptions::default();
        session_options.live_window = window;
        let traced = Traced::over_with(runner, session_options).await;
        traced.say(r#"script: call refund {"order_id":"7"}"#).await;
        let waits = |it: &EventKind| match window {
            Duration::ZERO => matches!(it, EventKind::TurnSuspended),
            _ => matches!(it, EventKind::InterruptRequested { .. }),
        };
        traced.nth(1, waits).await;
        let expected = told(&[
            ("agent.step.model_calls", "1"),
            ("gen_ai.request.model", MODEL),
            ("gen_ai.response.finish_reasons", r#"["tool_use"]"#),
            ("gen_ai.response.id", "msg_000000010000000000000001"),
            ("gen_ai.response.model", DATED_MODEL),
            ("gen_ai.usage.cache_read.input_tokens", "2"),
            ("gen_ai.usage.input_tokens", "16"),
            ("gen_ai.usage.output_tokens", "7"),
            ("otel.kind", "client"),
            ("otel.name", "chat claude-sonnet-5"),
        ]);
        assert_eq!(facts(traced.only_chat().await), expected, "{window:?}");
    }
}

/// N46: a start of a tool that fails says so, without the failure's text.
#[tokio::test]
async fn a_failed_start_of_a_tool_is_an_error() {
    let (mut traced, _, _directory) = traced(GatedCallWait::Live).await;
    traced.say(r#"script: call refuse {"order_id":"7"}"#).await;
    traced.decide(None).await;
    let spans = traced.ended().await;
    let [tool] = <[Seen; 1]>::try_from(spans.named("execute_tool")).expect("one start");
    for (name, value) in [
        ("agent.tool.status", "failed"),
        ("error.type", "failed"),
        ("otel.status_code", "error"),
    ] {
        assert_eq!(tool.fields[name], value, "{name}");
    }
}

/// J01, J03: a failed attempt has a span of its own with its class; a CLI that has said nothing was
/// asked for the options' model, and nothing else is known.
#[tokio::test(start_paused = true)]
async fn a_failed_attempt_is_a_span_with_an_error() {
    for (fault, class, request_model) in [
        (Fault::DieAfterSent(1), "cli_failed", "haiku"),
        (
            Fault::ApiError {
                status: 400,
                at_model_call: 1,
                recovers: false,
            },
            "api_error",
            "haiku",
        ),
    ] {
        let directory = TempDir::new().unwrap();
        let options = options(&directory).with_model("haiku");
        let (runner, handle) = agent(GatedCallWait::Live, options);
        let mut traced = Traced::over(runner).await;
        handle.fault_next_launch(vec![fault]);
        traced.turn("script: say hi").await;
        let spans = traced.ended().await;
        let [failed, answered] = <[Seen; 2]>::try_from(spans.named("chat")).expect("two attempts");
        assert_eq!(failed.fields["agent.step.attempt"], "1");
        let expected = told(&[
            ("agent.step.model_calls", "0"),
            ("error.type", class),
            ("gen_ai.request.model", request_model),
            ("otel.kind", "internal"),
            ("otel.name", "chat haiku"),
            ("otel.status_code", "error"),
        ]);
        assert_eq!(facts(failed.fields), expected);
        assert_eq!(answered.fields["agent.step.attempt"], "2");
        assert_eq!(answered.fields["otel.kind"], "client");
        assert!(!answered.fields.contains_key("error.type"));
    }
}

/// N46, J01: nothing of prompts, arguments, outputs, answers and rejections is in any span, of ours or
/// of what this crate is built on.
#[tokio::test]
async fn spans_hold_nothing_of_the_conversation() {
    const CANARY: &str = "canary-5f1d";
    for wait in [GatedCallWait::Live, GatedCallWait::Native] {
        let (mut traced, _, _directory) = traced(wait).await;
        let call = |tool: &str| format!(r#"call {tool} {{"order_id":"{CANARY}"}}"#);
        traced
            .turn(&format!("script: say {CANARY} ;; think {CANARY}"))
            .await;
        let calls = format!("script: {} && {}", call("lookup"), call("fail"));
        traced.turn(&calls).await;
        traced.say(&format!("script: {}", call("refund"))).await;
        traced.decide(None).await;
        traced.say(&format!("script: {}", call("refuse"))).await;
        traced.decide(Some(CANARY)).await;
        traced.turn("script: fail").await;
        let said = traced.client.snapshot(&traced.session).await.unwrap();
        let answers = said
            .messages
            .iter()
            .filter(|it| it.role == MessageRole::Assistant);
        assert!(answers.filter(|it| it.text.contains(CANARY)).count() >= 4);
        let spans = traced.ended().await;
        assert!(spans.named("chat").len() >= 5 && spans.named("execute_tool").len() == 1);
        for value in spans.values() {
            assert!(!value.contains(CANARY), "{value}");
        }
    }
}

/// J01, N46: what handlers, hooks and this crate log while an attempt runs says which attempt it is,
/// also where the process and its tool server are those of an earlier turn; spans end with their
/// attempts, although that process stays.
#[tokio::test]
async fn log_lines_say_which_attempt_they_are_of() {
    let (mut traced, handle, _directory) = traced(GatedCallWait::Live).await;
    for turn in 1..=2 {
        let calls = r#"script: call fail {"order_id":"7"} && call lookup {"order_id":"7"}"#;
        traced.turn(calls).await;
        traced.until_attempts_are_over().await;
        assert_eq!(handle.running(), 1);
        let session = ("session", "traced".to_owned());
        let at = [
            session,
            ("turn", format!("t{turn}")),
            ("step", format!("s{turn}")),
            ("attempt", "1".to_owned()),
        ];
        let at: Fields = at.map(|(name, value)| (name.to_owned(), value)).into();
        for text in [
            "an inline call failed",
            "a handler looks up",
            "a hook looks",
        ] {
            let lines = traced.spans.lines(text);
            let last = lines
                .last()
                .unwrap_or_else(|| panic!("nobody said {text:?}"));
            assert_eq!(last.spans[0], ("run_model", at.clone()), "{text}");
        }
    }
    assert_eq!(handle.launches().len(), 1);
    traced.say(r#"script: call refund {"order_id":"7"}"#).await;
    traced.decide(None).await;
    let lines = traced.spans.lines("a handler refunds");
    let names: Vec<_> = lines[0].spans.iter().map(|it| it.0).collect();
    assert_eq!(names, ["execute_tool", "call_tool"]);
    assert_eq!(lines[0].spans[1].1["turn"], "t3");
    assert_eq!(lines[0].spans[1].1["attempt"], "1");
}

/// J02, J05: the real CLI names its provider, and the reply's facts are those of the API.
#[tokio::test]
async fn a_turn_of_the_real_cli_is_a_client_span() {
    for version in ["2.1.316", "2.1.332"] {
        let (spans, _guard) = Spans::collect();
        let Some(mut world) = World::real(version).await else {
            return;
        };
        let session = world.start_session("traced", "script: say hi").await;
        world.wait_for_turns(&session, 1).await;
        world.check_cli().await;
        let [chat] = <[Seen; 1]>::try_from(spans.named("chat")).expect("one attempt");
        let mut fields = chat.fields;
        let id = fields
            .remove("gen_ai.response.id")
            .expect("a reply has an id");
        assert!(id.starts_with("msg_"), "{id}");
        let expected = told(&[
            ("agent.step.model_calls", "1"),
            ("gen_ai.provider.name", "anthropic"),
            ("gen_ai.request.model", MODEL),
            ("gen_ai.response.finish_reasons", r#"["end_turn"]"#),
            ("gen_ai.response.model", MODEL),
            ("gen_ai.usage.cache_read.input_tokens", "2"),
            ("gen_ai.usage.input_tokens", "16"),
            ("gen_ai.usage.output_tokens", "7"),
            ("otel.kind", "client"),
            ("otel.name", "chat claude-sonnet-5"),
        ]);
        assert_eq!(facts(fields), expected, "{version}");
    }
}
