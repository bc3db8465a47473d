//! What a segment wants from its driver, and what the driver tells it.

use serde_json::value::RawValue;

use crate::event::LiveTextKind;
use crate::ids::ToolCallId;
use crate::turn::{RunModelOutcome, SegmentEvent};

/// What the driver has to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum Action {
    /// Hand a message to the tool server, with what it may do about it; the reply comes back
    /// through [`Segment::handle_mcp_response`](super::Segment::handle_mcp_response).
    ServeMcp {
        /// The CLI's request.
        request_id: String,
        /// The JSON-RPC message, verbatim.
        message: Box<RawValue>,
        /// What the tool server may do.
        permit: McpPermit,
    },
    /// The CLI no longer wants the reply to this request.
    CancelMcp {
        /// The CLI's request.
        request_id: String,
    },
    /// Tell the session, after everything told before. The answer to a
    /// [`SegmentEvent::CallStarting`] comes back through
    /// [`Segment::handle_call_granted`](super::Segment::handle_call_granted) or
    /// [`Segment::handle_call_final`](super::Segment::handle_call_final).
    Deliver(SegmentEvent),
    /// Pass on live text.
    Live {
        /// What kind of text it is.
        kind: LiveTextKind,
        /// The text.
        text: String,
    },
    /// The CLI is ready; its version, unless it is too old to say it. Comes before anything that a
    /// call needs.
    CliVersion(Option<String>),
    /// Close the CLI's input: its turn is over.
    CloseInput,
}

/// What the tool server may do about one message (L20, I23).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum McpPermit {
    /// It is no call: handshake, listing, notification.
    Protocol,
    /// Run the handler of this call, once.
    Run {
        /// Which call.
        tool_call_id: ToolCallId,
        /// The tool's own name.
        tool_name: String,
        /// Its input, verbatim.
        arguments: String,
    },
    /// Answer from the record; nothing runs.
    Replay {
        /// What the model reads.
        text: String,
        /// True when it is an error.
        is_error: bool,
    },
    /// Refuse the call.
    Refuse,
}

/// How a segment ended well. Created by [`Segment::finish`](super::Segment::finish).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentEnd {
    /// What the session gets.
    pub outcome: RunModelOutcome,
}

/// How the CLI process ended, as the driver saw it.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(
    feature = "unstable",
    expect(
        clippy::exhaustive_structs,
        reason = "the driver writes it as a literal"
    )
)]
pub struct ProcessEnd<'a> {
    /// How it ended, in a few words.
    pub exit: &'a str,
    /// The last bytes that it wrote to stderr.
    pub stderr_tail: &'a str,
}
