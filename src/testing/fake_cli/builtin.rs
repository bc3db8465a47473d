//! The built-in tools, as far as a test needs them.

use serde_json::{Value, json};

use super::tools::{Call, CallState, Outcome};
use super::turn::Turn;
use super::{Effect, FakeCli};

const ALL: [&str; 8] = [
    "AskUserQuestion",
    "Bash",
    "Edit",
    "Glob",
    "Grep",
    "Read",
    "Task",
    "Write",
];

impl FakeCli {
    /// The built-ins as system/init lists them: the Agent tool as `Task`.
    pub(super) fn builtin_names(&self) -> Vec<String> {
        let is_wanted = |name: &str| match &self.arguments.tools {
            None => true,
            Some(tools) => tools
                .iter()
                .any(|it| it == name || it == "default" || (it == "Agent" && name == "Task")),
        };
        ALL.into_iter()
            .filter(|it| is_wanted(it))
            // Nobody would answer (spec/cli-protocol.md 9).
            .filter(|it| *it != "AskUserQuestion" || self.arguments.asks_host)
            .map(str::to_owned)
            .collect()
    }

    pub(super) fn run_builtin(&mut self, turn: &mut Turn, index: usize) {
        let call = &turn.calls[index];
        let field = |name: &str| {
            call.final_input[name]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        let (name, id) = (call.name.clone(), call.id.clone());
        let state = match name.as_str() {
            "Bash" => {
                let command = field("command");
                self.effect(&name, &id, &command);
                match gate_of(&command) {
                    Some(gate) => CallState::AtGate(gate),
                    None => CallState::Done(bash_outcome(&command)),
                }
            }
            "Write" | "Edit" => {
                let path = field("file_path");
                self.effect(&name, &id, &path);
                let text = format!("The file {path} has been updated successfully.");
                CallState::Done(Outcome::of(json!(text), json!({"filePath": path})))
            }
            "Read" => {
                let path = field("file_path");
                let text = self
                    .config
                    .readable_files
                    .get(&path)
                    .cloned()
                    .unwrap_or_else(|| format!("contents of {path}"));
                let detail = json!({"type": "text", "file": {"filePath": path, "content": text}});
                CallState::Done(Outcome::of(json!(format!("1\t{text}")), detail))
            }
            "AskUserQuestion" => CallState::Done(question_outcome(&call.final_input)),
            "Agent" => {
                self.delegate(turn, index);
                return;
            }
            _ => CallState::Done(Outcome::of(json!("No files found"), json!({"numFiles": 0}))),
        };
        turn.calls[index].state = state;
    }

    fn effect(&mut self, tool: &str, id: &str, subject: &str) {
        self.effects.push_back(Effect {
            tool: tool.to_owned(),
            tool_use_id: id.to_owned(),
            subject: subject.to_owned(),
        });
    }
}

/// Refuses a call that lacks a text that its tool needs, before anybody is asked (measured on CLI
/// 2.1.316 and 2.1.332). What else may be wrong with an input is not looked at.
pub(super) fn refuse_input(tool: &str, input: &Value) -> Option<Outcome> {
    let needed: &[&str] = match tool {
        "Bash" => &["command"],
        "Read" => &["file_path"],
        "Write" => &["file_path", "content"],
        "Edit" => &["file_path", "old_string", "new_string"],
        _ => &[],
    };
    let missing = needed.iter().find(|it| input.get(**it).is_none())?;
    let mut outcome = Outcome::error(&format!(
        "<tool_use_error>InputValidationError: {tool} failed due to the following issue:\nThe required parameter `{missing}` is missing</tool_use_error>"
    ));
    outcome.detail = json!(format!(
        "InputValidationError: Invalid input: expected string, received undefined: {missing}"
    ));
    Some(outcome)
}

/// Ends a command that waited at a gate.
pub(super) fn end_gated(call: &mut Call) {
    let command = call.final_input["command"].as_str().unwrap_or_default();
    call.state = CallState::Done(bash_outcome(command));
}

fn gate_of(command: &str) -> Option<String> {
    if command.split_whitespace().next() == Some("sleep") {
        return Some("sleep".to_owned());
    }
    command
        .split_whitespace()
        .find_map(|it| it.strip_prefix("gate:"))
        .map(str::to_owned)
}

/// `echo` without a redirection prints its words; everything else prints nothing.
fn bash_outcome(command: &str) -> Outcome {
    let printed = command
        .strip_prefix("echo ")
        .filter(|it| !it.contains(['>', '&', '|', ';']));
    let stdout = printed.unwrap_or_default();
    let content = if stdout.is_empty() {
        "(Bash completed with no output)"
    } else {
        stdout
    };
    let detail = json!({"stdout": stdout, "stderr": "", "interrupted": false, "isImage": false, "noOutputExpected": false});
    Outcome::of(json!(content), detail)
}

fn question_outcome(input: &Value) -> Outcome {
    let answers: Vec<String> = input["answers"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(question, answer)| format!("{}={answer}", json!(question)))
        .collect();
    if answers.is_empty() {
        return Outcome::of(
            json!("The user did not answer the questions."),
            input.clone(),
        );
    }
    let text = format!(
        "Your questions have been answered: {}. You can now continue with these answers in mind.",
        answers.join(", ")
    );
    Outcome::of(json!(text), input.clone())
}
