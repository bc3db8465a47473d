//! Processes that are ended in the middle of a turn, and the turns that go on from what is left.

use serde_json::{Value, json};

use super::findings::Findings;
use super::held::{HOLD_HOOKS, until_reply_mirrored};
use super::host::{Answer, Asked, Host, Policy, SeenCall, YES, call_of, result_of};
use super::stage::{Candidate, Stage, Start};
use super::transcript::Growing;
use super::turns::uuid;
use super::{Broken, LiveFact};
use crate::record::TranscriptEntry;
use crate::transport::CliExit;

pub(super) const AT_HOOK: &[LiveFact] = &[
    LiveFact::EndedAtHook,
    LiveFact::AppendedResults,
    LiveFact::NothingRunsAgain,
];
pub(super) const AT_BATCH: &[LiveFact] = &[LiveFact::EndedAtBatch, LiveFact::RebuiltEntries];
pub(super) const DEFERRAL: &[LiveFact] = &[
    LiveFact::DeferralBesideResults,
    LiveFact::NoBatchAfterDeferral,
];
pub(super) const DROPPED_CALL: &[LiveFact] = &[LiveFact::LaterCallDropped];
pub(super) const CUT: &[LiveFact] = &[
    LiveFact::CutAfterPrompt,
    LiveFact::CutAfterCall,
    LiveFact::WaitsWithoutVariable,
];

/// Allows calls, and lets nobody go on after them.
const HOLD_BATCH: Policy = |asked, _| match asked {
    Asked::PostToolBatch => Answer::Hold,
    Asked::PreToolUse | Asked::Call => Answer::Yes,
};

/// Denies: an experiment that is asked anything fails by what the model reads.
const DENY: Policy = |asked, _| match asked {
    Asked::PreToolUse => Answer::No,
    Asked::PostToolBatch | Asked::Call => Answer::Yes,
};

/// SIGTERM makes the process say this and nothing more.
fn look_at_end(fact: LiveFact, host: &Host, exit: CliExit, findings: &mut Findings) {
    findings.equal(fact, "the exit", exit, CliExit::Exited(143));
    for kind in ["result", "control_cancel_request"] {
        findings.equal(fact, kind, host.of_type(kind).len(), 0);
    }
}

/// What was asked about calls in a process, in order.
fn asked(host: &Host) -> Vec<(Asked, String)> {
    let kinds = [Asked::PreToolUse, Asked::Call];
    kinds
        .into_iter()
        .flat_map(|kind| {
            let questions = host.questions(kind).into_iter();
            questions.map(move |it| (kind, call_of(it)))
        })
        .collect()
}

pub(super) async fn at_hook(candidate: &Candidate, findings: &mut Findings) -> Result<(), Broken> {
    const PROMPT: &str = r#"script: call refund {"n":1} && call Bash {"command":"echo hi"}"#;
    let stage = Stage::set(candidate).await?;
    let mut host = stage.start(Start::with(HOLD_HOOKS)).await?;
    host.prompt(&uuid(1), &[PROMPT])?;
    host.question(Asked::PreToolUse).await?;
    until_reply_mirrored(&mut host, 2).await?;
    stage.terminate(&host)?;
    let (host, exit) = host.end().await?;
    look_at_end(LiveFact::EndedAtHook, &host, exit, findings);
    findings.equal(LiveFact::EndedAtHook, "requests", stage.requests(), 1);
    let calls = host.calls();
    let entries = host.entries();
    let last = entries.iter().rfind(|it| it["uuid"].is_string());
    findings.equal(
        LiveFact::EndedAtHook,
        "the last entry",
        last.map(|it| &it["uuid"]),
        calls.last().map(|it| json!(it.line)).as_ref(),
    );

    let appended = LiveFact::AppendedResults;
    let session = host.session()?;
    let mut growing = Growing::of(&host.mirrored)?;
    for (call, said) in calls.iter().zip(["refunded", "hi there"]) {
        growing.add_result(call, said)?;
    }
    let mut stored = growing.into_entries();
    let mut host = stage.resume(DENY, &session, stored.clone(), true).await?;
    let result = host.result().await?;
    findings.equal(
        appended,
        "the answer",
        &result["result"],
        &json!("refund: refunded\nBash: hi there"),
    );
    findings.equal(
        appended,
        "resume_reason",
        &result["resume_reason"],
        &json!("interrupted_turn"),
    );
    findings.equal(appended, "questions", asked(&host), Vec::new());
    findings.equal(appended, "requests", stage.requests(), 2);

    let after = LiveFact::NothingRunsAgain;
    host.prompt(&uuid(2), &["script: say warm"])?;
    let result = host.result().await?;
    findings.equal(
        after,
        "in the process",
        &result["result"],
        &json!("said: warm"),
    );
    findings.equal(after, "requests in the process", stage.requests(), 3);
    let (host, _) = host.close().await?;
    findings.equal(after, "questions", asked(&host), Vec::new());
    stored.extend(Growing::of(&host.mirrored)?.into_entries());
    let mut host = stage.resume(DENY, &session, stored, true).await?;
    host.prompt(&uuid(3), &["script: recall"])?;
    let result = host.result().await?;
    let recalled = format!("recalled: {PROMPT} | script: say warm");
    findings.equal(after, "what is left", &result["result"], &json!(recalled));
    findings.equal(after, "requests of a later process", stage.requests(), 4);
    findings.equal(
        after,
        "questions of a later process",
        asked(&host),
        Vec::new(),
    );
    host.close().await?;
    stage.leave().await
}

