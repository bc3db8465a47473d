//! Compares a run with the undisturbed one.

use std::collections::BTreeMap;

use abide::event::EventKind;
use abide::ids::InterruptId;
use abide::policy::ToolEffect;
use abide::record::{
    CallStatus, MessageRole, NOT_RUN_PREFIX, OUTCOME_UNKNOWN_TEXT, SkipReason, ToolOutcome,
};
use abide::session::CALL_STARTS_MAX;
use abide::store::SessionStatus;

use super::case::{Fate, GatedCall, Outcome};
use super::transcript::{RESULT, with_sorted_runs};

/// Returns everything in which a run breaks a promise, or differs from the undisturbed one without
/// a reason.
pub(crate) fn differences(undisturbed: &Outcome, run: &Outcome) -> Vec<String> {
    let mut found = run.problems.clone();
    check_calls(undisturbed, run, &mut found);
    check_conversation(undisturbed, run, &mut found);
    check_effects(undisturbed, run, &mut found);
    check_events(undisturbed, run, &mut found);
    check_rest(undisturbed, run, &mut found);
    found
}

/// G1, G3: each call ends once, as undisturbed, or unknown where its start had no end.
fn check_calls(undisturbed: &Outcome, run: &Outcome, found: &mut Vec<String>) {
    if undisturbed.calls.len() != run.calls.len() {
        let (expected, is) = (undisturbed.calls.len(), run.calls.len());
        found.push(format!("{is} gated calls instead of {expected}"));
    }
    for (plain, call) in undisturbed.calls.iter().zip(&run.calls) {
        let (id, record) = (&call.id, &call.record);
        let asked = |it: &GatedCall| (it.record.tool_name.clone(), it.arguments.clone());
        if asked(plain) != asked(call) {
            found.push(format!("{id} asks for {:?}", asked(call)));
        }
        let expected = match run.fates.get(&record.tool_call_id) {
            Some(Fate::Unknown) => Some(ToolOutcome::OutcomeUnknown),
            Some(Fate::NotRun) => Some(not_run()),
            Some(Fate::Skipped) => Some(SKIPPED),
            Some(Fate::Told) | None => plain.outcome.clone(),
        };
        if call.outcome != expected {
            found.push(format!(
                "{id} ended in {:?} instead of {expected:?}",
                call.outcome
            ));
        }
        if call.outcome.as_ref().map(ToolOutcome::status) != Some(record.status) {
            found.push(format!("{id} has the status {:?}", record.status));
        }
        let starts_max = match record.policy.effect {
            ToolEffect::Read | ToolEffect::IdempotentWrite => CALL_STARTS_MAX,
            ToolEffect::NonIdempotentWrite | ToolEffect::Unclassified => 1,
        };
        if record.starts > starts_max {
            found.push(format!("{id} was started {} times", record.starts));
        }
    }
}

/// What is said is the same, but for the results that the crash changed; so is what the next CLI is
/// given.
fn check_conversation(undisturbed: &Outcome, run: &Outcome, found: &mut Vec<String>) {
    let mut expected = undisturbed.conversation.clone();
    let mut transcript = undisturbed.transcript.clone();
    for (plain, call) in undisturbed.calls.iter().zip(&run.calls) {
        let Some(fate) = run.fates.get(&call.record.tool_call_id) else {
            continue;
        };
        let said = model_text(plain);
        let instead = match fate {
            Fate::Unknown => OUTCOME_UNKNOWN_TEXT.to_owned(),
            Fate::NotRun => not_run().model_text(),
            Fate::Skipped => SKIPPED.model_text(),
            Fate::Told => format!(
                "This call already ran, and its result was recorded. It was not run again, and it must not be repeated. The recorded result: {said}"
            ),
        };
        for (role, text) in &mut expected {
            if matches!(role, MessageRole::Assistant | MessageRole::Tool) {
                *text = text.replace(&said, &instead);
            }
        }
        let answers = |it: &&mut String| it.starts_with(RESULT) || it.starts_with("assistant: ");
        for line in transcript.iter_mut().filter(answers) {
            *line = line.replace(&said, &instead);
        }
    }
    // An interrupted call of the CLI gets its result last.
    let sorted = |all: &[(MessageRole, String)]| {
        let texts = all
            .iter()
            .map(|(role, text)| (format!("{role:?}"), text.clone()));
        with_sorted_runs(texts.collect(), |(role, _)| role == "Tool")
    };
    let (is, expected) = (sorted(&run.conversation), sorted(&expected));
    if is != expected {
        found.push(format!(
            "the conversation is {is:?} instead of {expected:?}"
        ));
    }
    let transcript = with_sorted_runs(transcript, |it| it.starts_with(RESULT));
    if run.transcript != transcript {
        let is = &run.transcript;
        found.push(format!(
            "the transcript is {is:?} instead of {transcript:?}"
        ));
    }
}

