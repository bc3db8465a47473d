//! The scripted model: the language in which a test says what the model does.
//!
//! The last text block of the last real prompt is read after the prefix `script: `. Parts are
//! separated by ` ;; `; one of them is the command, the others modify it:
//!
//! | part | effect |
//! |---|---|
//! | `say <text>` | answers `said: <text>` |
//! | `recall` | answers with every earlier prompt of the session, joined by ` \| ` |
//! | `call <tool> <json>` | calls a tool; `&&` joins calls into one reply; the answer is `<tool>: <result>`, one line for each call |
//! | `stall <gate>` | calls `lookup`, streams text, waits at the gate, ends the text |
//! | `fail` | ends the turn with an error; after a `call` once every call has its result |
//! | `pause <gate>` | waits at the gate before the final answer |
//! | `think <text>` | puts a thinking block in front of the first reply |
//! | `tell <text>` | puts a text block in front of the first reply's calls |
//! | `hold <gate>` | waits at the gate in the stream of the first reply, behind its first call |
//! | `then <tool> <json>` | once every earlier call has its result, calls that tool in a reply of its own; may come several times |
//! | `reuse <tool> <json>` | then calls that tool under the id of the turn's first call and answers `reused <tool>: <result>` |
//!
//! A refused call whose result asks for it (`by itself`, `call it again`) is called again alone. A
//! prompt without the prefix is answered like `say`. The functions are pure, so that the fake CLI
//! and the scripted Messages API share them.

use serde_json::Value;

mod parse;

pub use parse::parse;

/// Stands in front of a script in a prompt.
pub const SCRIPT_PREFIX: &str = "script: ";

/// Opens the text by which the CLI tells the model a message that came during the turn.
pub const STEERING_PREFIX: &str =
    "<system-reminder>\nThe user sent a new message while you were working:\n";

/// What a prompt makes the model do. Created by [`parse`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Script {
    /// The main command.
    pub command: ScriptCommand,
    /// Thinking in front of the first reply.
    pub think: Option<String>,
    /// Text in front of the first reply's calls.
    pub tell: Option<String>,
    /// The gate to wait at behind the first call of the first reply.
    pub hold: Option<String>,
    /// The gate to wait at before the final answer.
    pub pause: Option<String>,
    /// True when the turn fails once every call has its result.
    pub fail_after_calls: bool,
    /// Calls after those of the command, each in a reply of its own.
    pub then: Vec<ScriptCall>,
    /// A call under the id of the turn's first call.
    pub reuse: Option<ScriptCall>,
}

/// The main command of a [`Script`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ScriptCommand {
    /// Answer `said: <text>`.
    Say(String),
    /// Answer with every earlier prompt.
    Recall,
    /// Call these tools in one reply.
    Call(Vec<ScriptCall>),
    /// Call `lookup`, then wait at this gate in the middle of the answer.
    Stall(String),
    /// End the turn with an error.
    Fail,
}

/// One call of a [`Script`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ScriptCall {
    /// The name as the script spells it, with or without the server's prefix.
    pub tool: String,
    /// The arguments.
    pub input: Value,
}

/// Why a prompt is no script.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScriptError {
    /// The part starts with a word that the language does not know.
    #[error("unknown script part {part:?}")]
    UnknownPart {
        /// The part that was met.
        part: String,
    },
    /// A call has no arguments, or they are no JSON.
    #[error("the call of {tool} needs JSON arguments")]
    Arguments {
        /// The tool that was to be called.
        tool: String,
    },
    /// There is no command.
    #[error("the script holds no command")]
    NoCommand,
}

/// One message of the conversation, as neutral as the two users of this file need it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ScriptMessage {
    /// True for the model's messages, false for the user's.
    pub is_assistant: bool,
    /// What it holds, in order.
    pub blocks: Vec<ScriptBlock>,
}

impl ScriptMessage {
    /// Makes a message of the model.
    #[must_use]
    pub fn assistant(blocks: Vec<ScriptBlock>) -> Self {
        Self {
            is_assistant: true,
            blocks,
        }
    }

