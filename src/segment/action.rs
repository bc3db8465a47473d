//! What a segment wants from its driver, and what the driver tells it.

use serde_json::value::RawValue;

use crate::event::LiveTextKind;
use crate::ids::{ClaudeSessionId, ToolCallId};
use crate::record::ToolOutcome;
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
    /// Ask the application's hooks about a call, and then its approval rule for the tool, if it has
    /// one; their answer comes back through
    /// [`Segment::handle_hooks_answer`](super::Segment::handle_hooks_answer).
    AskHooks(HookQuestion),
    /// The CLI no longer waits for the hooks of this call.
    CancelHooks {
        /// Which call.
        tool_call_id: ToolCallId,
    },
    /// Tell the session, after everything told before. The answer to a
    /// [`SegmentEvent::CallStarting`] comes back through
    /// [`Segment::handle_call_granted`](super::Segment::handle_call_granted),
    /// [`Segment::handle_call_final`](super::Segment::handle_call_final) or
    /// [`Segment::handle_call_not_yet`](super::Segment::handle_call_not_yet); that to a
    /// [`SegmentEvent::CallStanding`] through
    /// [`Segment::handle_call_standing`](super::Segment::handle_call_standing); a commit of a
    /// [`SegmentEvent::Checkpoint`] through
    /// [`Segment::handle_checkpoint_committed`](super::Segment::handle_checkpoint_committed); and the
    /// answer to a [`SegmentEvent::ParkRequested`] through
    /// [`Segment::handle_park_answer`](super::Segment::handle_park_answer).
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

/// A call that the application's hooks are asked about, once, before anything is decided (G4).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HookQuestion {
    /// Which call.
    pub tool_call_id: ToolCallId,
    /// The policy name of its tool.
    pub tool_name: String,
    /// The sub-agent that makes the call, if it is one.
    pub sub_agent: Option<CallingSubAgent>,
    /// The input as the model wrote it: a JSON object, verbatim.
    pub input: Box<RawValue>,
}

/// A sub-agent of the main conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallingSubAgent {
    /// The CLI's name for it.
    pub id: String,
    /// Which kind it is, if the CLI says so.
    pub agent_type: Option<String>,
}

/// What all hooks of the application together say about a call, and its approval rule.
#[derive(Debug, Clone)]
#[cfg_attr(
    feature = "unstable",
    expect(
        clippy::exhaustive_enums,
        reason = "the driver builds it; a call goes on or it does not"
    )
)]
pub enum HooksAnswer {
    /// The gate decides, about the changed input if there is one.
    Continue {
        /// The final input, if a hook changed it: a JSON object.
        updated_input: Option<Box<RawValue>>,
        /// Whether a person has to decide about the final input, by the application's rule for the
        /// tool. Without a rule it is `None`; where a rule should have said it, `None` asks a person.
        needs_person: Option<bool>,
    },
    /// The call does not run.
    Deny {
        /// What the model reads.
        reason: String,
    },
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
    /// The Claude session and the last entry that the CLI wrote into its transcript, as far as they
    /// are known.
    pub stands_at: Option<(ClaudeSessionId, String)>,
}

/// What the session says about a recorded call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(
    feature = "unstable",
    expect(clippy::exhaustive_enums, reason = "the driver builds it")
)]
pub enum Standing {
    /// It is not decided, waits for an earlier one or runs.
    Open,
    /// It may be started inside the segment.
    Permitted {
        /// What it has to run with in the place of the input that it was recorded with.
        changed_arguments: Option<String>,
    },
    /// It is over.
    Final(ToolOutcome),
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