pub(super) async fn at_batch(candidate: &Candidate, findings: &mut Findings) -> Result<(), Broken> {
    const PROMPT: &str =
        r#"script: tell so ;; call lookup {"n":1} && call Bash {"command":"echo hi"}"#;
    let stage = Stage::set(candidate).await?;
    let mut host = stage.start(Start::with(HOLD_BATCH)).await?;
    host.prompt(&uuid(1), &[PROMPT])?;
    host.until_mirrored("the prompt", |it| it["uuid"] == uuid(1).as_str())
        .await?;
    while host.questions(Asked::PostToolBatch).is_empty() {
        host.question(Asked::PostToolBatch).await?;
    }
    stage.kill(&host)?;
    let killed = host;

    let rebuilt = LiveFact::RebuiltEntries;
    let calls = killed.calls();
    // What was mirrored besides may be nothing of the reply, a part of it, or all.
    let mut growing = Growing::up_to(&killed.mirrored, |it| it["type"] == "assistant")?;
    for line in killed.frames.iter().filter(|it| is_said(it)) {
        growing.add_line(line, &calls)?;
    }
    let session = killed.session()?;
    drop(killed);
    let mut host = stage
        .resume(HOLD_BATCH, &session, growing.into_entries(), true)
        .await?;
    let result = host.result().await?;
    findings.equal(
        rebuilt,
        "the answer",
        &result["result"],
        &json!("lookup: ran {\"n\":1}\nBash: hi"),
    );
    findings.equal(rebuilt, "questions", asked(&host), Vec::new());
    findings.equal(rebuilt, "requests", stage.requests(), 2);

    // The same process, warm, ended at the same place by SIGTERM.
    let ended = LiveFact::EndedAtBatch;
    host.prompt(&uuid(2), &[r#"script: call lookup {"n":2}"#])?;
    host.question(Asked::PostToolBatch).await?;
    let results = host.of_type("result").len();
    stage.terminate(&host)?;
    let (host, exit) = host.end().await?;
    findings.equal(ended, "the exit", exit, CliExit::Exited(143));
    findings.equal(ended, "results", host.of_type("result").len(), results);
    let cancelled = host.of_type("control_cancel_request").len();
    findings.equal(ended, "cancelled requests", cancelled, 0);
    findings.equal(ended, "requests", stage.requests(), 3);
    let last = host.calls().pop().map(|it| it.id);
    let entries = host.entries();
    let talk = |it: &&Value| it["type"] == "user" || it["type"] == "assistant";
    findings.equal(
        ended,
        "the last word mirrored",
        entries.iter().rfind(talk).and_then(result_of),
        last.as_deref(),
    );
    stage.leave().await
}

/// True for a line that becomes an entry of the conversation.
fn is_said(frame: &Value) -> bool {
    let kind = &frame["type"];
    (kind == "assistant" || kind == "user") && frame["parent_tool_use_id"].is_null()
}

/// Plays a reply up to its first hook, and ends the process when the reply is mirrored.
async fn kill_at_hook(
    stage: &Stage,
    prompt: &str,
    calls: usize,
) -> Result<(String, Vec<TranscriptEntry>, Vec<SeenCall>), Broken> {
    let mut host = stage.start(Start::with(HOLD_HOOKS)).await?;
    host.prompt(&uuid(1), &[prompt])?;
    host.question(Asked::PreToolUse).await?;
    until_reply_mirrored(&mut host, calls).await?;
    stage.kill(&host)?;
    Ok((host.session()?, host.mirrored.clone(), host.calls()))
}

pub(super) async fn deferral(candidate: &Candidate, findings: &mut Findings) -> Result<(), Broken> {
    const PROMPT: &str =
        r#"script: call refund {"n":1} && call Bash {"command":"echo hi"} && call refund {"n":3}"#;
    let fact = LiveFact::DeferralBesideResults;
    let stage = Stage::set(candidate).await?;
    let (session, mirrored, calls) = kill_at_hook(&stage, PROMPT, 3).await?;
    let mut growing = Growing::of(&mirrored)?;
    growing.add_result(&calls[0], "one")?;
    growing.add_result(&calls[2], "three")?;
    growing.add_deferral(&calls[1])?;
    let mut host = stage
        .resume(YES, &session, growing.into_entries(), true)
        .await?;
    let result = host.result().await?;
    findings.equal(
        fact,
        "the answer",
        &result["result"],
        &json!("refund: one\nBash: hi\nrefund: three"),
    );
    let only = vec![(Asked::PreToolUse, calls[1].id.clone())];
    findings.equal(fact, "questions", asked(&host), only);
    findings.equal(fact, "requests", stage.requests(), 2);
    findings.equal(
        LiveFact::NoBatchAfterDeferral,
        "callbacks",
        host.questions(Asked::PostToolBatch).len(),
        0,
    );
    host.close().await?;
    stage.leave().await
}

pub(super) async fn dropped_call(
    candidate: &Candidate,
    findings: &mut Findings,
) -> Result<(), Broken> {
    const PROMPT: &str = r#"script: call refund {"n":1} && call refund {"n":2}"#;
    let fact = LiveFact::LaterCallDropped;
    let stage = Stage::set(candidate).await?;
    let (session, mirrored, calls) = kill_at_hook(&stage, PROMPT, 2).await?;
    let mut growing = Growing::of(&mirrored)?;
    growing.add_deferral(&calls[0])?;
    let mut host = stage
        .resume(YES, &session, growing.into_entries(), true)
        .await?;
    let result = host.result().await?;
    // The model misses the second call and makes it again.
    let again = host.calls();
    findings.equal(fact, "calls of the next reply", again.len(), 1);
    let again = again
        .first()
        .map(|it| (it.id != calls[1].id, it.input.clone()));
    findings.equal(fact, "a new call", again, Some((true, json!({"n": 2}))));
    findings.equal(fact, "requests", stage.requests(), 3);
    findings.equal(
        fact,
        "the answer",
        &result["result"],
        &json!("refund: ran {\"n\":1}\nrefund: ran {\"n\":2}"),
    );
    host.close().await?;
    stage.leave().await
}

pub(super) async fn cut(candidate: &Candidate, findings: &mut Findings) -> Result<(), Broken> {
    const PROMPT: &str = r#"script: call lookup {"n":1}"#;
    let stage = Stage::set(candidate).await?;
    let (session, mirrored, _) = kill_at_hook(&stage, PROMPT, 1).await?;
    let prompt = Growing::up_to(&mirrored, |it| it["type"] == "assistant")?.into_entries();
    let call = Growing::of(&mirrored)?.into_entries();
    let mut requests = 1;
    for (fact, entries) in [
        (LiveFact::CutAfterPrompt, &prompt),
        (LiveFact::CutAfterCall, &call),
    ] {
        let mut host = stage.resume(YES, &session, entries.clone(), true).await?;
        let result = host.result().await?;
        findings.equal(
            fact,
            "the answer",
            &result["result"],
            &json!("lookup: ran {\"n\":1}"),
        );
        findings.equal(fact, "calls", host.questions(Asked::Call).len(), 1);
        requests += 2;
        findings.equal(fact, "requests", stage.requests(), requests);
        let batches = host.questions(Asked::PostToolBatch).len();
        findings.equal(fact, "PostToolBatch callbacks", batches, 1);
        host.close().await?;
    }

    let waits = LiveFact::WaitsWithoutVariable;
    let mut host = stage.resume(YES, &session, prompt, false).await?;
    host.linger().await?;
    findings.equal(waits, "requests", stage.requests(), requests);
    findings.equal(waits, "results", host.of_type("result").len(), 0);
    let (host, exit) = host.close().await?;
    findings.equal(waits, "requests at the end", stage.requests(), requests);
    findings.equal(waits, "results at the end", host.of_type("result").len(), 0);
    findings.equal(waits, "the exit", exit, CliExit::Exited(0));
    stage.leave().await
}
