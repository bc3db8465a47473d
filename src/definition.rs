//! What is wrong with a definition, found before anything runs.

use crate::ids::{FlowType, InvalidId};

/// The application's code defines something that cannot be run. Never retryable: change the code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DefinitionError {
    /// The name of a Flow is no identifier.
    #[error("the flow type is not an identifier")]
    FlowType {
        /// What is wrong with it.
        source: InvalidId,
    },
    /// Two Flows have the same type.
    #[error("flow type {flow_type} is registered twice")]
    DuplicateFlowType {
        /// The type.
        flow_type: FlowType,
    },
    /// A custom tool cannot have this name.
    #[error("the name of the custom tool {name:?} {reason}")]
    ToolName {
        /// The name.
        name: String,
        /// Why.
        reason: &'static str,
    },
    /// Two custom tools have the same name.
    #[error("the custom tool {name:?} is defined twice")]
    DuplicateTool {
        /// The name.
        name: String,
    },
    /// The custom tool server cannot have this name.
    #[error("the name of the custom tool server {name:?} {reason}")]
    ToolServerName {
        /// The name.
        name: String,
        /// Why.
        reason: &'static str,
    },
    /// An option makes no sense.
    #[error("option {option} {reason}")]
    Option {
        /// Which option.
        option: &'static str,
        /// Why.
        reason: &'static str,
    },
}
