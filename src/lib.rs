//! abide runs a Claude Code agent as a durable session.

pub mod ids;
pub mod policy;
pub mod record;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;
pub mod transport;