    /// Makes a message of the user.
    #[must_use]
    pub fn user(blocks: Vec<ScriptBlock>) -> Self {
        Self {
            is_assistant: false,
            blocks,
        }
    }
}

/// One block of a [`ScriptMessage`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ScriptBlock {
    /// Text.
    Text(String),
    /// The model's call.
    ToolUse {
        /// The tool use id.
        id: String,
        /// The full name.
        name: String,
        /// The arguments.
        input: Value,
    },
    /// The result of a call.
    ToolResult {
        /// The tool use id.
        id: String,
        /// Its text blocks, joined by newlines.
        text: String,
        /// True for an error result.
        is_error: bool,
    },
}

/// What the model does next. Created by [`next_reply`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ModelReply {
    /// It answers, once the gate is open.
    Answer {
        /// Waited for before the first byte.
        gate: Option<String>,
        /// The blocks of the reply.
        blocks: Vec<ReplyBlock>,
    },
    /// The turn ends with an error.
    Fail,
}

/// One block of a [`ModelReply`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ReplyBlock {
    /// Thinking.
    Thinking(String),
    /// Text; with a gate, the first half comes before it and the second half after it.
    Text {
        /// The whole text.
        text: String,
        /// Waited for in the middle.
        gate: Option<String>,
    },
    /// A call.
    ToolUse {
        /// The full name, as it is offered to the model.
        name: String,
        /// The arguments.
        input: Value,
        /// The id of an earlier call to use again; a new one when absent.
        reuse: Option<String>,
        /// Waited for behind the block, before the next one or the end of the message.
        gate: Option<String>,
    },
}

/// Says what the model does next.
///
/// `tools` are the names offered to the model; a script's short name means the one that ends with
/// `__<name>`.
#[must_use]
pub fn next_reply(messages: &[ScriptMessage], tools: &[String]) -> ModelReply {
    let Some(start) = messages.iter().rposition(is_real_prompt) else {
        return say("there is no prompt".to_owned());
    };
    let texts = prompt_texts(&messages[start]);
    let script = match parse(texts.last().copied().unwrap_or_default()) {
        Ok(script) => script,
        Err(error) => return say(error.to_string()),
    };
    let turn = Turn::read(&messages[start..]);
    let mut reply = reply_to(&script, &turn, messages, start, tools);
    if let (ModelReply::Answer { blocks, .. }, true) = (&mut reply, turn.is_fresh) {
        let held = blocks.iter_mut().find_map(|it| match it {
            ReplyBlock::ToolUse { gate, .. } => Some(gate),
            ReplyBlock::Thinking(_) | ReplyBlock::Text { .. } => None,
        });
        if let Some(gate) = held {
            *gate = script.hold;
        }
        let tell = script
            .tell
            .map(|text| ReplyBlock::Text { text, gate: None });
        let think = script.think.map(ReplyBlock::Thinking);
        blocks.splice(0..0, think.into_iter().chain(tell));
    }
    reply
}

/// Returns the name under which a tool is offered to the model.
#[must_use]
pub fn resolve(tool: &str, tools: &[String]) -> String {
    if tools.iter().any(|it| it == tool) {
        return tool.to_owned();
    }
    tools
        .iter()
        .find(|it| it.starts_with("mcp__") && it.rsplit("__").next() == Some(tool))
        .map_or_else(|| tool.to_owned(), Clone::clone)
}

