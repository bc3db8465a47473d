//! What the scripted model says: replies, failures, and where a stream holds or breaks.

use serde_json::{Value, json};

/// One answer to one request.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Answer {
    /// The model replies.
    Reply(Reply),
    /// The API refuses with an HTTP status.
    Failure(Failure),
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        Self::Reply(reply)
    }
}

impl From<Failure> for Answer {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// One message of the model, and how its stream runs. Created by test code.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Reply {
    /// The content blocks, in order.
    pub blocks: Vec<Block>,
    /// Why the model stopped; `None` is `tool_use` when a block is a tool use, else `end_turn`.
    pub stop_reason: Option<StopReason>,
    /// The token counts that the reply reports.
    pub usage: TokenUsage,
    /// The model that the reply names; `None` is the requested one.
    pub model: Option<String>,
    /// Into how many deltas a block's text or input is split; 0 and 1 both mean one.
    pub deltas_per_block: usize,
    /// Where the answer waits for a gate, and for which.
    pub holds: Vec<(HoldPoint, String)>,
    /// How the stream breaks; `None` is never.
    pub fault: Option<StreamFault>,
}

impl Reply {
    /// Makes a reply of several blocks.
    #[must_use]
    pub fn blocks(blocks: impl IntoIterator<Item = Block>) -> Self {
        Self {
            blocks: blocks.into_iter().collect(),
            stop_reason: None,
            usage: TokenUsage::default(),
            model: None,
            deltas_per_block: 2,
            holds: Vec::new(),
            fault: None,
        }
    }

    /// Makes a reply of one text block.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::blocks([Block::text(text)])
    }

    /// Makes a reply of one tool use, whose id the server chooses.
    #[must_use]
    pub fn tool_use(name: impl Into<String>, input: Value) -> Self {
        Self::blocks([Block::tool_use(name, input)])
    }

    /// Adds a block.
    #[must_use]
    pub fn and(mut self, block: Block) -> Self {
        self.blocks.push(block);
        self
    }

    /// Sets why the model stopped.
    #[must_use]
    pub fn stop_reason(mut self, stop_reason: StopReason) -> Self {
        self.stop_reason = Some(stop_reason);
        self
    }

    /// Sets the token counts.
    #[must_use]
    pub fn usage(mut self, usage: TokenUsage) -> Self {
        self.usage = usage;
        self
    }

    /// Sets the model that the reply names.
    #[must_use]
    pub fn model(mut self, model: impl Into<String>) -> Self {
        self.model = Some(model.into());
        self
    }

    /// Sets into how many deltas a block is split.
    #[must_use]
    pub fn deltas_per_block(mut self, deltas: usize) -> Self {
        self.deltas_per_block = deltas;
        self
    }

    /// Makes the answer wait at `point` until the gate of that name is open.
    #[must_use]
    pub fn hold(mut self, point: HoldPoint, gate: impl Into<String>) -> Self {
        self.holds.push((point, gate.into()));
        self
    }

    /// Breaks the stream.
    #[must_use]
    pub fn fault(mut self, fault: StreamFault) -> Self {
        self.fault = Some(fault);
        self
    }

    pub(super) fn effective_stop_reason(&self) -> StopReason {
        self.stop_reason.unwrap_or_else(|| {
            let calls = self
                .blocks
                .iter()
                .any(|block| matches!(block, Block::ToolUse { .. }));
            if calls {
                StopReason::ToolUse
            } else {
                StopReason::EndTurn
            }
        })
    }

    /// Returns the first block index that a hold or the fault names although there is no such
    /// block: it would never happen, and a test that relies on it could not fail.
    pub(super) fn missing_block(&self) -> Option<usize> {
        let holds = self.holds.iter().filter_map(|(point, _)| match point {
            HoldPoint::InBlock(index) | HoldPoint::AfterBlock(index) => Some(*index),
            HoldPoint::BeforeAnswer
            | HoldPoint::AfterMessageStart
            | HoldPoint::BeforeMessageDelta => None,
        });
        let fault = self.fault.as_ref().and_then(|fault| match fault {
            StreamFault::CutInBlock(index)
            | StreamFault::CutAfterBlock(index)
            | StreamFault::MalformedEventInBlock(index) => Some(*index),
            StreamFault::NoMessageStop | StreamFault::ErrorEvent { .. } => None,
        });
        holds.chain(fault).find(|index| *index >= self.blocks.len())
    }
}

/// One content block of a reply.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Block {
    /// Text for the user.
    Text {
        /// The text.
        text: String,
    },
    /// Thinking, with the signature that must come back unchanged.
    Thinking {
        /// The thinking.
        thinking: String,
        /// The signature, as base64.
        signature: String,
    },
    /// Thinking that only the API can read.
    RedactedThinking {
        /// The opaque data.
        data: String,
    },
    /// A call.
    ToolUse {
        /// The tool use id; `None` lets the server choose the next one of its own.
        id: Option<String>,
        /// The tool's name, as the request lists it.
        name: String,
        /// The arguments.
        input: Value,
    },
}

