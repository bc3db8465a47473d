//! The real process (feature `subprocess`).

/// Starts the real CLI as a child process.
#[derive(Debug)]
pub struct SubprocessLauncher {}
