//! abide runs a Claude Code agent as a durable session.

#[cfg(not(unix))]
compile_error!("abide works on Unix only: it needs signals and process groups");

pub mod ids;
pub mod record;
pub mod transport;
