//! What the CLI does while a question of it is unanswered, and when its stream breaks.

use serde_json::{Value, json};

use super::findings::Findings;
use super::host::{Answer, Asked, Host, Policy, YES, call_of, result_of, text};
use super::stage::{BROKEN, Candidate, Stage, Start};
use super::transcript::Growing;
use super::turns::uuid;
use super::{Broken, LiveFact};
use crate::transport::CliExit;

pub(super) const REPLY: &[LiveFact] = &[
    LiveFact::MirrorBeforeDecision,
    LiveFact::LineUuids,
    LiveFact::WritesInOrder,
    LiveFact::SteeringAtHook,
    LiveFact::SteeringAtBatch,
];
pub(super) const TIMEOUT: &[LiveFact] = &[LiveFact::HookTimeout];
pub(super) const SUB_AGENT: &[LiveFact] = &[LiveFact::SubAgentNamed];
pub(super) const BROKEN_STREAM: &[LiveFact] = &[
    LiveFact::BrokenStreamKeepsBlocks,
    LiveFact::BrokenReplyResumed,
];
pub(super) const GIVEN_UP: &[LiveFact] = &[LiveFact::BrokenStreamRetried];

pub(super) const HOLD_HOOKS: Policy = |asked, _| match asked {
    Asked::PreToolUse | Asked::PostToolBatch => Answer::Hold,
    Asked::Call => Answer::Yes,
};

const TWO_WRITES: &str = r#"script: call refund {"n":1} && call Bash {"command":"echo hi"}"#;

pub(super) fn is_tool_use(entry: &Value) -> bool {
    entry["type"] == "assistant" && entry["message"]["content"][0]["type"] == "tool_use"
}

/// Takes lines until the whole reply with so many calls is mirrored.
pub(super) async fn until_reply_mirrored(host: &mut Host, calls: usize) -> Result<(), Broken> {
    while host.calls().len() < calls {
        host.until("a call", is_tool_use).await?;
    }
    let last = host.calls().pop().map(|it| it.line).unwrap_or_default();
    host.until_mirrored("the reply", |it| it["uuid"] == last.as_str())
        .await
}

pub(super) async fn reply(candidate: &Candidate, findings: &mut Findings) -> Result<(), Broken> {
    let stage = Stage::set(candidate).await?;
    let mut host = stage.start(Start::with(HOLD_HOOKS)).await?;
    host.prompt(&uuid(1), &[TWO_WRITES])?;
    let first = host.question(Asked::PreToolUse).await?;
    until_reply_mirrored(&mut host, 2).await?;
    let before = LiveFact::MirrorBeforeDecision;
    let calls = host.calls();
    let entries = host.entries();
    let prompt = entries.iter().any(|it| it["uuid"] == uuid(1).as_str());
    findings.check(before, "the prompt is mirrored", prompt);
    let mirrored: Vec<String> = entries
        .iter()
        .filter(|it| is_tool_use(it))
        .map(|it| text(&it["uuid"]))
        .collect();
    let lines: Vec<String> = calls.iter().map(|it| it.line.clone()).collect();
    findings.equal(before, "the reply's entries", mirrored, lines);

    host.linger().await?;
    let order = LiveFact::WritesInOrder;
    let asked = |host: &Host| -> Vec<String> {
        let questions = host.questions(Asked::PreToolUse).into_iter();
        questions.map(call_of).collect()
    };
    findings.equal(
        order,
        "asked about at first",
        asked(&host),
        vec![calls[0].id.clone()],
    );
    host.prompt(&uuid(2), &["and be quick"])?;
    host.linger().await?;
    host.answer(&first, Answer::Yes)?;
    let second = host.question(Asked::PreToolUse).await?;
    findings.equal(
        order,
        "asked about then",
        call_of(&second),
        calls[1].id.clone(),
    );
    let served = host.questions(Asked::Call).len();
    findings.equal(order, "custom calls before the second", served, 1);
    host.answer(&second, Answer::Yes)?;
    let batch = host.question(Asked::PostToolBatch).await?;
    host.prompt(&uuid(3), &["and be kind"])?;
    host.linger().await?;
    host.answer(&batch, Answer::Yes)?;
    let result = host.result().await?;
    look_at_steering(&host, &result, findings);
    look_at_lines(&host, findings);
    let (_, exit) = host.close().await?;
    findings.equal(
        LiveFact::SteeringAtHook,
        "the exit",
        exit,
        CliExit::Exited(0),
    );
    stage.leave().await
}

