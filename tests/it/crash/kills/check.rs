//! What a kill may change, and what it may not.

use std::collections::BTreeMap;

use abide::ids::{InterruptId, TurnId};

use super::*;

/// A call as the model sees it in the end, and its record where it has one.
#[derive(Debug)]
pub(super) struct Call {
    id: String,
    name: String,
    /// How many results of it the model is shown.
    results: usize,
    record: Option<CallRecord>,
}

impl Outside {
    /// The calls of the whole conversation, from the last request.
    pub(super) async fn calls(&self, session: &SessionId) -> Vec<Call> {
        let request = self.api.main_requests().pop().expect("a request");
        let results = request.tool_results();
        let (mut calls, mut turn) = (Vec::new(), 0);
        let messages = request.body["messages"].as_array().expect("messages");
        for message in messages {
            let text = message["content"].to_string();
            turn += u64::from(message["role"] == "user" && text.contains("script: "));
            let blocks = message["content"].as_array().into_iter().flatten();
            for block in blocks.filter(|it| it["type"] == "tool_use") {
                let id = block["id"].as_str().expect("an id").to_owned();
                let name = block["name"].as_str().expect("a name");
                calls.push(Call {
                    record: self.record_of(session, turn, &id).await,
                    results: results.iter().filter(|it| it.tool_use_id == id).count(),
                    name: name.rsplit("__").next().unwrap_or(name).to_owned(),
                    id,
                });
            }
        }
        calls
    }

    async fn record_of(&self, session: &SessionId, turn: u64, id: &str) -> Option<CallRecord> {
        let call = abide::ids::ToolCallId::new(id).expect("an id");
        let key = RowKey {
            kind: RowKind::Record,
            key: InterruptId::of_call(TurnId::new(turn), &call).to_string(),
        };
        let rows = self.store.read_rows(session, &[key]).await.expect("rows");
        let bytes = rows.into_iter().flatten().next()?;
        Some(serde_json::from_slice(&bytes).expect("a record"))
    }
}

/// What is wrong with a run after at most one kill, against the undisturbed one.
/// A CLI that outlived its worker may have asked the model `last_words` times.
pub(super) fn check(calls: usize, plain: &Run, run: &Run, last_words: usize) -> Vec<String> {
    let mut found = Vec::new();
    let kills = usize::from(run.was_killed);
    if run.requests > plain.requests + kills + last_words {
        found.push(format!(
            "{} model requests instead of {}",
            run.requests, plain.requests
        ));
    }
    if run.calls.len() != calls {
        found.push(format!("{} calls instead of {calls}", run.calls.len()));
    }
    let mut effects: BTreeMap<&str, usize> = BTreeMap::new();
    for line in &run.effects {
        *effects.entry(line).or_default() += 1;
    }
    let mut unknown = 0;
    for call in &run.calls {
        if call.results != 1 {
            found.push(format!("{} results of {}", call.results, call.id));
        }
        let Some(record) = &call.record else {
            if call.name != "lookup" {
                found.push(format!("no record of {} {}", call.name, call.id));
            }
            continue;
        };
        let key = format!(" crash/{}/{}", record.turn_id, call.id);
        let happened = match call.name.as_str() {
            "Bash" => run.bash_runs,
            _ => take(&mut effects, &key),
        };
        let is_once = record.policy.effect.is_single_attempt();
        unknown += usize::from(is_once && record.status == CallStatus::OutcomeUnknown);
        let allowed = match (record.status, is_once) {
            (CallStatus::Succeeded, true) => 1..=1,
            (CallStatus::Succeeded, false) => 1..=1 + kills,
            (CallStatus::OutcomeUnknown, true) => 0..=1,
            (CallStatus::Skipped, _) => 0..=0,
            // A command whose CLI died before it could begin; nothing else fails.
            (CallStatus::Failed, _) if call.name == "Bash" => 0..=0,
            (status, _) => {
                found.push(format!("{} ended as {status:?}", call.id));
                continue;
            }
        };
        if !allowed.contains(&happened) || record.starts as usize > 1 + kills {
            found.push(format!(
                "{} {:?} after {} starts with {happened} effects",
                call.name, record.status, record.starts
            ));
        }
        if is_once && record.starts > 1 {
            found.push(format!("{} was started {} times", call.id, record.starts));
        }
    }
    if unknown > kills {
        found.push(format!("{unknown} outcomes are unknown"));
    }
    for (line, count) in effects {
        if !line.starts_with("lookup ") {
            found.push(format!("{line} belongs to no call"));
        } else if count > 1 + kills {
            found.push(format!("{line} was read {count} times"));
        }
    }
    // Without an unknown outcome the model cannot tell that anything happened.
    let differs = |call: &Call| {
        call.record
            .as_ref()
            .is_some_and(|it| it.status != CallStatus::Succeeded)
    };
    if !run.calls.iter().any(differs) && run.answers != plain.answers {
        found.push(format!("the model says {:?}", run.answers));
    }
    found
}

/// Takes the effects with this key out of the others, and counts them.
fn take(effects: &mut BTreeMap<&str, usize>, key: &str) -> usize {
    let mut taken = 0;
    effects.retain(|line, count| {
        let is_of_key = line.ends_with(key);
        taken += if is_of_key { *count } else { 0 };
        !is_of_key
    });
    taken
}