fn reply_to(
    script: &Script,
    turn: &Turn,
    messages: &[ScriptMessage],
    start: usize,
    tools: &[String],
) -> ModelReply {
    match &script.command {
        ScriptCommand::Say(text) => answer(script, turn, format!("said: {text}")),
        ScriptCommand::Recall => answer(script, turn, recall(messages, start)),
        ScriptCommand::Fail => ModelReply::Fail,
        ScriptCommand::Stall(gate) => match turn.calls.first() {
            None => calls(vec![call(
                resolve("lookup", tools),
                Value::Object(serde_json::Map::default()),
            )]),
            Some(it) => ModelReply::Answer {
                gate: None,
                blocks: vec![ReplyBlock::Text {
                    text: format!("lookup: {}", it.result),
                    gate: Some(gate.clone()),
                }],
            },
        },
        ScriptCommand::Call(first) => {
            let planned = [first.as_slice(), &script.then].concat();
            let names: Vec<String> = planned.iter().map(|it| resolve(&it.tool, tools)).collect();
            let outcomes = turn.match_planned(&planned, &names);
            let again = |it: usize| call(names[it].clone(), planned[it].input.clone());
            let missing: Vec<usize> = (0..first.len())
                .filter(|it| outcomes[*it].is_none())
                .collect();
            if !missing.is_empty() {
                return calls(missing.into_iter().map(again).collect());
            }
            let refused = (0..planned.len())
                .find(|it| outcomes[*it].is_some_and(|outcome| outcome.asks_for_another_call()));
            let next = (first.len()..planned.len()).find(|it| outcomes[*it].is_none());
            if let Some(it) = refused.or(next) {
                return calls(vec![again(it)]);
            }
            let reused = turn.reused();
            if let (Some(reuse), None, Some(first)) = (&script.reuse, reused, turn.calls.first()) {
                return calls(vec![ReplyBlock::ToolUse {
                    name: resolve(&reuse.tool, tools),
                    input: reuse.input.clone(),
                    reuse: Some(first.id.clone()),
                    gate: None,
                }]);
            }
            if script.fail_after_calls {
                return ModelReply::Fail;
            }
            let text = match (&script.reuse, reused) {
                (Some(reuse), Some(it)) => format!("reused {}: {}", short(&reuse.tool), it.result),
                _ => planned
                    .iter()
                    .zip(&outcomes)
                    .filter_map(|(it, outcome)| {
                        outcome.map(|outcome| format!("{}: {}", short(&it.tool), outcome.result))
                    })
                    .collect::<Vec<_>>()
                    .join("\n"),
            };
            answer(script, turn, text)
        }
    }
}

/// A turn so far: its calls and what came with them.
struct Turn {
    calls: Vec<MadeCall>,
    steered: Vec<String>,
    is_fresh: bool,
}

struct MadeCall {
    id: String,
    name: String,
    input: Value,
    result: String,
    is_error: bool,
}

impl MadeCall {
    fn asks_for_another_call(&self) -> bool {
        self.is_error
            && (self.result.contains("by itself") || self.result.contains("call it again"))
    }
}

impl Turn {
    fn read(messages: &[ScriptMessage]) -> Self {
        let mut turn = Self {
            calls: Vec::new(),
            steered: Vec::new(),
            is_fresh: true,
        };
        for block in messages.iter().flat_map(|it| &it.blocks) {
            match block {
                ScriptBlock::ToolUse { id, name, input } => {
                    turn.is_fresh = false;
                    turn.calls.push(MadeCall {
                        id: id.clone(),
                        name: name.clone(),
                        input: input.clone(),
                        result: String::new(),
                        is_error: false,
                    });
                }
                ScriptBlock::ToolResult { id, text, is_error } => {
                    // The last one: an id that is used again has its result after the first one's.
                    if let Some(it) = turn.calls.iter_mut().rfind(|it| it.id == *id) {
                        it.result.clone_from(text);
                        it.is_error = *is_error;
                    }
                }
                ScriptBlock::Text(text) => {
                    if let Some(steered) = text.strip_prefix(STEERING_PREFIX) {
                        let line = steered.lines().next().unwrap_or_default();
                        turn.steered.push(line.to_owned());
                    }
                }
            }
        }
        turn
    }

