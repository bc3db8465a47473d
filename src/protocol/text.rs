//! Texts and content blocks as they stand in messages.

use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::ContentBlock;

/// A text for people. The CLI cuts texts by UTF-16 units, so it may write half of a surrogate pair,
/// which is no text in Rust: it is read as the replacement character.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
#[cfg_attr(
    feature = "unstable",
    expect(
        clippy::exhaustive_structs,
        reason = "a text, with another way to read it"
    )
)]
pub struct Text(pub String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Lossy;
        impl Visitor<'_> for Lossy {
            type Value = Text;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text, E> {
                Ok(Text(text.to_owned()))
            }
            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Text, E> {
                Ok(Text(String::from_utf8_lossy(bytes).into_owned()))
            }
        }
        // As bytes, because serde_json refuses half of a pair in a string, not in bytes.
        deserializer.deserialize_bytes(Lossy)
    }
}

/// Reads the content of a message: a text alone is one block.
///
/// # Errors
/// The content is neither a text nor a list of blocks.
pub fn content_blocks(content: &RawValue) -> Result<Vec<ContentBlock>, serde_json::Error> {
    if content.get().starts_with('[') {
        serde_json::from_str(content.get())
    } else {
        Ok(vec![ContentBlock {
            kind: "text".to_owned(),
            text: Some(serde_json::from_str(content.get())?),
            ..ContentBlock::default()
        }])
    }
}

/// Returns the texts of a tool result's content, one after the other; what is no text becomes a
/// placeholder (L17).
#[must_use]
pub fn flattened_text(content: Option<&RawValue>) -> String {
    let blocks = match content.map(content_blocks) {
        None => return String::new(),
        Some(Err(_)) => return "[content omitted]".to_owned(),
        Some(Ok(blocks)) => blocks,
    };
    let texts: Vec<String> = blocks
        .into_iter()
        .map(|block| match block.text {
            Some(text) => text.0,
            None => format!("[{} content omitted]", block.kind),
        })
        .collect();
    texts.join("\n")
}