/// How a call ends that comes behind a write that did not succeed.
const SKIPPED: ToolOutcome = ToolOutcome::Skipped {
    reason: SkipReason::EarlierWrite,
};

/// How a call ends that the CLI gave up while it waited for its start mark.
pub(crate) fn not_run() -> ToolOutcome {
    ToolOutcome::Failed {
        error: format!("{NOT_RUN_PREFIX}: the CLI gave the call up before it started"),
    }
}

fn model_text(call: &GatedCall) -> String {
    let outcome = call.outcome.as_ref();
    outcome.map(ToolOutcome::model_text).unwrap_or_default()
}

/// G1, G2: the world was changed as often as the records say, under one key for each call.
fn check_effects(undisturbed: &Outcome, run: &Outcome, found: &mut Vec<String>) {
    let mut others = run.effects.clone();
    let mut other_bash = run.bash.clone();
    for (plain, call) in undisturbed.calls.iter().zip(&run.calls) {
        let record = &call.record;
        let seen = others.len() + other_bash.len();
        other_bash.retain(|it| it.tool_use_id != record.tool_call_id.as_str());
        let mine = effect_lines(call);
        others.retain(|it| !mine.contains(it));
        let seen = u32::try_from(seen - others.len() - other_bash.len()).expect("a few effects");
        let is_right = match (record.status, record.policy.effect.is_single_attempt()) {
            (CallStatus::Succeeded, true) => seen == 1,
            (CallStatus::Succeeded, false) => seen >= 1 && seen <= record.starts,
            (CallStatus::Failed, _) if call.outcome == Some(not_run()) => seen == 0,
            // A tool that fails for good does so after its effect.
            (CallStatus::Failed, _) => seen == plain.record.starts,
            (CallStatus::OutcomeUnknown, _) => seen <= record.starts,
            _ => seen == 0,
        };
        if !is_right {
            found.push(format!(
                "{} took effect {seen} times, and is {:?} after {} starts",
                call.id, record.status, record.starts
            ));
        }
    }
    // What is left are the inline reads, once for each segment that asked for them at most.
    let mut reads: BTreeMap<&String, usize> = BTreeMap::new();
    for line in &others {
        *reads.entry(line).or_default() += 1;
    }
    for (line, times) in reads {
        if !line.starts_with("lookup ") || times > run.deaths + 1 {
            found.push(format!("the effect {line:?} happened {times} times"));
        }
    }
    if !other_bash.is_empty() {
        found.push(format!("Bash ran without a record: {other_bash:?}"));
    }
}

/// The line of a call's effect: with its key, or without for the tool that names none.
fn effect_lines(call: &GatedCall) -> [String; 2] {
    let arguments: serde_json::Value = serde_json::from_str(&call.arguments).expect("arguments");
    let order = arguments["order_id"].as_str().unwrap_or_default();
    let line = format!("{} {order}", call.record.tool_name);
    let turn = call.record.turn_id;
    let key = format!("crashed/{turn}/{}", call.record.tool_call_id);
    [format!("{line} under {key}"), line]
}