    /// Finds the latest call made for each planned one.
    fn match_planned(&self, planned: &[ScriptCall], names: &[String]) -> Vec<Option<&MadeCall>> {
        let mut found: Vec<Option<&MadeCall>> = vec![None; planned.len()];
        for made in self.calls.iter().filter(|it| !self.is_reuse(it)) {
            let is_same = |it: &usize| names[*it] == made.name && planned[*it].input == made.input;
            let slot = (0..planned.len())
                .filter(is_same)
                .find(|it| found[*it].is_none_or(MadeCall::asks_for_another_call));
            if let Some(it) = slot {
                found[it] = Some(made);
            }
        }
        found
    }

    fn is_reuse(&self, call: &MadeCall) -> bool {
        self.calls
            .iter()
            .find(|it| it.id == call.id)
            .is_some_and(|first| !std::ptr::eq(first, call))
    }

    fn reused(&self) -> Option<&MadeCall> {
        self.calls.iter().find(|it| self.is_reuse(it))
    }
}

fn recall(messages: &[ScriptMessage], start: usize) -> String {
    let mut prompts: Vec<&str> = messages[..start]
        .iter()
        .filter(|it| !it.is_assistant)
        .flat_map(|it| &it.blocks)
        .filter_map(|it| match it {
            ScriptBlock::Text(text) => match text.strip_prefix(STEERING_PREFIX) {
                Some(steered) => steered.lines().next(),
                None => is_persons_text(text).then_some(text.as_str()),
            },
            ScriptBlock::ToolUse { .. } | ScriptBlock::ToolResult { .. } => None,
        })
        .collect();
    let current = prompt_texts(&messages[start]);
    prompts.extend(&current[..current.len().saturating_sub(1)]);
    format!("recalled: {}", prompts.join(" | "))
}

fn is_real_prompt(message: &ScriptMessage) -> bool {
    !message.is_assistant && !prompt_texts(message).is_empty()
}

fn prompt_texts(message: &ScriptMessage) -> Vec<&str> {
    message
        .blocks
        .iter()
        .filter_map(|it| match it {
            ScriptBlock::Text(text) if is_persons_text(text) => Some(text.as_str()),
            ScriptBlock::Text(_) | ScriptBlock::ToolUse { .. } | ScriptBlock::ToolResult { .. } => {
                None
            }
        })
        .collect()
}

/// False for what the CLI itself puts into user messages.
fn is_persons_text(text: &str) -> bool {
    text != CONTINUE_TEXT
        && ![
            "<system-reminder>",
            "[Request interrupted",
            "[Tool call interrupted",
            "[Image: source:",
            CUT_OFF_TEXT,
        ]
        .iter()
        .any(|it| text.trim_start().starts_with(it))
}

/// What the CLI tells the model when the stream of a reply without calls broke (measured on CLI
/// 2.1.316 and 2.1.332).
pub const CUT_OFF_TEXT: &str = "Your response above was cut off mid-stream. Resume directly from where it stops \u{2014} no apology, no recap. If none of it survived, answer the request from the start.";

/// What the CLI tells the model when it goes on without a prompt (spec/cli-protocol.md 6).
pub const CONTINUE_TEXT: &str = "Continue from where you left off.";

fn short(tool: &str) -> &str {
    tool.rsplit("__").next().unwrap_or(tool)
}

fn call(name: String, input: Value) -> ReplyBlock {
    ReplyBlock::ToolUse {
        name,
        input,
        reuse: None,
        gate: None,
    }
}

fn calls(blocks: Vec<ReplyBlock>) -> ModelReply {
    ModelReply::Answer { gate: None, blocks }
}

fn answer(script: &Script, turn: &Turn, mut text: String) -> ModelReply {
    for steered in &turn.steered {
        text.push_str("\nsteered: ");
        text.push_str(steered);
    }
    ModelReply::Answer {
        gate: script.pause.clone(),
        blocks: vec![ReplyBlock::Text { text, gate: None }],
    }
}

fn say(text: String) -> ModelReply {
    ModelReply::Answer {
        gate: None,
        blocks: vec![ReplyBlock::Text { text, gate: None }],
    }
}

#[cfg(test)]
mod tests;