fn look_at_steering(host: &Host, result: &Value, findings: &mut Findings) {
    let entries = host.entries();
    let last_result = entries.iter().rposition(|it| result_of(it).is_some());
    for (fact, number, said) in [
        (LiveFact::SteeringAtHook, 2, "and be quick"),
        (LiveFact::SteeringAtBatch, 3, "and be kind"),
    ] {
        let named = result["user_message_uuids"].as_array();
        let named = named.is_some_and(|it| it.contains(&json!(uuid(number))));
        findings.check(fact, "the result names it", named);
        let answer = text(&result["result"]);
        let heard = answer.contains(&format!("steered: {said}"));
        findings.check(fact, "the model read it", heard);
        let queued = entries.iter().position(|it| {
            it["attachment"]["type"] == "queued_command"
                && it["attachment"]["source_uuid"] == uuid(number).as_str()
        });
        findings.check(
            fact,
            "it is a queued_command behind the results",
            queued.is_some() && queued > last_result,
        );
        findings.equal(fact, "results", host.of_type("result").len(), 1);
    }
}

fn look_at_lines(host: &Host, findings: &mut Findings) {
    let entries = host.entries();
    for line in host.frames.iter().filter(|it| {
        (it["type"] == "assistant" || it["type"] == "user") && it["parent_tool_use_id"].is_null()
    }) {
        let entry = entries.iter().find(|it| it["uuid"] == line["uuid"]);
        let same = entry.is_some_and(|it| {
            it["type"] == line["type"] && it["message"]["content"] == line["message"]["content"]
        });
        findings.check(LiveFact::LineUuids, "a line is an entry", same);
    }
}

