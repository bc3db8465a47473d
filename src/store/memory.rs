//! A strict store in memory.

/// Keeps sessions in memory.
#[derive(Debug, Default)]
pub struct MemoryStateStore {}
