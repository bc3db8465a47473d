//! The agent: two tools, a policy, and the CLI that it runs on.

use std::path::Path;
use std::sync::Arc;

use abide::definition::DefinitionError;
use abide::flow::{AgentSessionFlow, FlowRegistry, SessionOptions};
use abide::policy::ToolEffect;
use abide::runner::{ClaudeAgentOptions, ClaudeAgentRunner, CliEnvironment};
use abide::testing::launcher::FakeCliLauncher;
use abide::tool::{CustomTool, ToolError, ToolOutput};
use abide::transport::{CliLauncher, SubprocessLauncher};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::desk::OrderDesk;

pub(crate) const FLOW_TYPE: &str = "OrderSupport";

const SYSTEM_PROMPT: &str = "You resolve order problems. Look an order up before you change it. \
    Cancel an order when the customer asks for it, and answer in one or two sentences.";

#[derive(Deserialize, JsonSchema)]
struct LookUp {
    /// The number of the order.
    order_id: String,
}

#[derive(Deserialize, JsonSchema)]
struct Cancel {
    /// The number of the order.
    order_id: String,
    /// Why the customer wants it cancelled.
    reason: String,
}

/// Where the agent's CLI comes from.
pub(crate) enum Cli {
    /// The scripted CLI, in this process: no model, no network.
    Scripted,
    /// The real one, with the user's own credentials.
    Real,
}

pub(crate) fn registry(
    desk: &OrderDesk,
    cli: &Cli,
    directory: &Path,
) -> Result<FlowRegistry, DefinitionError> {
    let reader = desk.clone();
    let look_up = CustomTool::new(
        "look_up_order",
        "Look up an order",
        move |order: LookUp, _| {
            let desk = reader.clone();
            async move {
                desk.describe(&order.order_id)
                    .map(ToolOutput::text)
                    .map_err(ToolError::attempt)
            }
        },
    )
    .with_effect(ToolEffect::Read);

    // No policy and no annotation: a call waits for a person, and is started once.
    let writer = desk.clone();
    let cancel = CustomTool::new(
        "cancel_order",
        "Cancel an order and refund it",
        move |order: Cancel, _| {
            let desk = writer.clone();
            async move {
                desk.cancel(&order.order_id, &order.reason)
                    .map(ToolOutput::text)
                    .map_err(ToolError::attempt)
            }
        },
    );

    let (options, launcher): (_, Arc<dyn CliLauncher>) = match cli {
        Cli::Scripted => (
            ClaudeAgentOptions::new(directory),
            Arc::new(FakeCliLauncher::new()),
        ),
        Cli::Real => (
            real_options(directory),
            Arc::new(SubprocessLauncher::new(real_program())),
        ),
    };
    let runner = ClaudeAgentRunner::builder(options.with_system_prompt(SYSTEM_PROMPT))
        .custom_tool(look_up)
        .custom_tool(cancel)
        .launcher(launcher)
        .build()?;
    FlowRegistry::new().register(AgentSessionFlow::new(
        FLOW_TYPE,
        runner,
        SessionOptions::default(),
    )?)
}

pub(crate) fn real_program() -> String {
    std::env::var("ABIDE_CLAUDE_BIN").unwrap_or_else(|_| "claude".to_owned())
}

/// The CLI gets the few variables named here and in `minimal`, and nothing else of this process.
fn real_options(directory: &Path) -> ClaudeAgentOptions {
    let environment = CliEnvironment::minimal()
        .inherit("ANTHROPIC_API_KEY")
        .inherit("ANTHROPIC_AUTH_TOKEN")
        .inherit("ANTHROPIC_BASE_URL")
        .inherit("CLAUDE_CODE_OAUTH_TOKEN")
        .inherit("CLAUDE_CONFIG_DIR");
    let options = ClaudeAgentOptions::new(directory).with_environment(environment);
    match std::env::var("ABIDE_MODEL") {
        Ok(model) => options.with_model(model),
        Err(_) => options,
    }
}
