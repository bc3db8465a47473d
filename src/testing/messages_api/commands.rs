//! The script language: what a prompt tells the scripted model to do.
//!
//! A prompt with a line that begins with `script: ` is a script; the rest of its text is one
//! command:
//!
//! - `say <text>` answers `said: <text>`.
//! - `recall` answers `recalled: ` and every earlier prompt of the session, joined by ` | `.
//! - `call <tool> <json> && call <tool> <json> …` makes the calls in one reply, and when each has
//!   a result answers `<tool>: <result>`, or `<tool> failed: <error>`, for every result, joined by
//!   ` | `. A refused call that is told to come again (`… again by itself`, `… call it again`) is
//!   called again, alone, and the refusal is left out of the answer.
//! - a trailing `;; pause <gate>` waits at that gate before the answer.
//!
//! A tool is named in full or by what follows `mcp__<server>__`.

#[cfg(test)]
mod tests;

use serde_json::{Deserializer, Value};

use super::reply::{Block, HoldPoint, Reply};
use super::request::{ApiRequest, SeenResult, SeenTurn};

/// What begins the line that holds a script.
pub const SCRIPT_MARKER: &str = "script: ";

/// How a refusal tells the model to call once more; compared in lower case.
const CALL_AGAIN: [&str; 2] = ["again by itself", "call it again"];

/// Why a script cannot be played.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The command is none of the language.
    #[error("unknown command: {command}")]
    Unknown {
        /// What stands where a command should.
        command: String,
    },
    /// What follows `;;` is not `pause <gate>`.
    #[error("unknown trailer: {trailer}")]
    UnknownTrailer {
        /// What follows `;;`.
        trailer: String,
    },
    /// A call is not `<tool> <json object>`.
    #[error("malformed call: {call}")]
    MalformedCall {
        /// The call and what follows it.
        call: String,
    },
}

#[derive(Debug, PartialEq)]
pub(super) struct Script {
    command: Command,
    pause: Option<String>,
}

#[derive(Debug, PartialEq)]
enum Command {
    Say(String),
    Recall,
    Call(Vec<Call>),
}

#[derive(Debug, PartialEq)]
struct Call {
    tool: String,
    input: Value,
}

impl Script {
    /// Returns the script of a prompt, or `None` when it has none.
    pub(super) fn of_prompt(prompt: &str) -> Option<Result<Self, CommandError>> {
        let start = prompt
            .match_indices(SCRIPT_MARKER)
            .map(|(at, _)| at)
            .find(|at| *at == 0 || prompt[..*at].ends_with('\n'))?;
        Some(Self::parse(prompt[start + SCRIPT_MARKER.len()..].trim()))
    }

    fn parse(text: &str) -> Result<Self, CommandError> {
        let (word, rest) = split_word(text);
        match word {
            "say" => {
                let (said, pause) = match rest.rsplit_once(";; pause ") {
                    Some((said, gate)) => (said.trim_end(), Some(gate.trim().to_owned())),
                    None => (rest, None),
                };
                Ok(Self {
                    command: Command::Say(said.to_owned()),
                    pause,
                })
            }
            "recall" => Ok(Self {
                command: Command::Recall,
                pause: trailer(rest)?,
            }),
            "call" => {
                let (calls, rest) = calls(rest)?;
                Ok(Self {
                    command: Command::Call(calls),
                    pause: trailer(rest)?,
                })
            }
            _ => Err(CommandError::Unknown {
                command: text.to_owned(),
            }),
        }
    }

    /// Returns the model's next reply in the turn.
    pub(super) fn next_reply(&self, request: &ApiRequest, turn: &SeenTurn) -> Reply {
        match &self.command {
            Command::Say(text) => self.answer(format!("said: {text}")),
            Command::Recall => {
                let mut earlier = request.prompts();
                earlier.pop();
                self.answer(format!("recalled: {}", earlier.join(" | ")))
            }
            Command::Call(calls) => self.next_call(calls, request, turn),
        }
    }

