//! The shell around [`FakeCli`] that makes it the program `fake-claude`.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::ExitCode;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use super::fake_cli::{FakeCli, FakeCliConfig, Fault, mcp_config_paths};

/// What a run ends with when the host broke the protocol.
const VIOLATION_EXIT: u8 = 97;

/// Runs the fake CLI on this process's arguments, environment, stdin and stdout.
///
/// # Cancel safety
/// Not cancel safe; it is the program's only task.
pub async fn run() -> ExitCode {
    let start = Instant::now();
    let mut cli = match read_config() {
        Ok(config) => FakeCli::new(config),
        Err(error) => return fail(&error),
    };
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return fail("cannot listen for SIGTERM");
    };
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    let mut is_open = true;
    loop {
        if let Err(error) = drain(&mut cli) {
            return fail(&error);
        }
        if cli.was_killed() {
            return die();
        }
        if let Some(code) = cli.poll_exit() {
            return finish(&cli, code);
        }
        let deadline = cli.poll_timeout().map(|it| start + it);
        tokio::select! {
            line = input.next_line(), if is_open => match line {
                Ok(Some(line)) => cli.handle_line(&line),
                Ok(None) | Err(_) => {
                    is_open = false;
                    cli.handle_input_closed();
                }
            },
            _ = terminate.recv() => cli.handle_terminate(),
            () = wait_until(deadline) => cli.handle_time(start.elapsed()),
        }
    }
}

/// Ends this process as a host's crash test would: no handler runs, nothing is flushed.
fn die() -> ExitCode {
    use rustix::process::{Signal, getpid, kill_process};
    match kill_process(getpid(), Signal::KILL) {
        Ok(()) => ExitCode::FAILURE,
        Err(error) => fail(&format!("cannot end itself: {error}")),
    }
}

async fn wait_until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Makes effects durable before the lines that tell of them.
fn drain(cli: &mut FakeCli) -> Result<(), String> {
    while let Some(effect) = cli.poll_effect() {
        let Some(path) = std::env::var_os("FAKE_CLAUDE_EFFECTS") else {
            continue;
        };
        let line = format!(
            "{} {} {}\n",
            effect.tool, effect.tool_use_id, effect.subject
        );
        std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .map_err(|error| format!("cannot record an effect: {error}"))?;
    }
    let mut output = std::io::stdout().lock();
    while let Some(line) = cli.poll_line() {
        let written = writeln!(output, "{line}").and_then(|()| output.flush());
        if written.is_err() {
            // The host is gone. The real CLI goes on (spec/cli-protocol.md 0.5); the fake stops.
            return Err("the host closed the output".to_owned());
        }
    }
    Ok(())
}

fn finish(cli: &FakeCli, code: i32) -> ExitCode {
    let mut stderr = std::io::stderr().lock();
    // Nobody is left to tell when stderr is closed.
    for line in cli.stderr() {
        let _ = writeln!(stderr, "{line}");
    }
    for violation in cli.violations() {
        let _ = writeln!(stderr, "fake-claude: violation: {violation}");
    }
    if cli.violations().is_empty() {
        ExitCode::from(u8::try_from(code).unwrap_or(1))
    } else {
        ExitCode::from(VIOLATION_EXIT)
    }
}

fn fail(text: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "fake-claude: {text}");
    ExitCode::FAILURE
}

fn read_config() -> Result<FakeCliConfig, String> {
    let mut config = FakeCliConfig::new(std::env::args().skip(1).collect());
    config.environment = std::env::vars().collect();
    config.working_directory = std::env::current_dir()
        .map_err(|error| format!("no working directory: {error}"))?
        .to_string_lossy()
        .into_owned();
    config.seed = match config.environment.get("FAKE_CLAUDE_SEED") {
        Some(seed) => seed
            .parse()
            .map_err(|_| "FAKE_CLAUDE_SEED is no number".to_owned())?,
        None => std::process::id(),
    };
    if let Some(faults) = config.environment.get("FAKE_CLAUDE_FAULTS") {
        config.faults = serde_json::from_str::<Vec<Fault>>(faults)
            .map_err(|error| format!("FAKE_CLAUDE_FAULTS: {error}"))?;
    }
    config.mcp_config_files = read_files(mcp_config_paths(&config.arguments));
    config.transcript = read_transcript(&config);
    Ok(config)
}

/// A file that cannot be read is left out; the machine reports it as the real CLI does.
pub(super) fn read_files(paths: Vec<String>) -> BTreeMap<String, String> {
    paths
        .into_iter()
        .filter_map(|path| std::fs::read_to_string(&path).ok().map(|text| (path, text)))
        .collect()
}

/// Finds `projects/<any key>/<id>.jsonl`, as the real CLI does.
fn read_transcript(config: &FakeCliConfig) -> Option<Vec<String>> {
    let id = config
        .arguments
        .iter()
        .find_map(|it| it.strip_prefix("--resume="))?;
    let projects =
        std::path::Path::new(config.environment.get("CLAUDE_CONFIG_DIR")?).join("projects");
    std::fs::read_dir(projects)
        .ok()?
        .filter_map(Result::ok)
        .map(|it| it.path().join(format!("{id}.jsonl")))
        .find_map(|path| std::fs::read_to_string(path).ok())
        .map(|text| text.lines().map(str::to_owned).collect())
}
