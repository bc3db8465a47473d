//! Engines run sessions: they ask the session machine what is due, make it durable, do it, and
//! report back.
//!
//! An engine's obligations (spec/engines.md 10): the inputs of a session are reduced one at a time;
//! a reduction commits whole or not at all; answers come while a Step runs; each granted attempt
//! ends in at most one accepted report; a waiting session costs nothing.

mod answers;
mod claim;
mod driver;
pub(crate) mod live;
mod local;
pub(crate) mod packer;
mod steps;
mod supervisor;
mod terms;
mod tool_step;

pub use local::{LocalEngine, LocalEngineOptions};

use crate::store::StoreError;

/// Why an engine does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// No Flow is registered.
    #[error("no flow is registered")]
    NoFlow,
    /// This process cannot be told from others: `/proc` cannot be read.
    #[error("failed to read this process's identity")]
    Identity {
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The store failed.
    #[error("the store failed")]
    Store(#[from] StoreError),
}

impl EngineError {
    /// True when another try may succeed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::NoFlow | Self::Identity { .. } => false,
            Self::Store(error) => error.is_retryable(),
        }
    }
}
