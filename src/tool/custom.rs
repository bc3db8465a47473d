//! [`CustomTool`]: a name, a schema and an async handler.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{HANDLER_DEADLINE_DEFAULT, ToolContext, ToolError, ToolOutput};
use crate::policy::{ToolAnnotations, ToolEffect};

type HandlerFuture = Pin<Box<dyn Future<Output = Result<ToolOutput, ToolError>> + Send>>;
type Handler =
    Arc<dyn Fn(Value, ToolContext) -> Result<HandlerFuture, serde_json::Error> + Send + Sync>;

type AsksPerson = Arc<dyn Fn(&Value) -> bool + Send + Sync>;

/// One tool of the application. Created by [`CustomTool::new`].
#[derive(Clone)]
pub struct CustomTool {
    name: String,
    description: String,
    input_schema: Value,
    annotations: ToolAnnotations,
    deadline: Duration,
    approval_rule: Option<AsksPerson>,
    handler: Handler,
}

impl CustomTool {
    /// Makes a tool whose input schema is derived from `T`. The model sees it as
    /// `mcp__tools__<name>`; policies, interrupts and records use `name`.
    ///
    /// The handler runs only with arguments that parse as `T`; others are recorded as `failed` with
    /// the parser's message (E15).
    pub fn new<T, F, Fut>(
        name: impl Into<String>,
        description: impl Into<String>,
        handler: F,
    ) -> Self
    where
        T: DeserializeOwned + JsonSchema + Send + 'static,
        F: Fn(T, ToolContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<ToolOutput, ToolError>> + Send + 'static,
    {
        let handler = Arc::new(move |arguments: Value, context: ToolContext| {
            let parsed: T = serde_json::from_value(arguments)?;
            Ok(Box::pin(handler(parsed, context)) as HandlerFuture)
        });
        Self {
            name: name.into(),
            description: description.into(),
            input_schema: schemars::schema_for!(T).to_value(),
            annotations: ToolAnnotations::default(),
            deadline: HANDLER_DEADLINE_DEFAULT,
            approval_rule: None,
            handler,
        }
    }

    /// Says what a call does to the world, as MCP annotations; a policy of the Flow wins over it.
    #[must_use]
    pub const fn with_effect(self, effect: ToolEffect) -> Self {
        let annotations = match effect {
            ToolEffect::Read => ToolAnnotations {
                read_only: true,
                ..self.annotations
            },
            ToolEffect::IdempotentWrite => ToolAnnotations {
                read_only: false,
                idempotent: true,
                ..self.annotations
            },
            ToolEffect::NonIdempotentWrite | ToolEffect::Unclassified => ToolAnnotations {
                read_only: false,
                idempotent: false,
                ..self.annotations
            },
        };
        self.with_annotations(annotations)
    }

    /// Says for each call, by its final input, whether a person decides: `true` makes it wait,
    /// `false` asks nobody, whatever the effect. `T` is what the handler takes, or a part of it; an
    /// input that does not parse as `T`, and a rule that panics, ask a person.
    ///
    /// What holds for the rule is told at
    /// [`approval_if`](crate::runner::ClaudeAgentRunnerBuilder::approval_if). A Flow that gives the
    /// tool a rule, too, or a policy with an approval of its own, is refused.
    #[must_use]
    pub fn with_approval_if<T, F>(mut self, asks: F) -> Self
    where
        T: DeserializeOwned,
        F: Fn(&T) -> bool + Send + Sync + 'static,
    {
        self.approval_rule = Some(Arc::new(move |input: &Value| match T::deserialize(input) {
            Ok(input) => asks(&input),
            Err(_) => true,
        }));
        self
    }

    /// Sets MCP's annotations.
    #[must_use]
    pub const fn with_annotations(mut self, annotations: ToolAnnotations) -> Self {
        self.annotations = annotations;
        self
    }

    /// Sets how long one start of the handler may run. Default: [`HANDLER_DEADLINE_DEFAULT`].
    #[must_use]
    pub const fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Returns the tool's own name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns what the model is told about the tool.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Returns the JSON Schema of its input.
    #[must_use]
    pub const fn input_schema(&self) -> &Value {
        &self.input_schema
    }

    /// Returns MCP's annotations.
    #[must_use]
    pub const fn annotations(&self) -> ToolAnnotations {
        self.annotations
    }

    /// Returns how long one start of the handler may run.
    #[must_use]
    pub const fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Returns what says whether a person decides about an input, if the tool brings that along.
    pub(crate) fn approval_rule(&self) -> Option<AsksPerson> {
        self.approval_rule.clone()
    }

    /// Parses the arguments and returns the handler's future, which has not begun yet.
    pub(super) fn prepare(
        &self,
        arguments: &str,
        context: ToolContext,
    ) -> Result<HandlerFuture, serde_json::Error> {
        (self.handler)(serde_json::from_str(arguments)?, context)
    }
}

impl fmt::Debug for CustomTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CustomTool")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
