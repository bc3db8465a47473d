//! A store in one SQLite file (feature `sqlite`).

/// Keeps sessions in one SQLite file.
#[derive(Debug)]
pub struct SqliteStateStore {}
