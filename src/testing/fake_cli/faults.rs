//! What a test may order the fake CLI to do wrong.

use serde::Deserialize;

/// One fault. In the program, `FAKE_CLAUDE_FAULTS` holds a JSON list of them:
/// `[{"die_after_sent":12},"repeat_hook"]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fault {
    /// Ends like SIGKILL once this many lines were sent; nothing is flushed.
    DieAfterSent(u64),
    /// Ends like SIGKILL once this many lines were received.
    DieAfterReceived(u64),
    /// Exits with a code once that many lines were sent.
    ExitAfterSent {
        /// The number of lines.
        lines: u64,
        /// The exit code.
        code: i32,
    },
    /// Sends nothing more once this many lines were sent, and stays.
    StallAfterSent(u64),
    /// Asks the PreToolUse callback again, under the same tool use id, after each answer.
    RepeatHook,
    /// Sends each tools/call again, under the same tool use id, after its answer.
    RepeatCall,
    /// Puts frames of unknown types and subtypes between the others.
    UnknownFrames,
    /// Treats `defer` as no decision, as the real CLI does after its non-streaming fallback
    /// (spec/cli-protocol.md 0.3).
    IgnoreDeferral,
    /// Names another id in `deferred_tool_use`.
    WrongDeferredId,
    /// Ends each turn with this error subtype instead of success.
    ResultError(String),
    /// Sends tools/call with this tool name instead of the permitted one.
    CallAnotherTool(String),
    /// Sends tools/call with these arguments instead of the permitted ones, as JSON text.
    CallOtherInput(String),
    /// Never asks PreToolUse; the permission flow decides.
    SkipHooks,
    /// Never asks PreToolUse for a resumed call (spec/cli-protocol.md 0.2).
    SkipHooksOnResume,
    /// Never asks PostToolBatch.
    NoBatchHook,
    /// Runs each call without asking anybody.
    RunWithoutAsking,
    /// Answers the n-th model call of the process, counted from 1, with this HTTP status.
    ApiError {
        /// 400, 401, 429, 529, …
        status: u16,
        /// Which model call.
        at_model_call: u64,
        /// True when a retry succeeds.
        recovers: bool,
    },
    /// Breaks the stream of the n-th model call of the process, counted from 1, once this many of
    /// its blocks are complete; the blocks stay, and so do the calls among them.
    BreakStream {
        /// Which model call.
        at_model_call: u64,
        /// How many blocks; the reply has at least as many.
        after_blocks: usize,
    },
    /// Sends no transcript_mirror frame.
    NoMirror,
}

/// How far the mirror lags behind stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MirrorLag {
    /// A frame leaves when the CLI waits for something, which is what 100 ms come to.
    #[default]
    Quiet,
    /// As [`MirrorLag::Quiet`], and then each frame waits until this many further lines were sent.
    Lines(u64),
    /// Frames leave before the result only.
    UntilResult,
}
