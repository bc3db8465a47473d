//! What the live path needs of a CLI.

/// One fact that the live path rests on. Each was seen on CLI 2.1.316 and 2.1.332.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LiveFact {
    /// The transcript entry of a prompt has the uuid of the user line, whatever its blocks.
    PromptUuid,
    /// A PostToolBatch callback comes once a reply, after all its results are on the output.
    BatchEndsReply,
    /// The model is not asked again while that callback is open, and the results are mirrored.
    BatchHoldsModel,
    /// It comes too when no call ran: all were denied, unknown, or had invalid arguments.
    BatchWithoutRun,
    /// It does not come for a reply without calls.
    NoBatchWithoutCalls,
    /// A call whose name is unknown or whose arguments are invalid gets no PreToolUse callback.
    RefusedWithoutHook,
    /// A further prompt is a turn of the same process: with its own init and result, without another
    /// handshake of the tool server.
    WarmTurn,
    /// `model_usage_since_last_result` counts the turn alone.
    WarmUsage,
    /// No entry of the conversation is mirrored after the result.
    MirrorBeforeResult,
    /// Prompt and whole reply are mirrored while the first hook is unanswered.
    MirrorBeforeDecision,
    /// Lines on the output have the uuids of their entries, and come before them.
    LineUuids,
    /// Calls that write are asked about one after the other, each after the result before it.
    WritesInOrder,
    /// A user line sent while a hook is open joins the turn: after the results, in the next request.
    SteeringAtHook,
    /// So does one sent while PostToolBatch is open.
    SteeringAtBatch,
    /// A hook is given up after the `timeout` that was registered with it, in seconds.
    HookTimeout,
    /// Questions about the calls of a sub-agent name it, PostToolBatch too.
    SubAgentNamed,
    /// A stream that breaks after a complete block keeps that block: its call is asked about, runs,
    /// and is answered. `abandoned_blocks` names the first block that is gone.
    BrokenStreamKeepsBlocks,
    /// The reply that such a stream leaves, and the CLI's own words behind it, are resumed from as any
    /// other.
    BrokenReplyResumed,
    /// A stream that breaks before any block is complete is given up, and the model is asked again.
    BrokenStreamRetried,
    /// SIGTERM while a hook is open: exit 143, no result, no model call, and the mirror ends in the
    /// reply.
    EndedAtHook,
    /// SIGTERM while PostToolBatch is open: exit 143, no result, no model call, and the mirror ends
    /// in the results.
    EndedAtBatch,
    /// With the results of all calls appended, a turn goes on with one model call and no question.
    AppendedResults,
    /// Afterwards, neither the process nor a later one runs anything again.
    NothingRunsAgain,
    /// Entries rebuilt from lines of the output, in one chain, are as good as mirrored ones.
    RebuiltEntries,
    /// A made-up deferral beside appended results: that call is asked about once, and runs.
    DeferralBesideResults,
    /// After such a call PostToolBatch does not come: the model is asked at once.
    NoBatchAfterDeferral,
    /// An unanswered call behind a made-up deferral is left out of what the model reads.
    LaterCallDropped,
    /// A turn cut after its prompt goes on.
    CutAfterPrompt,
    /// A turn cut after a reply goes on, without the calls of that reply.
    CutAfterCall,
    /// Without the variable an interrupted turn waits.
    WaitsWithoutVariable,
}

impl LiveFact {
    /// Returns the section of spec/cli-protocol.md that says so; `new` when only this test does.
    #[must_use]
    pub const fn section(self) -> &'static str {
        match self {
            Self::PromptUuid => "4",
            Self::BatchEndsReply | Self::BatchHoldsModel => "17l",
            Self::WarmTurn => "10",
            Self::WarmUsage => "11",
            Self::MirrorBeforeResult => "0.8",
            Self::MirrorBeforeDecision | Self::WritesInOrder => "17b",
            Self::LineUuids | Self::RebuiltEntries => "17k",
            Self::SteeringAtHook => "17j",
            Self::RefusedWithoutHook | Self::HookTimeout => "5",
            Self::BrokenStreamRetried => "10, 11",
            Self::EndedAtHook => "17i",
            Self::AppendedResults => "17d",
            Self::NothingRunsAgain => "17g",
            Self::DeferralBesideResults => "17e",
            Self::LaterCallDropped => "17c",
            Self::CutAfterPrompt | Self::CutAfterCall | Self::WaitsWithoutVariable => "17f",
            Self::BatchWithoutRun
            | Self::NoBatchWithoutCalls
            | Self::SteeringAtBatch
            | Self::SubAgentNamed
            | Self::BrokenStreamKeepsBlocks
            | Self::BrokenReplyResumed
            | Self::EndedAtBatch
            | Self::NoBatchAfterDeferral => "new",
        }
    }

    /// Returns the fact in a few words.
    #[must_use]
    pub const fn statement(self) -> &'static str {
        match self {
            Self::PromptUuid => "a prompt's entry has the uuid of the user line",
            Self::BatchEndsReply => "PostToolBatch comes once a reply, after its results",
            Self::BatchHoldsModel => "PostToolBatch holds the next model request",
            Self::BatchWithoutRun => "PostToolBatch comes too when no call ran",
            Self::NoBatchWithoutCalls => "PostToolBatch does not come without calls",
            Self::RefusedWithoutHook => "a call that the CLI itself refuses gets no hook",
            Self::WarmTurn => "a further prompt is a turn of the same process",
            Self::WarmUsage => "usage since the last result counts one turn",
            Self::MirrorBeforeResult => "the conversation is mirrored before the result",
            Self::MirrorBeforeDecision => "prompt and reply are mirrored while a hook is open",
            Self::LineUuids => "lines carry the uuids of their entries",
            Self::WritesInOrder => "writes are asked about one after the other",
            Self::SteeringAtHook => "a message during a hook joins the turn",
            Self::SteeringAtBatch => "a message during PostToolBatch joins the turn",
            Self::HookTimeout => "the registered timeout bounds a hook",
            Self::SubAgentNamed => "questions about a sub-agent's calls name it",
            Self::BrokenStreamKeepsBlocks => "a broken stream keeps its complete blocks",
            Self::BrokenReplyResumed => "what a broken stream leaves is resumed from",
            Self::BrokenStreamRetried => "a stream broken in its first block is asked again",
            Self::EndedAtHook => "SIGTERM during a hook leaves a checkpoint",
            Self::EndedAtBatch => "SIGTERM during PostToolBatch leaves a checkpoint",
            Self::AppendedResults => "appended results: one model call, no question",
            Self::NothingRunsAgain => "nothing runs again afterwards",
            Self::RebuiltEntries => "entries rebuilt from lines are resumed from",
            Self::DeferralBesideResults => "a made-up deferral runs one call beside results",
            Self::NoBatchAfterDeferral => "PostToolBatch does not come after a resumed call",
            Self::LaterCallDropped => "an unanswered call behind a deferral is dropped",
            Self::CutAfterPrompt => "a turn cut after its prompt goes on",
            Self::CutAfterCall => "a turn cut after a reply goes on without its calls",
            Self::WaitsWithoutVariable => "an interrupted turn waits without the variable",
        }
    }
}
