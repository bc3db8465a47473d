//! What a transcript says, without ids, times and what the CLI notes for itself.

use std::collections::BTreeMap;

use abide::record::TranscriptEntry;
use abide::testing::script::CONTINUE_TEXT;
use serde_json::Value;

/// Where the results of calls begin among the lines that [`said`] returns.
pub(crate) const RESULT: &str = "result of ";

/// Reads what was said, one line for each block; the results of one reply in the order of the
/// alphabet, because an interrupted call gets its result last.
///
/// # Errors
/// A call that has no result, or two.
pub(crate) fn said(entries: &[TranscriptEntry]) -> Result<Vec<String>, String> {
    let mut lines = Vec::new();
    let mut calls: BTreeMap<String, (String, usize)> = BTreeMap::new();
    for entry in entries {
        let entry: Value = serde_json::from_str(entry.as_str()).expect("an entry is JSON");
        let Some(role) = (entry["type"].as_str()).filter(|it| ["user", "assistant"].contains(it))
        else {
            continue;
        };
        let blocks = match &entry["message"]["content"] {
            Value::String(text) => vec![serde_json::json!({"type": "text", "text": text})],
            Value::Array(blocks) => blocks.clone(),
            other => return Err(format!("a message holds {other}")),
        };
        for block in blocks {
            match block["type"].as_str() {
                Some("text") if block["text"] == CONTINUE_TEXT => {}
                Some("text") => lines.push(format!("{role}: {}", block["text"])),
                Some("tool_use") => {
                    let call = format!("{} {}", block["name"], block["input"]);
                    lines.push(format!("call {call}"));
                    calls.insert(block["id"].to_string(), (call, 0));
                }
                Some("tool_result") => {
                    let id = block["tool_use_id"].to_string();
                    let Some((call, results)) = calls.get_mut(&id) else {
                        return Err(format!("a result belongs to no call: {block}"));
                    };
                    *results += 1;
                    lines.push(format!("{RESULT}{call}: {}", text_of(&block["content"])));
                }
                Some(_) | None => return Err(format!("a block is {block}")),
            }
        }
    }
    if let Some((call, results)) = calls.into_values().find(|(_, results)| *results != 1) {
        return Err(format!("call {call} has {results} results"));
    }
    Ok(with_sorted_runs(lines, |it| it.starts_with(RESULT)))
}

/// Sorts each run of neighbours of this kind.
pub(crate) fn with_sorted_runs<T: Ord>(mut all: Vec<T>, is_it: impl Fn(&T) -> bool) -> Vec<T> {
    let mut start = 0;
    while start < all.len() {
        let run = all[start..].iter().take_while(|it| is_it(it)).count();
        all[start..start + run].sort();
        start += run + 1;
    }
    all
}

fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts = blocks.iter().filter_map(|it| it["text"].as_str());
            texts.collect::<Vec<_>>().join("\n")
        }
        other => other.to_string(),
    }
}