/// G13: the log has no gap, each call of it one end, and each message one turn.
fn check_events(undisturbed: &Outcome, run: &Outcome, found: &mut Vec<String>) {
    let mut ends: BTreeMap<_, Vec<CallStatus>> = BTreeMap::new();
    let mut open: Vec<_> = Vec::new();
    let (mut asked, mut resolved) = (Vec::new(), Vec::new());
    let (mut begun, mut completed, mut lost) = (Vec::new(), 0, 0);
    for (index, event) in run.events.iter().enumerate() {
        if event.cursor.0 != index as u64 + 1 {
            found.push(format!(
                "event {} has the cursor {}",
                index + 1,
                event.cursor.0
            ));
        }
        match &event.kind {
            EventKind::ToolCallStarted { tool_call_id, .. } => {
                if open.contains(tool_call_id) || ends.contains_key(tool_call_id) {
                    found.push(format!("{tool_call_id} is said to start twice"));
                }
                open.push(tool_call_id.clone());
            }
            EventKind::ToolCallFinished {
                tool_call_id,
                status,
            } => {
                open.retain(|it| it != tool_call_id);
                ends.entry(tool_call_id.clone()).or_default().push(*status);
            }
            EventKind::InterruptRequested { interrupt_id, .. } => asked.push(interrupt_id.clone()),
            EventKind::InterruptResolved { interrupt_id, .. } => {
                resolved.push(interrupt_id.clone());
            }
            EventKind::TurnStarted { message_id } => begun.push(*message_id),
            EventKind::TurnCompleted => completed += 1,
            EventKind::TurnFailed { class } => found.push(format!("a turn failed: {class}")),
            // An inline call of an attempt that is void has no end.
            EventKind::AttemptSuperseded { .. } | EventKind::AttemptFailed { .. } => {
                lost += 1;
                open.retain(|it| run.calls.iter().any(|call| call.record.tool_call_id == *it));
            }
            _ => {}
        }
    }
    if !open.is_empty() {
        found.push(format!("calls without an end: {open:?}"));
    }
    for (id, ends) in &ends {
        let call = run.calls.iter().find(|it| it.record.tool_call_id == *id);
        let is_right = ends.len() == 1 && call.is_none_or(|it| it.record.status == ends[0]);
        if !is_right {
            found.push(format!("{id} ends in the log as {ends:?}"));
        }
    }
    for call in &run.calls {
        if !ends.contains_key(&call.record.tool_call_id) {
            found.push(format!("{} has no end in the log", call.id));
        }
    }
    // One that was passed over is nobody's question any more.
    let is_skipped = |it: &&InterruptId| {
        let call = run.calls.iter().find(|call| call.id == **it);
        call.is_some_and(|it| it.record.status == CallStatus::Skipped)
    };
    asked.retain(|it| resolved.contains(it) || !is_skipped(&it));
    asked.sort();
    resolved.sort();
    if asked != resolved {
        found.push(format!("asked for {asked:?}, resolved {resolved:?}"));
    }
    let turns = undisturbed
        .events
        .iter()
        .filter(|it| it.kind == EventKind::TurnCompleted);
    begun.dedup();
    if completed != turns.count() || begun.len() != completed {
        found.push(format!(
            "{} turns began, {completed} completed",
            begun.len()
        ));
    }
    // Live, a call's own Step runs while its segment waits.
    let at_once = if run.setting.is_live() { 2 } else { 1 };
    if lost > at_once * run.deaths {
        found.push(format!(
            "{lost} attempts were lost by {} deaths",
            run.deaths
        ));
    }
}

fn check_rest(undisturbed: &Outcome, run: &Outcome, found: &mut Vec<String>) {
    let snapshot = &run.snapshot;
    let is_idle = snapshot.status == SessionStatus::Idle
        && snapshot.active_turn.is_none()
        && snapshot.pending_interrupts.is_empty()
        && snapshot.queued_messages.is_empty()
        && snapshot.last_failure.is_none();
    if !is_idle {
        found.push(format!("the session is not idle: {snapshot:?}"));
    }
    // G7: a death repeats one segment at most, and live, one model call.
    let (launches, plain) = (run.launches.len(), undisturbed.launches.len());
    if launches > plain + run.deaths {
        found.push(format!(
            "{launches} processes instead of {plain} after {} deaths",
            run.deaths
        ));
    }
    let (asked, plain) = (run.model_requests, undisturbed.model_requests);
    if run.setting.is_live() && asked > plain + run.deaths as u64 {
        found.push(format!(
            "the model was asked {asked} times instead of {plain} after {} deaths",
            run.deaths
        ));
    }
}
