//! Runs a Claude Code agent as a **durable session**: the conversation, the approvals and the
//! results of tools outlive any process; a person may answer an approval days later, from another
//! machine; a tool that changes the world runs once, or is honestly recorded as `outcome_unknown`.
//!
//! Define tools ([`CustomTool`]), a runner ([`ClaudeAgentRunner`]) and a Flow ([`AgentSessionFlow`]);
//! run its sessions with a [`LocalEngine`] over a [`StateStore`]; start them, send messages, answer
//! interrupts and look with an [`AgentSessionClient`]. The README shows it in 25 lines, the chapter
//! [`manual::architecture`] how it works, [`manual::guarantees`] what holds and which tests show it.
//!
//! # Features
//!
//! - `subprocess` (default): the real CLI as a child process, on Linux.
//! - `sqlite` (default): the SQLite store.
//! - `testing`: fake CLI, scripted Messages API, crash points and conformance kits, for your tests
//!   too.
//! - `unstable`: the machines and the CLI's protocol as public API, without a stability promise.

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

#[cfg(not(unix))]
compile_error!("abide runs on Unix only for now");

pub mod manual;

mod commit;
pub mod event;
pub mod failure;
pub mod ids;
pub mod model_call;
mod packing;
pub mod policy;
pub mod question;
pub mod record;
pub mod settings;
pub mod turn;

#[cfg(not(feature = "unstable"))]
#[expect(
    unreachable_pub,
    unused_imports,
    dead_code,
    reason = "public with the feature `unstable`"
)]
mod protocol;
#[cfg(feature = "unstable")]
pub mod protocol;

#[cfg(not(feature = "unstable"))]
#[expect(
    unreachable_pub,
    unused_imports,
    reason = "public with the feature `unstable`"
)]
mod segment;
#[cfg(feature = "unstable")]
pub mod segment;
#[cfg(not(feature = "unstable"))]
#[expect(
    unreachable_pub,
    unused_imports,
    dead_code,
    reason = "public with the feature `unstable`"
)]
mod session;
#[cfg(feature = "unstable")]
pub mod session;

pub mod clock;
pub mod definition;
pub mod process;
pub mod store;
pub mod tool;
pub mod transport;

pub mod client;
pub mod engine;
pub mod flow;
pub mod runner;
pub mod snapshot;
pub mod spend;
mod telemetry;

#[cfg(feature = "testing")]
pub mod testing;

pub use client::{AgentSessionClient, ResolveInterrupt, StartSession};
pub use definition::DefinitionError;
pub use engine::LocalEngine;
pub use flow::{AgentSessionFlow, FlowRegistry, SessionOptions};
pub use policy::{Approval, ToolEffect, ToolPolicies, ToolPolicy};
pub use runner::{
    AgentFrameworkRunner, ClaudeAgentOptions, ClaudeAgentRunner, CliEnvironment, PreToolUse,
    PreToolUseDecision, PreToolUseHook, SegmentLink,
};
#[cfg(feature = "sqlite")]
pub use store::SqliteStateStore;
pub use store::{MemoryStateStore, StateStore};
pub use tool::{CustomTool, ToolContext, ToolError, ToolOutput};
#[cfg(feature = "subprocess")]
pub use transport::SubprocessLauncher;
pub use turn::RunModelOutcome;

/// The README's example is compiled with the documentation's tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
