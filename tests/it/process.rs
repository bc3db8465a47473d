//! The program `fake-claude`: that its shell is wired to the machine.

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output, Stdio};

const ARGUMENTS: [&str; 8] = [
    "--output-format=stream-json",
    "--input-format=stream-json",
    "--verbose",
    "--permission-prompt-tool=stdio",
    "--include-partial-messages",
    "--session-mirror",
    "--await-initialize",
    "--permission-mode=bypassPermissions",
];

const INITIALIZE: &str =
    r#"{"type":"control_request","request_id":"h1","request":{"subtype":"initialize"}}"#;

fn run(lines: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_fake-claude"))
        .args(ARGUMENTS)
        .env_clear()
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    for line in lines {
        writeln!(input, "{line}").unwrap();
    }
    drop(input);
    child.wait_with_output().unwrap()
}

/// A turn leaves its effect and its result; what the host does wrong becomes the exit code.
#[test]
fn a_turn_runs_to_its_result_and_a_violation_is_the_exit_code() {
    let effects = tempfile::NamedTempFile::new().unwrap();
    let prompt = r#"{"type":"user","message":{"role":"user","content":"script: call Bash {\"command\":\"touch x\"}"}}"#;
    let output = run(
        &[INITIALIZE, prompt],
        &[
            ("FAKE_CLAUDE_SEED", "7"),
            ("FAKE_CLAUDE_EFFECTS", effects.path().to_str().unwrap()),
        ],
    );
    let result = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|it| serde_json::from_str::<serde_json::Value>(it).unwrap())
        .find(|it| it["type"] == "result")
        .unwrap();
    assert_eq!(result["result"], "Bash: (Bash completed with no output)");
    let recorded = std::fs::read_to_string(effects.path()).unwrap();
    assert_eq!(recorded, "Bash toolu_000000070000000000000001 touch x\n");
    assert_eq!(output.stderr, b"");
    assert_eq!(output.status.code(), Some(0));
    let output = run(&[INITIALIZE, r#"{"type":"nobody knows"}"#], &[]);
    assert_eq!(output.status.code(), Some(97));
}

/// A fault of the environment ends the program as a signal does.
#[test]
fn a_fault_kills_the_program() {
    let output = run(
        &[INITIALIZE],
        &[("FAKE_CLAUDE_FAULTS", r#"[{"die_after_received":1}]"#)],
    );
    assert_eq!(
        (output.status.signal(), output.stdout),
        (Some(9), Vec::new())
    );
}
