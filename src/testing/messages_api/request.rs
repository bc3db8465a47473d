//! What the CLI asked: one recorded request, and how a scripted model reads it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::testing::script::{CONTINUE_TEXT, CUT_OFF_TEXT};

/// One request as it came in. Created by the server; see
/// [`ScriptedMessagesApi::requests`](super::ScriptedMessagesApi::requests).
///
/// A conversation is read by content, not by position: the CLI puts `system` messages between and
/// after the others (seen on 2.1.316 and 2.1.332), so the last message need not be the last word.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ApiRequest {
    /// What the request is for.
    pub kind: RequestKind,
    /// The HTTP method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Headers under lower-case names; the last of several with one name.
    pub headers: BTreeMap<String, String>,
    /// The JSON body; `Null` when it is empty or is not JSON.
    pub body: Value,
    /// When it came, counted from the server's start.
    pub received_after: Duration,
}

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestKind {
    /// A model call of a conversation: it offers tools, or carries the script's session marker.
    Main,
    /// Another model call: a title, a probe of the key, …
    Auxiliary,
    /// A call of `count_tokens`.
    CountTokens,
    /// A `HEAD` request, with which clients try the connection.
    Probe,
    /// Anything else.
    Unknown,
}

/// A tool use found in a request's messages.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SeenCall {
    /// The tool use id.
    pub tool_use_id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments.
    pub input: Value,
}

/// A tool result found in a request's messages.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SeenResult {
    /// The tool use id that it answers.
    pub tool_use_id: String,
    /// Its text blocks, joined by newlines; other blocks, and what the CLI puts into it of a
    /// person's message, are left out.
    pub text: String,
    /// Whether it is marked as an error.
    pub is_error: bool,
}

/// What happened since the last prompt of a request.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SeenTurn {
    /// The prompt's text.
    pub prompt: String,
    /// The model's calls since, in order.
    pub calls: Vec<SeenCall>,
    /// The results since, in order.
    pub results: Vec<SeenResult>,
    /// What a person said while the turn ran, in order.
    pub steered: Vec<String>,
}

/// Texts in user messages that the CLI writes by itself, by how they begin.
const NOT_A_PROMPT: [&str; 5] = [
    "<system-reminder>",
    CONTINUE_TEXT,
    CUT_OFF_TEXT,
    "[Request interrupted by user",
    "[Image: source:",
];

/// What the CLI writes before a message that came while the turn ran.
const STEERING: &str = "The user sent a new message while you were working:\n";

/// What the CLI writes after it.
const STEERING_END: &str = "\n\nThis is how Claude Code surfaces messages";

/// One text that the model reads, and the messages that the CLI may have put into it.
///
/// The CLI has several places for a message that came while the turn ran: a `system` message
/// (2.1.316), a text beside the tool result (2.1.332), a text inside it (cli-protocol 17j). There
/// may be several in one text.
#[derive(Debug, PartialEq)]
pub(super) struct Heard<'a> {
    pub(super) own: &'a str,
    pub(super) steered: Vec<&'a str>,
}

impl<'a> Heard<'a> {
    pub(super) fn in_text(text: &'a str) -> Self {
        let mut parts = text.split(STEERING);
        let own = parts.next().unwrap_or_default();
        let steered: Vec<&str> = parts
            .map(|rest| &rest[..rest.find(STEERING_END).unwrap_or(rest.len())])
            .collect();
        if steered.is_empty() {
            return Self { own, steered };
        }
        let own = own.trim_end();
        let own = own.strip_suffix("<system-reminder>").unwrap_or(own);
        Self {
            own: own.trim_end(),
            steered,
        }
    }
}

impl ApiRequest {
    /// Returns whether the client wants a stream.
    #[must_use]
    pub fn wants_stream(&self) -> bool {
        self.body["stream"] == Value::Bool(true)
    }

    /// Returns the model asked for.
    #[must_use]
    pub fn model(&self) -> &str {
        self.body["model"].as_str().unwrap_or_default()
    }

    /// Returns the names of the offered tools.
    #[must_use]
    pub fn tools(&self) -> Vec<&str> {
        array(&self.body["tools"])
            .iter()
            .filter_map(|tool| tool["name"].as_str())
            .collect()
    }

