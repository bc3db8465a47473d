//! abide runs a Claude Code agent as a durable session.

pub mod ids;
pub mod record;
#[cfg(feature = "testing")]
pub mod testing;
pub mod transport;
