//! Several turns of one process: what ends a reply, what a further prompt costs.

use serde_json::{Value, json};

use super::findings::Findings;
use super::host::{Answer, Asked, Host, Policy, YES, call_of, result_of};
use super::stage::{Candidate, Stage, Start};
use super::{Broken, LiveFact};
use crate::transport::CliExit;

pub(super) const FACTS: &[LiveFact] = &[
    LiveFact::PromptUuid,
    LiveFact::BatchEndsReply,
    LiveFact::BatchHoldsModel,
    LiveFact::BatchWithoutRun,
    LiveFact::RefusedWithoutHook,
    LiveFact::NoBatchWithoutCalls,
    LiveFact::WarmTurn,
    LiveFact::WarmUsage,
    LiveFact::MirrorBeforeResult,
];

const FOUR_CALLS: &str = r#"script: call refund {"n":1} && call lookup {"n":2} && call lookup {"n":3} && call Bash {"command":"echo hi"}"#;

const HOLD_BATCH: Policy = |asked, _| match asked {
    Asked::PostToolBatch => Answer::Hold,
    Asked::PreToolUse | Asked::Call => Answer::Yes,
};

const DENY: Policy = |asked, _| match asked {
    Asked::PreToolUse => Answer::No,
    Asked::PostToolBatch | Asked::Call => Answer::Yes,
};

/// The prompts after the first, each with what is answered during its turn.
const FURTHER: [(&str, Policy, Refusal); 4] = [
    (
        r#"script: call refund {"n":1} && call Bash {"command":"echo hi"}"#,
        DENY,
        Refusal::ByHook,
    ),
    ("script: call no_such_tool {}", YES, Refusal::ByCli),
    ("script: call Bash {}", YES, Refusal::ByCli),
    ("script: say hi", YES, Refusal::NoCalls),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    ByHook,
    ByCli,
    NoCalls,
}

pub(super) async fn run(candidate: &Candidate, findings: &mut Findings) -> Result<(), Broken> {
    let stage = Stage::set(candidate).await?;
    let mut host = stage.start(Start::with(HOLD_BATCH)).await?;
    let mut results = vec![first_turn(&stage, &mut host, findings).await?];
    for (number, (prompt, policy, refusal)) in FURTHER.into_iter().enumerate() {
        host.decide(policy);
        let from = host.frames.len();
        host.prompt(&uuid(number + 2), &[prompt])?;
        results.push(host.result().await?);
        look_at_refusals(&host.frames[from..], refusal, prompt, findings);
    }
    look_at_turns(&host, &results, findings);
    let (host, exit) = host.close().await?;
    findings.equal(LiveFact::WarmTurn, "the exit", exit, CliExit::Exited(0));
    let last = host.position(|it| it["type"] == "result" && it["uuid"] == results[4]["uuid"]);
    let after = host.frames.iter().skip(last.unwrap_or_default());
    let late: Vec<&Value> = after
        .flat_map(|it| it["entries"].as_array().into_iter().flatten())
        .filter(|it| it["uuid"].is_string())
        .collect();
    findings.equal(
        LiveFact::MirrorBeforeResult,
        "entries of the conversation after the last result",
        late,
        Vec::new(),
    );
    stage.leave().await
}

async fn first_turn(
    stage: &Stage,
    host: &mut Host,
    findings: &mut Findings,
) -> Result<Value, Broken> {
    host.prompt(&uuid(1), &["a first block", FOUR_CALLS])?;
    let batch = host.question(Asked::PostToolBatch).await?;
    let calls: Vec<String> = host.calls().into_iter().map(|it| it.id).collect();
    let answered = |host: &Host| -> Vec<String> {
        let ids = host.frames.iter().filter_map(result_of);
        ids.map(str::to_owned).collect()
    };
    let ends = LiveFact::BatchEndsReply;
    findings.equal(ends, "results before it", answered(host), calls.clone());
    let input = &batch["request"]["input"];
    let listed = input["tool_calls"].as_array().into_iter().flatten();
    let listed: Vec<Value> = listed.map(|it| it["tool_use_id"].clone()).collect();
    let expected = calls.iter().map(|it| json!(it)).collect();
    findings.equal(ends, "the calls that it lists", listed, expected);
    findings.check(ends, "it names no agent", input["agent_id"].is_null());

    let last = calls.last().cloned().unwrap_or_default();
    host.until_mirrored("the last result", |it| result_of(it) == Some(&last))
        .await?;
    host.linger().await?;
    let holds = LiveFact::BatchHoldsModel;
    findings.equal(holds, "requests while it is open", stage.requests(), 1);
    host.decide(YES);
    host.answer(&batch, Answer::Yes)?;
    let result = host.result().await?;
    findings.equal(holds, "requests afterwards", stage.requests(), 2);
    let said = "refund: ran {\"n\":1}\nlookup: ran {\"n\":2}\nlookup: ran {\"n\":3}\nBash: hi";
    findings.equal(holds, "the answer", &result["result"], &json!(said));
    findings.equal(
        ends,
        "callbacks",
        host.questions(Asked::PostToolBatch).len(),
        1,
    );

    let entries = host.entries();
    let prompt = entries.iter().find(|it| it["uuid"] == uuid(1).as_str());
    let blocks = prompt.and_then(|it| it["message"]["content"].as_array().map(Vec::len));
    findings.equal(LiveFact::PromptUuid, "blocks of its entry", blocks, Some(2));
    let init = host.frames.iter().find(|it| it["subtype"] == "init");
    findings.version(init.and_then(|it| it["claude_code_version"].as_str()));
    Ok(result)
}