    /// Returns the system prompt's texts.
    #[must_use]
    pub fn system_texts(&self) -> Vec<&str> {
        texts(&self.body["system"])
    }

    /// Returns the texts of the last message of role `user`, the CLI's own ones included.
    #[must_use]
    pub fn last_user_texts(&self) -> Vec<&str> {
        self.messages("user")
            .last()
            .map(|(_, message)| texts(&message["content"]))
            .unwrap_or_default()
    }

    /// Returns the prompts, oldest first: of each user message the last text that the CLI did not
    /// write by itself.
    #[must_use]
    pub fn prompts(&self) -> Vec<&str> {
        self.prompts_at().map(|(_, text)| text).collect()
    }

    /// Returns every tool result of the request, oldest first.
    #[must_use]
    pub fn tool_results(&self) -> Vec<SeenResult> {
        self.results_from(0)
    }

    /// Returns what happened since the last prompt, or `None` without a prompt.
    #[must_use]
    pub fn turn(&self) -> Option<SeenTurn> {
        let (index, prompt) = self.prompts_at().last()?;
        let calls = self
            .messages("assistant")
            .filter(|(at, _)| *at > index)
            .flat_map(|(_, message)| array(&message["content"]))
            .filter(|block| block["type"] == "tool_use")
            .map(|block| SeenCall {
                tool_use_id: string(&block["id"]),
                name: string(&block["name"]),
                input: block["input"].clone(),
            })
            .collect();
        Some(SeenTurn {
            prompt: prompt.to_owned(),
            calls,
            // Results beside the prompt belong to the turn before.
            results: self.results_from(index + 1),
            steered: self.steered_from(index),
        })
    }

    fn messages(&self, role: &str) -> impl Iterator<Item = (usize, &Value)> {
        array(&self.body["messages"])
            .iter()
            .enumerate()
            .filter(move |(_, message)| message["role"] == role)
    }

    fn prompts_at(&self) -> impl Iterator<Item = (usize, &str)> {
        self.messages("user").filter_map(|(index, message)| {
            let text = texts(&message["content"]).into_iter().rev().find(|text| {
                let text = Heard::in_text(text).own.trim_start();
                !text.is_empty() && !NOT_A_PROMPT.iter().any(|it| text.starts_with(it))
            })?;
            Some((index, text))
        })
    }

    fn results_from(&self, first: usize) -> Vec<SeenResult> {
        self.messages("user")
            .filter(|(index, _)| *index >= first)
            .flat_map(|(_, message)| array(&message["content"]))
            .filter(|block| block["type"] == "tool_result")
            .map(|block| SeenResult {
                tool_use_id: string(&block["tool_use_id"]),
                text: result_text(block),
                is_error: block["is_error"] == Value::Bool(true),
            })
            .collect()
    }

    fn steered_from(&self, first: usize) -> Vec<String> {
        array(&self.body["messages"])
            .iter()
            .skip(first)
            .filter(|message| message["role"] != "assistant")
            .flat_map(|message| {
                let content = &message["content"];
                let inside = array(content)
                    .iter()
                    .filter(|block| block["type"] == "tool_result")
                    .flat_map(|block| texts(&block["content"]));
                inside.chain(texts(content)).collect::<Vec<_>>()
            })
            .flat_map(|text| Heard::in_text(text).steered)
            .map(str::to_owned)
            .collect()
    }
}

/// The text of a `tool_result` block, without what the CLI puts into it of a person's message.
pub(super) fn result_text(block: &Value) -> String {
    texts(&block["content"])
        .into_iter()
        .map(|text| Heard::in_text(text).own)
        .filter(|own| !own.is_empty())
        .collect::<Vec<_>>()
        .join("\n")
}

pub(super) fn array(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

pub(super) fn string(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The texts of a content, which is a string or a list of blocks.
pub(super) fn texts(content: &Value) -> Vec<&str> {
    match content {
        Value::String(text) => vec![text],
        Value::Array(blocks) => blocks
            .iter()
            .filter(|block| block["type"] == "text")
            .filter_map(|block| block["text"].as_str())
            .collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
    }
}
