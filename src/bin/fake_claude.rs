//! `fake-claude`: the fake CLI as a program, behind stdin and stdout (feature `testing`).
//!
//! `FAKE_CLAUDE_FAULTS` holds a JSON list of faults; a file named by `FAKE_CLAUDE_EFFECTS` gets one
//! line for each change of the world; what the host does wrong goes to stderr and makes the exit
//! code 97.

use std::io::Write as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "fake-claude: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(abide::testing::fake_cli_program::run());
    // A read of an input that its host keeps open never returns, and must not keep the process.
    runtime.shutdown_background();
    code
}
