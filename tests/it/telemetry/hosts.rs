//! The spans of a runner that a host has written.

use abide::failure::AttemptFailure;
use abide::record::{FrameworkItem, MessageRole};
use abide::runner::{
    AgentFrameworkRunner, ModelCallMetadata, RunModelRequest, SegmentLink, ToolCallEnd,
    ToolCallRequest,
};
use abide::turn::{NewMessage, RunModelOutcome, Usage};
use async_trait::async_trait;

use super::{Traced, facts, told};

/// Answers and reports one model call; of its model it says what it is told to.
#[derive(Debug)]
struct HostsRunner {
    request_model: Option<&'static str>,
}

#[async_trait]
impl AgentFrameworkRunner for HostsRunner {
    async fn run_model(
        &self,
        _: RunModelRequest,
        link: SegmentLink,
    ) -> Result<RunModelOutcome, AttemptFailure> {
        if let Some(model) = self.request_model {
            let mut known = ModelCallMetadata::default();
            known.model_calls = 2;
            known.request_model = Some(model.to_owned());
            link.model_calls(known);
        }
        let message = NewMessage {
            role: MessageRole::Assistant,
            text: "hi".to_owned(),
            tool_call_id: None,
            item: FrameworkItem::from_text(r#"{"kind":"hosts"}"#.to_owned()).unwrap(),
        };
        let usage = Usage {
            input_tokens: 5,
            output_tokens: 3,
            model_calls: 1,
            ..Usage::default()
        };
        Ok(RunModelOutcome::TurnCompleted {
            messages: vec![message],
            usage,
        })
    }

    async fn call_tool(&self, _: ToolCallRequest) -> ToolCallEnd {
        unreachable!("it asks for no call")
    }
}

/// J01, J02, J09: a runner of the host has the same spans; what it does not say is not there.
#[tokio::test]
async fn a_runner_that_says_nothing_of_its_calls_is_taken_at_its_usage() {
    for (request_model, expected) in [
        (
            None,
            told(&[
                ("agent.step.model_calls", "1"),
                ("gen_ai.usage.cache_read.input_tokens", "0"),
                ("gen_ai.usage.input_tokens", "5"),
                ("gen_ai.usage.output_tokens", "3"),
                ("otel.kind", "client"),
                ("otel.name", "chat"),
            ]),
        ),
        (
            Some("m"),
            told(&[
                ("agent.step.model_calls", "2"),
                ("gen_ai.request.model", "m"),
                ("otel.kind", "internal"),
                ("otel.name", "chat m"),
            ]),
        ),
    ] {
        let mut traced = Traced::over(HostsRunner { request_model }).await;
        traced.turn("hi").await;
        assert_eq!(facts(traced.only_chat().await), expected);
    }
}