pub(super) async fn timeout(candidate: &Candidate, findings: &mut Findings) -> Result<(), Broken> {
    let fact = LiveFact::HookTimeout;
    let stage = Stage::set(candidate).await?;
    let policy: Policy = |asked, _| match asked {
        Asked::PreToolUse => Answer::Hold,
        Asked::PostToolBatch | Asked::Call => Answer::Yes,
    };
    let start = Start {
        hook_timeout_seconds: Some(1),
        ..Start::with(policy)
    };
    let mut host = stage.start(start).await?;
    host.prompt(&uuid(1), &[r#"script: call refund {"n":1}"#])?;
    let hook = host.question(Asked::PreToolUse).await?;
    let id = hook["request_id"].clone();
    host.until("the end of the hook", |it| {
        it["type"] == "control_cancel_request" && it["request_id"] == id
    })
    .await?;
    let answer = host
        .until("the call's result", |it| result_of(it).is_some())
        .await?;
    let is_error = answer["message"]["content"][0]["is_error"] == true;
    findings.check(fact, "the call's result is an error", is_error);
    let result = host.result().await?;
    findings.equal(fact, "the turn fails", &result["is_error"], &json!(false));
    findings.equal(fact, "calls made", host.questions(Asked::Call).len(), 0);
    host.close().await?;
    stage.leave().await
}

pub(super) async fn sub_agent(
    candidate: &Candidate,
    findings: &mut Findings,
) -> Result<(), Broken> {
    let fact = LiveFact::SubAgentNamed;
    let stage = Stage::set(candidate).await?;
    let policy: Policy = |asked, _| match asked {
        Asked::PostToolBatch => Answer::Hold,
        Asked::PreToolUse | Asked::Call => Answer::Yes,
    };
    let start = Start {
        tools: &["Bash", "Read", "Agent"],
        ..Start::with(policy)
    };
    let mut host = stage.start(start).await?;
    let prompt = r#"script: call Agent {"description":"look","prompt":"script: call lookup {\"n\":9}","subagent_type":"general-purpose"}"#;
    host.prompt(&uuid(1), &[prompt])?;
    let inner = host.question(Asked::PostToolBatch).await?;
    let agents: Vec<Value> = host
        .questions(Asked::PreToolUse)
        .into_iter()
        .map(|it| it["request"]["input"]["agent_id"].clone())
        .collect();
    findings.equal(fact, "hooks", agents.len(), 2);
    findings.equal(
        fact,
        "the agent of the first call",
        agents.first(),
        Some(&Value::Null),
    );
    let agent = &inner["request"]["input"]["agent_id"];
    findings.check(fact, "the callback names an agent", agent.is_string());
    findings.equal(fact, "the agent of its call", agents.last(), Some(agent));
    host.linger().await?;
    findings.equal(fact, "requests while it is open", stage.requests(), 2);
    host.answer(&inner, Answer::Yes)?;
    let outer = host.question(Asked::PostToolBatch).await?;
    let agent = &outer["request"]["input"]["agent_id"];
    findings.check(
        fact,
        "the main reply's callback names none",
        agent.is_null(),
    );
    host.answer(&outer, Answer::Yes)?;
    let result = host.result().await?;
    findings.equal(fact, "the turn fails", &result["is_error"], &json!(false));
    findings.equal(fact, "requests", stage.requests(), 4);
    host.close().await?;
    stage.leave().await
}

pub(super) async fn broken_stream(
    candidate: &Candidate,
    findings: &mut Findings,
) -> Result<(), Broken> {
    let fact = LiveFact::BrokenStreamKeepsBlocks;
    let stage = Stage::set_broken(candidate, 1).await?;
    let (mut host, hook) = hold_broken(&stage, findings).await?;
    host.linger().await?;
    findings.equal(fact, "requests while the hook is open", stage.requests(), 1);
    host.answer(&hook, Answer::Yes)?;
    let batch = host.question(Asked::PostToolBatch).await?;
    let calls: Vec<String> = host
        .questions(Asked::Call)
        .into_iter()
        .map(call_of)
        .collect();
    findings.equal(fact, "calls made", calls, vec![call_of(&hook)]);
    host.answer(&batch, Answer::Yes)?;
    let result = host.result().await?;
    findings.equal(fact, "requests", stage.requests(), 2);
    let said = json!(r#"refund: ran {"n":1}"#);
    findings.equal(fact, "the answer", &result["result"], &said);
    host.close().await?;
    stage.leave().await?;

    let fact = LiveFact::BrokenReplyResumed;
    let stage = Stage::set_broken(candidate, 1).await?;
    let (host, _) = hold_broken(&stage, findings).await?;
    stage.terminate(&host)?;
    let (host, _) = host.end().await?;
    let mut growing = Growing::of(&host.mirrored)?;
    growing.add_result(&host.calls()[0], "refunded")?;
    let mut host = stage
        .resume(YES, &host.session()?, growing.into_entries(), true)
        .await?;
    let result = host.result().await?;
    let said = json!("refund: refunded");
    findings.equal(fact, "the answer", &result["result"], &said);
    let asked = host.questions(Asked::PreToolUse).len();
    findings.equal(fact, "calls asked about", asked, 0);
    findings.equal(fact, "requests", stage.requests(), 2);
    host.close().await?;
    stage.leave().await
}

/// Breaks a reply behind its first call, whose hook stays open, and waits until that is mirrored.
async fn hold_broken(stage: &Stage, findings: &mut Findings) -> Result<(Host, Value), Broken> {
    let mut host = stage.start(Start::with(HOLD_HOOKS)).await?;
    host.prompt(&uuid(1), &[BROKEN])?;
    let hook = host.question(Asked::PreToolUse).await?;
    stage.break_stream();
    let stop = host.until("the end of the reply", is_message_stop).await?;
    findings.equal(
        LiveFact::BrokenStreamKeepsBlocks,
        "the first block that is gone",
        &stop["abandoned_blocks"]["from_block_index"],
        &json!(1),
    );
    host.until_mirrored("what is left of the reply", is_tool_use)
        .await?;
    host.until_mirrored("the CLI's own words", is_synthetic)
        .await?;
    Ok((host, hook))
}

pub(super) async fn given_up(candidate: &Candidate, findings: &mut Findings) -> Result<(), Broken> {
    let fact = LiveFact::BrokenStreamRetried;
    let stage = Stage::set_broken(candidate, 0).await?;
    let mut host = stage.start(Start::with(YES)).await?;
    host.prompt(&uuid(1), &[BROKEN])?;
    host.until("the beginning of the reply", |it| {
        it["event"]["type"] == "message_start"
    })
    .await?;
    stage.break_stream();
    let stop = host.until("the end of the reply", is_message_stop).await?;
    findings.equal(
        fact,
        "the first block that is gone",
        &stop["abandoned_blocks"]["from_block_index"],
        &json!(0),
    );
    let result = host.result().await?;
    let asked = host.questions(Asked::PreToolUse).len();
    findings.equal(fact, "calls asked about", asked, 1);
    findings.equal(fact, "requests", stage.requests(), 3);
    let said = json!(r#"refund: ran {"n":1}"#);
    findings.equal(fact, "the answer", &result["result"], &said);
    host.close().await?;
    stage.leave().await
}

fn is_message_stop(frame: &Value) -> bool {
    frame["type"] == "stream_event" && frame["event"]["type"] == "message_stop"
}

fn is_synthetic(entry: &Value) -> bool {
    entry["type"] == "assistant" && entry["message"]["model"] == "<synthetic>"
}
