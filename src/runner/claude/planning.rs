//! What one CLI process starts from: the segment's plan and the launch.

use super::options::ClaudeAgentOptions;
use super::warm::{StartedWith, WarmKey};
use super::{ClaudeAgentRunner, GatedCallWait};
use crate::failure::{AttemptFailure, FailureClass};
use crate::protocol::{AgentSetup, Launch, mcp_config};
use crate::record::TranscriptEntry;
use crate::runner::RunModelRequest;
use crate::segment::{
    Conversation, GatedPath, SegmentPlan, SegmentStart, materialise, prompt_uuid, resume,
};
use crate::transport::{LaunchFile, LaunchSpec, ResumedTranscript};

/// Makes the CLI go on with a turn that its transcript ends in the middle of (spec/cli-protocol.md
/// 17d, 17f).
pub(super) const RESUME_INTERRUPTED_TURN: &str = "CLAUDE_CODE_RESUME_INTERRUPTED_TURN";

/// A segment and the process for it.
pub(super) struct Planned {
    pub(super) segment: SegmentPlan,
    pub(super) launch: LaunchSpec,
    /// Where a process must stand to be used again; `None` when none may be.
    pub(super) warm: Option<WarmKey>,
}

impl ClaudeAgentRunner {
    pub(super) fn plan(
        &self,
        options: &ClaudeAgentOptions,
        conversation: Conversation,
        request: &RunModelRequest,
    ) -> Result<Planned, AttemptFailure> {
        let path = match self.gated_calls {
            GatedCallWait::Live if self.live.holds() => GatedPath::Live,
            GatedCallWait::Live | GatedCallWait::Native => GatedPath::Native,
        };
        let mut segment = self.segment_plan(options, path, &conversation, request);
        let session = conversation.claude_session.clone();
        let is_steered = is_steered(&conversation, request);
        let goes_on = conversation.unread.is_empty() || is_steered;
        let entries = match (path, goes_on) {
            (GatedPath::Live, true) => continue_turn(&mut segment, conversation, request)?,
            // The CLI takes either a text or the call that it deferred; so the call gets its result
            // as after a live segment.
            (GatedPath::Native, true) if is_steered && self.live.holds() => {
                continue_turn(&mut segment, conversation, request)?
            }
            (GatedPath::Live, false) => start_turn(&mut segment, conversation, request)?,
            (GatedPath::Native, _) => start_native(&mut segment, conversation, request)?,
        };
        let is_interrupted = matches!(segment.start, SegmentStart::Continue { .. });
        let last_entry = last_entry(&entries);
        let transcript = (session.clone()).map(|it| ResumedTranscript::new(it, entries));
        let mut launch = self.launch_spec(options, transcript);
        if is_interrupted {
            launch
                .environment
                .insert(RESUME_INTERRUPTED_TURN.to_owned(), "1".to_owned());
        }
        let started_with = StartedWith::of(&launch, &segment.setup);
        let warm = match (&segment.start, session, last_entry) {
            (SegmentStart::Turn { .. }, Some(claude_session), Some(last_entry))
                if segment.stays =>
            {
                Some(WarmKey {
                    claude_session,
                    last_entry,
                    started_with,
                })
            }
            (_, _, _) => None,
        };
        Ok(Planned {
            segment,
            launch,
            warm,
        })
    }

    fn segment_plan(
        &self,
        options: &ClaudeAgentOptions,
        path: GatedPath,
        conversation: &Conversation,
        request: &RunModelRequest,
    ) -> SegmentPlan {
        SegmentPlan {
            server_name: self.server_name.clone(),
            custom_tools: self.custom_policies.clone(),
            policies: self.policies.clone(),
            asks_hooks: !self.hooks.hooks.is_empty(),
            ruled: self.hooks.rules.keys().cloned().collect(),
            has_refusing_rules: !(options.disallowed_tools.is_empty()
                && options.setting_sources.is_empty()),
            setup: AgentSetup {
                system_prompt: options.system_prompt.clone(),
                append_system_prompt: options.append_system_prompt.clone(),
                json_schema: options.json_schema.clone(),
                agents: options.agents.clone(),
                title: options.title.clone(),
            },
            model: options.model.clone(),
            resume: conversation.claude_session.clone(),
            answered: std::collections::BTreeSet::new(),
            offered: options.tools.iter().cloned().collect(),
            path,
            is_warm: false,
            stays: path == GatedPath::Live
                && request.slot.is_some()
                && !request.context.live_window.is_zero(),
            start: SegmentStart::Turn {
                prompt: conversation.unread.clone(),
                uuid: None,
            },
        }
    }

