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

/// The kinds of blocks whose fields are read.
const KNOWN_BLOCKS: [&str; 3] = ["text", "tool_use", "tool_result"];

/// Reads the content of a message: a text alone is one block. A block of a kind that is not known
/// here has its kind at least, whatever its other fields look like.
///
/// # Errors
/// The content is neither a text nor a list of blocks, or a known block does not fit.
pub fn content_blocks(content: &RawValue) -> Result<Vec<ContentBlock>, serde_json::Error> {
    if content.get().starts_with('[') {
        let blocks: Vec<&RawValue> = serde_json::from_str(content.get())?;
        blocks.into_iter().map(content_block).collect()
    } else {
        Ok(vec![ContentBlock {
            kind: "text".to_owned(),
            text: Some(serde_json::from_str(content.get())?),
            ..ContentBlock::default()
        }])
    }
}

fn content_block(block: &RawValue) -> Result<ContentBlock, serde_json::Error> {
    // A list would pass for a block: serde reads the fields of a struct from either.
    if !block.get().starts_with('{') {
        return Err(de::Error::custom("a block is no object"));
    }
    serde_json::from_str(block.get()).or_else(|error| {
        let head: BlockHead = serde_json::from_str(block.get())?;
        if KNOWN_BLOCKS.contains(&head.kind.0.as_str()) {
            return Err(error);
        }
        Ok(ContentBlock {
            kind: head.kind.0,
            ..ContentBlock::default()
        })
    })
}

#[derive(Deserialize)]
struct BlockHead {
    #[serde(rename = "type")]
    kind: Text,
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
