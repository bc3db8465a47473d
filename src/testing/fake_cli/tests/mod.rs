//! The machine stepped by hand, against excerpts of recordings and against its own rules.

use serde_json::{Value, json};

use super::{FakeCli, FakeCliConfig, Fault, MirrorLag};

mod calls;
mod faults;
mod histories;
mod host;
mod live;
mod resumed;
mod shapes;
mod turns;

use host::Host;

const ALLOW: &str =
    r#"{"hookSpecificOutput":{"hookEventName":"PreToolUse","permissionDecision":"allow"}}"#;
const DEFER: &str =
    r#"{"hookSpecificOutput":{"hookEventName":"PreToolUse","permissionDecision":"defer"}}"#;
const DENY: &str = r#"{"hookSpecificOutput":{"hookEventName":"PreToolUse","permissionDecision":"deny","permissionDecisionReason":"not now"}}"#;
const ASK: &str =
    r#"{"hookSpecificOutput":{"hookEventName":"PreToolUse","permissionDecision":"ask"}}"#;

/// The arguments that the host produces, without `--resume`.
fn arguments() -> Vec<String> {
    [
        "--output-format",
        "stream-json",
        "--verbose",
        "--input-format",
        "stream-json",
        "--model=claude-sonnet-5",
        "--permission-prompt-tool=stdio",
        "--tools=Read,Bash,Agent",
        "--setting-sources=",
        "--permission-mode=default",
        "--include-partial-messages",
        "--session-mirror",
        "--mcp-config",
        r#"{"mcpServers":{"tools":{"type":"sdk","name":"tools"}}}"#,
        "--await-initialize",
    ]
    .map(str::to_owned)
    .to_vec()
}

fn config() -> FakeCliConfig {
    let mut config = FakeCliConfig::new(arguments());
    config.seed = 1;
    config.environment.insert(
        "CLAUDE_CODE_SDK_READS_SESSION_STATE".to_owned(),
        "1".to_owned(),
    );
    config
}

fn resumed_config(transcript: Vec<String>) -> FakeCliConfig {
    let mut config = config();
    config.arguments.push(format!("--resume={SESSION}"));
    config.transcript = Some(transcript);
    config.seed = 2;
    config
}

/// The first id of the process with seed 1.
const SESSION: &str = "00000001-0000-4000-8000-000000000001";

fn text_result(frames: &[Value]) -> Vec<String> {
    frames
        .iter()
        .filter(|it| it["type"] == "result")
        .map(|it| it["result"].as_str().unwrap_or("no text").to_owned())
        .collect()
}