    fn next_call(&self, calls: &[Call], request: &ApiRequest, turn: &SeenTurn) -> Reply {
        let tools = request.tools();
        let block =
            |call: &Call| Block::tool_use(full_name(&call.tool, &tools), call.input.clone());
        if turn.calls.is_empty() && turn.results.is_empty() {
            return Reply::blocks(calls.iter().map(block));
        }
        // Calls beyond the scripted ones are those made again.
        let again = calls.iter().find(|call| {
            let name = full_name(&call.tool, &tools);
            let made = turn
                .calls
                .iter()
                .filter(|it| it.name == name && it.input == call.input);
            let refused = made.clone().filter(|it| {
                turn.results
                    .iter()
                    .any(|result| result.tool_use_id == it.tool_use_id && calls_again(result))
            });
            let scripted = calls.iter().filter(|it| *it == *call).count();
            made.count().saturating_sub(scripted) < refused.count()
        });
        if let Some(call) = again {
            return Reply::blocks([block(call)]);
        }
        let told: Vec<String> = turn
            .results
            .iter()
            .filter(|result| !calls_again(result))
            .map(|result| told(result, turn, calls, &tools))
            .collect();
        self.answer(told.join(" | "))
    }

    fn answer(&self, text: String) -> Reply {
        let reply = Reply::text(text);
        match &self.pause {
            Some(gate) => reply.hold(HoldPoint::BeforeAnswer, gate),
            None => reply,
        }
    }
}

fn calls_again(result: &SeenResult) -> bool {
    let text = result.text.to_lowercase();
    result.is_error && CALL_AGAIN.iter().any(|it| text.contains(it))
}

/// One result as the answer tells it, under the name that the script uses.
fn told(result: &SeenResult, turn: &SeenTurn, calls: &[Call], tools: &[&str]) -> String {
    let seen = turn
        .calls
        .iter()
        .find(|it| it.tool_use_id == result.tool_use_id)
        .map_or("unknown call", |it| it.name.as_str());
    let name = calls
        .iter()
        .find(|call| full_name(&call.tool, tools) == seen)
        .map_or(seen, |call| call.tool.as_str());
    if result.is_error {
        format!("{name} failed: {}", result.text)
    } else {
        format!("{name}: {}", result.text)
    }
}

/// The offered tool that a script means: the one of that name, else the only one of that name on
/// some MCP server, else the name as it is, so that a script can call a tool that is not there.
fn full_name(tool: &str, offered: &[&str]) -> String {
    if offered.contains(&tool) {
        return tool.to_owned();
    }
    let suffix = format!("__{tool}");
    let mut matching = offered
        .iter()
        .filter(|it| it.starts_with("mcp__") && it.ends_with(&suffix));
    match (matching.next(), matching.next()) {
        (Some(only), None) => (*only).to_owned(),
        (Some(_), Some(_)) | (None, _) => tool.to_owned(),
    }
}

fn calls(mut text: &str) -> Result<(Vec<Call>, &str), CommandError> {
    let mut calls = Vec::new();
    loop {
        let malformed = || CommandError::MalformedCall {
            call: text.to_owned(),
        };
        let (tool, json) = split_word(text);
        let mut values = Deserializer::from_str(json).into_iter::<Value>();
        let Some(Ok(input @ Value::Object(_))) = values.next() else {
            return Err(malformed());
        };
        calls.push(Call {
            tool: tool.to_owned(),
            input,
        });
        let rest = json[values.byte_offset()..].trim_start();
        let Some(next) = rest.strip_prefix("&&") else {
            return Ok((calls, rest));
        };
        let next = next.trim_start();
        let Some(next) = next.strip_prefix("call ") else {
            return Err(malformed());
        };
        text = next.trim_start();
    }
}

fn trailer(rest: &str) -> Result<Option<String>, CommandError> {
    if rest.is_empty() {
        return Ok(None);
    }
    match rest.strip_prefix(";; pause ") {
        Some(gate) if !gate.trim().is_empty() => Ok(Some(gate.trim().to_owned())),
        Some(_) | None => Err(CommandError::UnknownTrailer {
            trailer: rest.to_owned(),
        }),
    }
}

fn split_word(text: &str) -> (&str, &str) {
    match text.split_once(char::is_whitespace) {
        Some((word, rest)) => (word, rest.trim_start()),
        None => (text, ""),
    }
}
