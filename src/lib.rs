//! abide runs a Claude Code agent as a durable session.

#[cfg(not(unix))]
compile_error!("abide runs on Unix only for now");

pub mod event;
pub mod failure;
pub mod ids;
pub mod policy;
pub mod protocol;
pub mod record;
pub mod runner;
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod segment;
pub mod store;
pub mod tool;
pub mod transport;
pub mod turn;
