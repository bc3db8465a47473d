//! abide runs a Claude Code agent as a durable session.

pub mod ids;
pub mod record;
pub mod transport;
