//! `fake-claude`: the fake CLI as a program, behind stdin and stdout (feature `testing`).
//!
//! `FAKE_CLAUDE_FAULTS` holds a JSON list of faults; a file named by `FAKE_CLAUDE_EFFECTS` gets one
//! line for each change of the world; what the host does wrong goes to stderr and makes the exit
//! code 97.

use std::process::ExitCode;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    abide::testing::fake_cli_program::run().await
}
