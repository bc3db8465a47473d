//! Trains the dictionaries: deterministic, from fixtures alone.

use std::path::PathBuf;

use serde_json::Value;

use super::ENTRIES_1;
use crate::ids::{ClaudeSessionId, Timestamp, ToolCallId, TurnId};
use crate::protocol::{CliFrame, decode_line};
use crate::record::{FrameworkItem, MessageRole, StoredMessage, TranscriptEntry, encode_chunk};

/// Segments of CLI 2.1.316 whose tools are Bash, Read, `lookup` and `create_refund`.
const SOURCES: [&str; 9] = [
    "segment/2.1.316/thinking.jsonl",
    "segment/2.1.316/structured_output.jsonl",
    "segment/2.1.316/subagent_foreground.jsonl",
    "segment/2.1.316/bash_approve.jsonl",
    "segment/2.1.316/two_calls_defer_deny.jsonl",
    "segment/2.1.316/error_529.jsonl",
    "segment/2.1.316/resume_allow_text.jsonl",
    "segment/2.1.316/plain.jsonl",
    "segment/2.1.316/inline_read.jsonl",
];

/// A longer string is somebody's text, not the CLI's form.
const STRING_BYTES_MAX: usize = 100;

/// Longer entries are lists of tools.
const ENTRY_BYTES_MAX: usize = 1_500;

/// G12: what was packed with the dictionary needs it as it was.
#[test]
fn the_dictionary_of_entries_is_what_its_training_makes() {
    let trained = train();
    if ENTRIES_1 != trained.as_bytes() {
        let made = std::env::temp_dir().join("entries.txt");
        std::fs::write(&made, trained).unwrap();
        panic!(
            "a dictionary is never changed: it gets a successor, such as {}",
            made.display()
        );
    }
}

fn fixture(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(name);
    std::fs::read_to_string(path).unwrap()
}

/// One entry of each form, the most frequent form last, and the messages around them.
fn train() -> String {
    let mut forms: Vec<(String, TranscriptEntry, usize)> = Vec::new();
    for source in SOURCES {
        for line in fixture(source).lines() {
            let Ok(CliFrame::Mirror(frame)) = decode_line(line.as_bytes()) else {
                continue;
            };
            if frame.file_path.contains("/subagents/") {
                continue;
            }
            for entry in frame.entries {
                let form = form(&entry);
                match forms.iter_mut().find(|it| it.0 == form) {
                    Some(known) => known.2 += 1,
                    None => forms.push((form, entry, 1)),
                }
            }
        }
    }
    forms.sort_by_key(|it| it.2);
    let session = ClaudeSessionId::new("00000000-0000-4000-8000-000000000000").unwrap();
    let entries: Vec<_> = forms
        .iter()
        .map(|it| TranscriptEntry::from_text(without_texts(it.1.as_str())).unwrap())
        .filter(|it| it.as_str().len() <= ENTRY_BYTES_MAX)
        .filter(|it| !DROPPED.contains(&&*it.head().unwrap().kind))
        .collect();
    let item = |entries| FrameworkItem::claude_transcript(session.clone(), entries).unwrap();
    let message = |role, item| {
        StoredMessage::new(
            1,
            TurnId::new(1),
            role,
            String::new(),
            Timestamp(1_796_000_000_000),
            item,
        )
    };
    let mut result = message(MessageRole::Tool, item(Vec::new()));
    result.tool_call_id = Some(ToolCallId::new("toolu_01").unwrap());
    let messages = [
        message(
            MessageRole::Note,
            FrameworkItem::turn_failure_note("").unwrap(),
        ),
        result,
        message(MessageRole::User, FrameworkItem::user_prompt("").unwrap()),
        message(MessageRole::Assistant, item(entries)),
    ];
    String::from_utf8(encode_chunk(&messages).unwrap()).unwrap()
}

/// What is not stored.
const DROPPED: [&str; 2] = ["last-prompt", "cost-state"];

/// Which fields an entry has, down to the blocks of its message.
fn form(entry: &TranscriptEntry) -> String {
    let value: Value = serde_json::from_str(entry.as_str()).unwrap();
    let mut form: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
    let kinds = [&value, &value["attachment"]].map(|it| it["type"].to_string());
    form.extend(kinds);
    let blocks = value["message"]["content"].as_array().into_iter().flatten();
    form.extend(blocks.map(|it| it["type"].to_string()));
    form.join(" ")
}

/// Empties the long strings of JSON text.
fn without_texts(text: &str) -> String {
    let mut kept = String::new();
    let mut left = text;
    while let Some((before, string)) = left.split_once('"') {
        let mut escaped = false;
        let end = string.find(|it| {
            let is_end = it == '"' && !escaped;
            escaped = it == '\\' && !escaped;
            is_end
        });
        let (string, after) = string.split_at(end.unwrap());
        let string = if string.len() > STRING_BYTES_MAX {
            ""
        } else {
            string
        };
        kept.extend([before, "\"", string, "\""]);
        left = &after[1..];
    }
    kept + left
}
