use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{ChildStdin, Command};

use super::*;
use crate::testing::messages_api::{ModelScript, ScriptedMessagesApi};

/// Bounds a wait that would otherwise hang a broken build; nothing waits for it to pass.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a variable names wins over the pinned binary, and a missing CLI is an error only when one
/// is required.
#[test]
fn a_cli_is_found_by_variable_then_by_pin_and_missed_only_when_required() {
    let root = tempfile::tempdir().unwrap();
    let pinned = root
        .path()
        .join("fixtures/cli/node_modules/cli-1-2-3/claude");
    let locate = |named: Option<&Path>, required| {
        RealCli::locate("1.2.3", root.path(), named.map(Path::to_owned), required)
    };
    let variable = "ABIDE_CLI_1_2_3".to_owned();
    let missing = RealCliError::Missing {
        variable: variable.clone(),
        program: pinned.clone(),
    };
    assert_eq!(locate(None, false), Ok(None));
    assert_eq!(locate(None, true), Err(missing));

    let found = |program: &Path| {
        Ok(Some(RealCli {
            version: "1.2.3".to_owned(),
            program: program.to_owned(),
        }))
    };
    std::fs::create_dir_all(pinned.parent().unwrap()).unwrap();
    std::fs::write(&pinned, "").unwrap();
    assert_eq!(locate(None, true), found(&pinned));

    let named = root.path().join("claude");
    let not_a_file = RealCliError::NotAFile {
        variable,
        program: named.clone(),
    };
    assert_eq!(locate(Some(&named), false), Err(not_a_file));
    std::fs::write(&named, "").unwrap();
    assert_eq!(locate(Some(&named), true), found(&named));
}

/// The scripted API serves the real CLI 2.1.316, which asks it nothing that it does not know.
#[tokio::test]
async fn cli_2_1_316_is_served_by_the_scripted_api() {
    talk("2.1.316").await;
}

/// The scripted API serves the real CLI 2.1.332, which asks it nothing that it does not know.
#[tokio::test]
async fn cli_2_1_332_is_served_by_the_scripted_api() {
    talk("2.1.332").await;
}

async fn talk(version: &str) {
    let found = RealCli::find(version, Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
    let Some(cli) = found else { return };
    let api = ScriptedMessagesApi::start(ModelScript::commands())
        .await
        .unwrap();
    let calls =
        r#"script: call Bash {"command":"echo one"} && call Bash {"command":"echo two; exit 3"}"#;
    let prompts = ["script: say hello", calls, "script: recall"];
    let answers = tokio::time::timeout(PATIENCE, answers(&cli, &api, &prompts))
        .await
        .expect("the CLI gives its results");
    let recalled = format!("recalled: script: say hello | {calls}");
    let expected = [
        "said: hello",
        "Bash: one\nBash: Exit code 3\ntwo",
        &recalled,
    ];
    assert_eq!(answers, expected);
    assert_eq!(api.main_requests().len(), 4);
    api.assert_all_served();
    api.shutdown().await;
}

/// Runs prompts through a fresh CLI process (argv: cli-protocol §1), and returns what it answers.
async fn answers(cli: &RealCli, api: &ScriptedMessagesApi, prompts: &[&str]) -> Vec<String> {
    let root = tempfile::tempdir().unwrap();
    let directory = |name: &str| {
        let path = root.path().join(name);
        std::fs::create_dir(&path).unwrap();
        path
    };
    let home = directory("home");
    let mut child = Command::new(cli.program())
        .args(["--output-format", "stream-json", "--verbose"])
        .args(["--input-format", "stream-json", "--model=claude-sonnet-5"])
        .args(["--permission-prompt-tool=stdio", "--tools=Read,Bash"])
        .args(["--setting-sources=", "--permission-mode=default"])
        .args(["--include-partial-messages", "--session-mirror"])
        .args(["--await-initialize", "--allowedTools=Bash"])
        .env_clear()
        .envs(isolated_environment(&api.base_url(), &home))
        .env("CLAUDE_CONFIG_DIR", directory("config"))
        .env("TMPDIR", directory("tmp"))
        .current_dir(directory("work"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let initialize = json!({
        "type": "control_request", "request_id": "h1", "request": { "subtype": "initialize" },
    });
    write_line(&mut stdin, &initialize).await;
    let mut answers = Vec::new();
    for prompt in prompts {
        let user = json!({
            "type": "user", "session_id": "", "parent_tool_use_id": null,
            "message": { "role": "user", "content": [{ "type": "text", "text": prompt }] },
        });
        write_line(&mut stdin, &user).await;
        answers.push(loop {
            let line = lines.next_line().await.unwrap();
            let line: Value = serde_json::from_str(&line.expect("a result comes")).unwrap();
            if line["type"] == "result" {
                assert_eq!(line["is_error"], false, "{line}");
                break line["result"].as_str().unwrap().to_owned();
            }
        });
    }
    drop(stdin);
    while lines.next_line().await.unwrap().is_some() {}
    assert!(child.wait().await.unwrap().success());
    answers
}

async fn write_line(stdin: &mut ChildStdin, line: &Value) {
    let line = format!("{line}\n");
    stdin.write_all(line.as_bytes()).await.unwrap();
}
