//! Each fault does what its name says.

use super::host::deferred_transcript;
use super::*;

fn run(faults: Vec<Fault>, hook: &str, prompt: &str) -> Host {
    let mut config = config();
    config.faults = faults;
    let mut host = Host::deciding(config, hook);
    host.initialize();
    host.prompt(prompt);
    host
}

const REFUND: &str = r#"script: call create_refund {"n":1}"#;

/// Each place is one to die at: nothing comes after it, and what came before is a prefix.
#[test]
fn a_process_dies_after_any_line() {
    let whole = run(Vec::new(), ALLOW, REFUND).frames;
    for at in 1..=whole.len() {
        let host = run(vec![Fault::DieAfterSent(at as u64)], ALLOW, REFUND);
        assert_eq!(host.frames, whole[..at]);
        assert!(host.cli.was_killed());
        assert_eq!(host.cli.poll_exit(), None);
    }
    let host = run(vec![Fault::DieAfterReceived(1)], ALLOW, REFUND);
    assert!(host.cli.was_killed());
    assert_eq!(host.frames, Vec::<Value>::new());
}

#[test]
fn a_process_exits_or_stalls_after_a_line() {
    let host = run(
        vec![Fault::ExitAfterSent { lines: 4, code: 3 }],
        ALLOW,
        REFUND,
    );
    assert_eq!((host.frames.len(), host.cli.poll_exit()), (4, Some(3)));
    let host = run(vec![Fault::StallAfterSent(4)], ALLOW, REFUND);
    assert_eq!((host.frames.len(), host.cli.poll_exit()), (4, None));
}

/// L30: the same call is asked about twice; the first answer counts.
#[test]
fn hooks_and_calls_are_repeated() {
    let host = run(vec![Fault::RepeatHook], ALLOW, REFUND);
    let hooks = host.requests("hook_callback");
    assert_eq!(hooks.len(), 2);
    assert_eq!(hooks[0]["tool_use_id"], hooks[1]["tool_use_id"]);
    assert_eq!(host.calls().len(), 1);
    let host = run(vec![Fault::RepeatCall], ALLOW, REFUND);
    assert_eq!(host.calls().len(), 2);
    assert_eq!(host.tool_results().len(), 1);
    host.assert_clean();
}

#[test]
fn an_ignored_deferral_goes_to_the_host() {
    let host = run(vec![Fault::IgnoreDeferral], DEFER, REFUND);
    assert_eq!(host.requests("can_use_tool").len(), 1);
    assert_eq!(host.results()[0]["terminal_reason"], "completed");
}

#[test]
fn a_deferral_can_name_another_id() {
    let host = run(vec![Fault::WrongDeferredId], DEFER, REFUND);
    assert_eq!(
        host.results()[0]["deferred_tool_use"]["id"],
        "toolu_another"
    );
}

#[test]
fn another_call_than_the_permitted_one_is_made() {
    let host = run(
        vec![Fault::CallAnotherTool("lookup".to_owned())],
        ALLOW,
        REFUND,
    );
    assert_eq!(host.calls()[0]["name"], "lookup");
    let host = run(
        vec![Fault::CallOtherInput("{\"n\":9}".to_owned())],
        ALLOW,
        REFUND,
    );
    assert_eq!(host.calls()[0]["arguments"], json!({"n": 9}));
    let host = run(vec![Fault::RunWithoutAsking], DENY, REFUND);
    assert_eq!(host.requests("hook_callback"), Vec::<Value>::new());
    assert_eq!(host.calls().len(), 1);
    let host = run(vec![Fault::SkipHooks], DENY, REFUND);
    assert_eq!(host.requests("can_use_tool").len(), 1);
}

#[test]
fn hooks_are_skipped_for_a_resumed_call() {
    let mut config = resumed_config(deferred_transcript(REFUND));
    config.faults = vec![Fault::SkipHooksOnResume];
    let mut host = Host::deciding(config, DENY);
    host.initialize();
    assert_eq!(host.requests("hook_callback"), Vec::<Value>::new());
    assert_eq!(host.requests("can_use_tool").len(), 1);
}

#[test]
fn unknown_frames_come_between_the_others() {
    let host = run(vec![Fault::UnknownFrames], ALLOW, REFUND);
    assert!(
        host.frames
            .iter()
            .any(|it| it["type"] == "never_seen_before")
    );
    let known: Vec<_> = host
        .frames
        .iter()
        .filter(|it| it["type"] != "never_seen_before" && it["subtype"] != "never_seen_before")
        .cloned()
        .collect();
    assert_eq!(known, run(Vec::new(), ALLOW, REFUND).frames);
}

#[test]
fn a_result_can_be_an_error() {
    let mut host = run(
        vec![Fault::ResultError("error_max_budget_usd".to_owned())],
        ALLOW,
        "script: say hi",
    );
    let result = &host.results()[0];
    assert_eq!(
        (&result["subtype"], &result["is_error"]),
        (&json!("error_max_budget_usd"), &json!(true))
    );
    assert_eq!(host.close(), Some(1));
}

#[test]
fn the_mirror_can_be_missing() {
    let host = run(vec![Fault::NoMirror], ALLOW, REFUND);
    assert_eq!(host.entries(), Vec::<Value>::new());
    assert_eq!(host.results().len(), 1);
}

/// Section 11: the rows of failing model calls.
#[test]
fn failing_model_calls_end_as_the_real_ones() {
    let end = |status, recovers| {
        let mut host = run(
            vec![Fault::ApiError {
                status,
                at_model_call: 1,
                recovers,
            }],
            ALLOW,
            "script: say hi",
        );
        let result = host.results().first().map(|it| {
            (
                it["is_error"].clone(),
                it["terminal_reason"].clone(),
                it["api_error_status"].clone(),
            )
        });
        let retries = host
            .frames
            .iter()
            .filter(|it| it["subtype"] == "api_retry")
            .count();
        (result, retries, host.close())
    };
    let error = |status: u16| Some((json!(true), json!("api_error"), json!(status)));
    assert_eq!(end(400, false), (error(400), 0, Some(1)));
    assert_eq!(end(429, false), (error(429), 10, Some(1)));
    assert_eq!(
        end(529, true),
        (
            Some((json!(false), json!("completed"), Value::Null)),
            1,
            Some(0)
        )
    );
    // It retries on and on, and the end of its input does not end it.
    assert_eq!(end(401, false), (None, 10, None));
}

/// The program reads its faults from JSON.
#[test]
fn faults_are_read_from_json() {
    let faults: Vec<Fault> = serde_json::from_str(
        r#"[{"die_after_sent":5},"repeat_hook",{"api_error":{"status":529,"at_model_call":1,"recovers":true}}]"#,
    )
    .unwrap();
    assert_eq!(
        faults,
        [
            Fault::DieAfterSent(5),
            Fault::RepeatHook,
            Fault::ApiError {
                status: 529,
                at_model_call: 1,
                recovers: true
            }
        ]
    );
}