fn look_at_refusals(frames: &[Value], refusal: Refusal, prompt: &str, findings: &mut Findings) {
    let count = |asked| {
        let questions = frames
            .iter()
            .filter(|it| super::host::is_question(it, asked));
        questions.count()
    };
    let (hooks, batches) = (count(Asked::PreToolUse), count(Asked::PostToolBatch));
    match refusal {
        Refusal::ByHook => {
            findings.equal(LiveFact::BatchWithoutRun, prompt, (hooks, batches), (2, 1));
        }
        Refusal::ByCli => {
            findings.equal(LiveFact::BatchWithoutRun, prompt, batches, 1);
            findings.equal(LiveFact::RefusedWithoutHook, prompt, hooks, 0);
            let errors = frames.iter().filter(|it| result_of(it).is_some());
            let errors = errors.filter(|it| it["message"]["content"][0]["is_error"] == true);
            findings.equal(LiveFact::RefusedWithoutHook, prompt, errors.count(), 1);
        }
        Refusal::NoCalls => {
            findings.equal(LiveFact::NoBatchWithoutCalls, prompt, batches, 0);
        }
    }
    let asked = frames
        .iter()
        .filter(|it| super::host::is_question(it, Asked::Call));
    let asked: Vec<String> = asked.map(call_of).collect();
    findings.equal(LiveFact::BatchWithoutRun, "calls made", asked, Vec::new());
}

fn look_at_turns(host: &Host, results: &[Value], findings: &mut Findings) {
    let warm = LiveFact::WarmTurn;
    let indexes: Vec<Value> = results
        .iter()
        .map(|it| it["result_index"].clone())
        .collect();
    let expected = (0..results.len()).map(|it| json!(it)).collect();
    findings.equal(warm, "result_index", indexes, expected);
    let errors: Vec<&Value> = results
        .iter()
        .filter(|it| it["is_error"] != false)
        .collect();
    findings.equal(warm, "failed turns", errors, Vec::new());
    let inits = host.frames.iter().filter(|it| it["subtype"] == "init");
    findings.equal(warm, "inits", inits.count(), results.len());
    for method in ["initialize", "tools/list"] {
        let sent = host
            .frames
            .iter()
            .filter(|it| it["request"]["message"]["method"] == method);
        findings.equal(warm, method, sent.count(), 1);
    }
    let uuids: Vec<Value> = results
        .iter()
        .map(|it| it["user_message_uuids"].clone())
        .collect();
    let expected = (1..=results.len()).map(|it| json!([uuid(it)])).collect();
    findings.equal(warm, "user_message_uuids", uuids, expected);
    let output = |usage: &Value| -> u64 {
        let models = usage.as_object().into_iter().flatten();
        models
            .filter_map(|(_, it)| it["outputTokens"].as_u64())
            .sum()
    };
    let mut total = 0;
    for result in results {
        let own = output(&result["model_usage_since_last_result"]);
        findings.check(LiveFact::WarmUsage, "a turn has usage of its own", own > 0);
        total += own;
        findings.equal(
            LiveFact::WarmUsage,
            "the sum of the turns so far",
            total,
            output(&result["modelUsage"]),
        );
    }
    let known: Vec<Value> = host.entries();
    for number in 1..=results.len() {
        let entry = known
            .iter()
            .any(|it| it["type"] == "user" && it["uuid"] == uuid(number).as_str());
        findings.check(LiveFact::PromptUuid, "each prompt has its uuid", entry);
    }
}

/// The uuid of the n-th prompt.
pub(super) fn uuid(number: usize) -> String {
    format!("aaaaaaaa-0000-4000-8000-{number:012}")
}