    fn launch_spec(
        &self,
        options: &ClaudeAgentOptions,
        transcript: Option<ResumedTranscript>,
    ) -> LaunchSpec {
        let arguments = Launch {
            model: options.model.clone(),
            fallback_model: options.fallback_model.clone(),
            tools: options.tools.clone(),
            allowed_tools: options.allowed_tools.clone(),
            disallowed_tools: options.disallowed_tools.clone(),
            additional_directories: (options.additional_directories.iter())
                .map(|it| it.to_string_lossy().into_owned())
                .collect(),
            permission_mode: options.permission_mode,
            setting_sources: options.setting_sources.clone(),
            max_turns: options.max_turns,
            max_budget_usd: options.max_budget_usd,
            max_thinking_tokens: options.max_thinking_tokens,
            effort: options.effort,
            extra_arguments: options.extra_arguments.clone().into_iter().collect(),
            resume: transcript.as_ref().map(|it| it.claude_session.clone()),
        }
        .arguments();
        let mut spec = LaunchSpec::new(
            arguments,
            options.environment.for_cli(),
            options.working_directory.clone(),
        );
        spec.transcript = transcript;
        let servers = mcp_config(&self.server_name, &options.mcp_servers);
        spec.files.push(LaunchFile::new("--mcp-config", servers));
        if let Some(helper) = &options.api_key_helper {
            let settings = serde_json::json!({ "apiKeyHelper": helper.command() });
            let file = LaunchFile::new("--settings", settings.to_string());
            spec.files.push(file);
        }
        spec
    }
}

/// True when texts came into the middle of the turn.
fn is_steered(conversation: &Conversation, request: &RunModelRequest) -> bool {
    request.context.in_mid_turn && !conversation.unread.is_empty()
}

fn last_entry(entries: &[TranscriptEntry]) -> Option<String> {
    entries.iter().rev().find_map(|it| it.head().ok()?.uuid)
}

/// A turn starts: the CLI gets a prompt.
fn start_turn(
    segment: &mut SegmentPlan,
    conversation: Conversation,
    request: &RunModelRequest,
) -> Result<Vec<TranscriptEntry>, AttemptFailure> {
    if !request.calls.is_empty() {
        return Err(AttemptFailure::new(
            FailureClass::Runner,
            "a turn starts with calls that no CLI asked for",
        ));
    }
    let transcript = materialise(conversation.entries, None)?;
    segment.answered = transcript.answered;
    // The same in each attempt. Another one at another place, because the CLI passes over a prompt
    // whose id its transcript has (measured on CLI 2.1.316 and 2.1.332).
    let (session, turn) = (&request.context.session_id, request.context.turn_id);
    let last = last_entry(&transcript.entries).unwrap_or_default();
    segment.start = SegmentStart::Turn {
        prompt: conversation.unread,
        uuid: Some(prompt_uuid(session.as_str(), &turn.to_string(), &last)),
    };
    Ok(transcript.entries)
}

/// A turn goes on from its last checkpoint: the CLI gets no prompt.
fn continue_turn(
    segment: &mut SegmentPlan,
    conversation: Conversation,
    request: &RunModelRequest,
) -> Result<Vec<TranscriptEntry>, AttemptFailure> {
    let plan = resume(segment, conversation, &request.calls)?;
    segment.answered = plan.answered;
    let added = plan.entries.len() - plan.added;
    segment.start = SegmentStart::Continue {
        added: plan.entries[added..].to_vec(),
        told: plan.told,
        call: plan.call,
    };
    Ok(plan.entries)
}

/// The CLI's own way: a prompt, or the one call that it deferred.
fn start_native(
    segment: &mut SegmentPlan,
    conversation: Conversation,
    request: &RunModelRequest,
) -> Result<Vec<TranscriptEntry>, AttemptFailure> {
    let is_live = request.calls.len() > 1
        || !conversation.provisional.is_empty()
        || is_steered(&conversation, request);
    let is_between = conversation.unread.is_empty() && request.calls.is_empty();
    if is_live || is_between {
        return Err(AttemptFailure::new(
            FailureClass::CliVersion,
            "the turn waits in a way that only a CLI proven for live segments can go on from",
        ));
    }
    // Calls before the last one have their results in the transcript by now: the CLI keeps one call
    // at a time.
    let pending = request.calls.last();
    let transcript = materialise(conversation.entries, pending.map(|call| &call.tool_call_id))?;
    segment.answered = transcript.answered;
    if let Some(call) = pending {
        segment.start = SegmentStart::Resume { call: call.clone() };
    }
    Ok(transcript.entries)
}