impl Block {
    /// Makes a text block.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }

    /// Makes a signed thinking block.
    #[must_use]
    pub fn thinking(thinking: impl Into<String>, signature: impl Into<String>) -> Self {
        Self::Thinking {
            thinking: thinking.into(),
            signature: signature.into(),
        }
    }

    /// Makes a tool use whose id the server chooses.
    #[must_use]
    pub fn tool_use(name: impl Into<String>, input: Value) -> Self {
        Self::ToolUse {
            id: None,
            name: name.into(),
            input,
        }
    }

    /// Makes a tool use under a given id.
    #[must_use]
    pub fn tool_use_as(id: impl Into<String>, name: impl Into<String>, input: Value) -> Self {
        Self::ToolUse {
            id: Some(id.into()),
            name: name.into(),
            input,
        }
    }
}

/// Why the model stopped, as the Messages API spells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// `end_turn`
    EndTurn,
    /// `tool_use`
    ToolUse,
    /// `max_tokens`
    MaxTokens,
    /// `stop_sequence`
    StopSequence,
    /// `pause_turn`
    PauseTurn,
    /// `refusal`
    Refusal,
    /// `model_context_window_exceeded`
    ModelContextWindowExceeded,
}

impl StopReason {
    /// Returns the wire string.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EndTurn => "end_turn",
            Self::ToolUse => "tool_use",
            Self::MaxTokens => "max_tokens",
            Self::StopSequence => "stop_sequence",
            Self::PauseTurn => "pause_turn",
            Self::Refusal => "refusal",
            Self::ModelContextWindowExceeded => "model_context_window_exceeded",
        }
    }
}

/// The token counts of one reply. The default is small and has no zero, so that a count that gets
/// lost on its way is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "test code writes it out in full")]
pub struct TokenUsage {
    /// Uncached input tokens.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Input tokens written to the cache.
    pub cache_creation_input_tokens: u64,
    /// Input tokens read from the cache.
    pub cache_read_input_tokens: u64,
}

impl Default for TokenUsage {
    fn default() -> Self {
        Self {
            input_tokens: 11,
            output_tokens: 7,
            cache_creation_input_tokens: 3,
            cache_read_input_tokens: 2,
        }
    }
}

impl TokenUsage {
    pub(super) fn to_json(self, output_tokens: u64) -> Value {
        json!({
            "input_tokens": self.input_tokens,
            "output_tokens": output_tokens,
            "cache_creation_input_tokens": self.cache_creation_input_tokens,
            "cache_read_input_tokens": self.cache_read_input_tokens,
        })
    }
}

/// Where an answer waits for a gate. Block indexes count from 0.
///
/// An answer that is not streamed waits at all its gates before it says anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldPoint {
    /// Before the response head: the client has nothing at all.
    BeforeAnswer,
    /// After `message_start`.
    AfterMessageStart,
    /// After the first delta of the block.
    InBlock(usize),
    /// After the `content_block_stop` of the block.
    AfterBlock(usize),
    /// After the last block, before `message_delta`.
    BeforeMessageDelta,
}

/// How a stream breaks. Block indexes count from 0.
///
/// An answer that is not streamed breaks in the middle of its JSON, whatever the fault.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamFault {
    /// The connection is cut in the middle of the block, before its last delta.
    CutInBlock(usize),
    /// The connection is cut after the `content_block_stop` of the block.
    CutAfterBlock(usize),
    /// The body ends in order, but without `message_delta` and `message_stop`.
    NoMessageStop,
    /// An event whose data is not JSON comes before the `content_block_stop` of the block; the
    /// rest of the stream is whole.
    MalformedEventInBlock(usize),
    /// An `error` event comes after `message_start` and ends the stream.
    ErrorEvent {
        /// The error's type, such as `overloaded_error`.
        kind: String,
    },
}

/// A refusal of the API. Created by test code.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// The HTTP status.
    pub status: u16,
    /// The error's type, such as `overloaded_error`.
    pub kind: String,
    /// The error's message.
    pub message: String,
    /// The `retry-after` header, in seconds; `None` leaves it out.
    pub retry_after_seconds: Option<u32>,
}

impl Failure {
    /// Makes a failure without a `retry-after` header.
    #[must_use]
    pub fn new(status: u16, kind: impl Into<String>) -> Self {
        Self {
            status,
            kind: kind.into(),
            message: "scripted failure".to_owned(),
            retry_after_seconds: None,
        }
    }

    /// Sets the message.
    #[must_use]
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }

    /// Asks the client to wait before it tries again.
    #[must_use]
    pub fn retry_after_seconds(mut self, seconds: u32) -> Self {
        self.retry_after_seconds = Some(seconds);
        self
    }
}
