//! What the live path rests on (spec/cli-protocol.md 10 and 17), seen on the fake CLI and on both
//! pinned ones: each fact is one test on the three of them.

/// Looks at a fact on the fake CLI and on both pinned CLIs.
macro_rules! on_each_cli {
    ($($(#[$doc:meta])* $name:ident with $script:expr;)*) => {
        mod fake {
            use super::*;
            $($(#[$doc])* #[tokio::test] async fn $name() {
                let cli = Cli::fake();
                super::$name(&cli).await;
                cli.assert_clean();
            })*
        }
        mod cli_2_1_316 {
            use super::*;
            $($(#[$doc])* #[tokio::test] async fn $name() {
                let Some(cli) = Cli::real("2.1.316", $script).await else { return };
                super::$name(&cli).await;
                cli.assert_clean();
            })*
        }
        mod cli_2_1_332 {
            use super::*;
            $($(#[$doc])* #[tokio::test] async fn $name() {
                let Some(cli) = Cli::real("2.1.332", $script).await else { return };
                super::$name(&cli).await;
                cli.assert_clean();
            })*
        }
    };
}

mod broken;
mod host;

use std::time::Duration;

use abide::testing::messages_api::ModelScript;
use abide::transport::CliExit;
use serde_json::{Value, json};

use broken::{
    a_broken_stream_without_a_call_is_asked_again, a_complete_call_of_a_broken_stream_stays,
    broken_after_a_call, broken_before_a_call,
};
use host::{Cli, Host, INTERRUPTED_TURN};

on_each_cli! {
    /// 17l: a reply with calls is followed by PostToolBatch, and the model is not asked again before
    /// the answer; it does not matter who decided about the calls, nor how.
    post_tool_batch_follows_every_reply_with_calls with ModelScript::commands();
    /// 17l: a sub-agent's replies have their own, which name the agent.
    post_tool_batch_names_the_sub_agent with ModelScript::commands();
    /// 17d, 17e, 17f: what a process does by itself about a turn that another one left.
    a_turn_goes_on_in_another_process with ModelScript::commands();
    /// G4: an allow changes what a tool of the CLI runs with and tells the model of it, also for a call
    /// that another process left.
    an_allow_carries_an_input_and_a_note with ModelScript::commands();
    /// 17i: SIGTERM while a hook is open.
    sigterm_ends_a_process_that_waits with ModelScript::commands();
    /// Section 4: a message whose id is in the transcript is over already, and nobody is asked.
    a_message_is_not_taken_twice with ModelScript::commands();
    /// A process takes one message after the other: each is a turn with its own usage.
    one_process_has_several_turns with ModelScript::commands();
    /// 17j: a message that comes while a hook is open becomes part of the turn.
    a_message_is_folded_into_the_turn with ModelScript::commands();
    /// Section 5: an allowed call runs, and its result is there, before its reply is complete.
    a_call_runs_before_its_reply_is_complete with ModelScript::commands();
    /// Section 10: what was complete when a stream broke stays.
    a_complete_call_of_a_broken_stream_stays with broken_after_a_call();
    /// Section 10: without a complete call the model is asked again.
    a_broken_stream_without_a_call_is_asked_again with broken_before_a_call();
}

const REFUND: &str = r#"script: call refund {"n":1}"#;
const TWO_CALLS: &str = r#"script: call refund {"n":1} && call Bash {"command":"echo two"}"#;

async fn post_tool_batch_follows_every_reply_with_calls(cli: &Cli) {
    let unknown = "script: call NoSuchTool {}";
    for (prompt, decision, tools) in [
        (REFUND, "allow", &["mcp__tools__refund"][..]),
        (TWO_CALLS, "deny", &["mcp__tools__refund", "Bash"]),
        (unknown, "allow", &["NoSuchTool"]),
        ("script: say hi", "allow", &[]),
    ] {
        let before = cli.model_requests();
        let mut host = cli.start().await;
        host.prompt(prompt);
        if !tools.is_empty() {
            for _ in tools.iter().filter(|it| **it != "NoSuchTool") {
                host.hook("PreToolUse").await;
                host.answer(decision);
            }
            let batch = host.hook("PostToolBatch").await;
            let calls = batch["tool_calls"].as_array().expect("calls");
            let named: Vec<&str> = calls
                .iter()
                .filter_map(|it| it["tool_name"].as_str())
                .collect();
            assert_eq!(named, tools, "{prompt}");
            assert!(
                calls.iter().all(|it| !it["tool_response"].is_null()),
                "{prompt}"
            );
            assert!(batch["agent_id"].is_null());
            // The results are there, and nobody asks the model.
            assert_eq!(
                host.names()
                    .iter()
                    .filter(|it| *it == "tool_result")
                    .count(),
                tools.len()
            );
            host.round_trip().await;
            assert_eq!(cli.model_requests() - before, 1, "{prompt}");
        }
        let result = host.result("allow").await;
        assert_eq!(result["terminal_reason"], "completed");
        let batches = host
            .names()
            .iter()
            .filter(|it| *it == "PostToolBatch")
            .count();
        assert_eq!(batches, usize::from(!tools.is_empty()), "{prompt}");
    }
}

async fn post_tool_batch_names_the_sub_agent(cli: &Cli) {
    let task = json!({
        "description": "a task", "subagent_type": "general-purpose",
        "prompt": r#"script: call lookup {"n":1}"#,
    });
    let mut host = cli.start().await;
    host.prompt(&format!("script: call Agent {task}"));
    host.hook("PreToolUse").await;
    host.answer("allow");
    let inner = host.hook("PreToolUse").await;
    host.answer("allow");
    let batch = host.hook("PostToolBatch").await;
    assert!(batch["agent_id"].is_string());
    assert_eq!(batch["agent_id"], inner["agent_id"]);
    host.round_trip().await;
    assert_eq!(cli.model_requests(), 2);
    host.answer("");
    let batch = host.hook("PostToolBatch").await;
    assert!(batch["agent_id"].is_null());
    host.round_trip().await;
    assert_eq!(cli.model_requests(), 3);
    assert_eq!(host.result("allow").await["terminal_reason"], "completed");
}

/// The transcript of a process that was ended while it asked about the first call of this script.
async fn left_at_the_first_call(cli: &Cli, script: &str) -> Vec<Value> {
    let mut host = cli.start().await;
    host.prompt(script);
    host.hook("PreToolUse").await;
    host.until("the mirrored reply", |it| {
        it["type"] == "transcript_mirror" && it.to_string().contains("tool_use")
    })
    .await;
    host.chain()
}

/// The entry that holds this call of the reply, and the call.
fn call_of(entries: &[Value], tool: &str) -> (Value, Value) {
    let is_it = |it: &&Value| it["message"]["content"][0]["name"] == tool;
    let entry = entries.iter().find(is_it).expect("the call");
    (
        entry["uuid"].clone(),
        entry["message"]["content"][0].clone(),
    )
}

/// Adds an entry behind the last one, as a host writes it.
fn append(entries: &mut Vec<Value>, uuid: &str, own: Value) {
    let last = entries.last().expect("an entry");
    let mut entry = json!({"parentUuid": last["uuid"], "isSidechain": false, "uuid": uuid});
    for name in [
        "timestamp",
        "userType",
        "entrypoint",
        "cwd",
        "sessionId",
        "version",
        "gitBranch",
    ] {
        entry[name] = last[name].clone();
    }
    let Value::Object(own) = own else { return };
    for (name, value) in own {
        entry[name] = value;
    }
    entries.push(entry);
}

fn append_result(entries: &mut Vec<Value>, tool: &str, uuid: &str) {
    let (assistant, call) = call_of(entries, tool);
    let content = json!([{"type": "text", "text": "recorded"}]);
    let block = json!({"tool_use_id": call["id"], "type": "tool_result", "content": content});
    append(
        entries,
        uuid,
        json!({
            "type": "user", "message": {"role": "user", "content": [block]},
            "sourceToolAssistantUUID": assistant,
        }),
    );
}

fn append_deferral(entries: &mut Vec<Value>, tool: &str, uuid: &str) {
    let (_, call) = call_of(entries, tool);
    append(
        entries,
        uuid,
        json!({"type": "attachment", "attachment": {
            "type": "hook_deferred_tool", "toolUseID": call["id"], "toolName": call["name"],
            "toolInput": call["input"], "hookName": "settings", "hookEvent": "PreToolUse",
            "permissionMode": "default",
        }}),
    );
}

async fn a_turn_goes_on_in_another_process(cli: &Cli) {
    const FIRST: &str = "bbbbbbbb-0000-4000-8000-000000000001";
    const SECOND: &str = "bbbbbbbb-0000-4000-8000-000000000002";
    let left = left_at_the_first_call(cli, TWO_CALLS).await;
    let prompt = left
        .iter()
        .find(|it| it["type"] == "user")
        .expect("the prompt")["uuid"]
        .clone();

    // d: all results are there.
    let mut entries = left.clone();
    append_result(&mut entries, "mcp__tools__refund", FIRST);
    append_result(&mut entries, "Bash", SECOND);
    let before = cli.model_requests();
    let mut host = cli.resume(&entries, &[INTERRUPTED_TURN]).await;
    let result = host.result("deny").await;
    assert_eq!(result["resume_reason"], "interrupted_turn");
    assert_eq!(result["user_message_uuids"], json!([prompt]));
    assert_eq!(result["result"], "refund: recorded\nBash: recorded");
    assert_eq!(
        host.names(),
        ["init", "message_start", "text", "message_stop", "result"]
    );
    assert_eq!(cli.model_requests() - before, 1);

    // Without the variable the process waits for a message; the calls are not run again.
    let mut host = cli.resume(&entries, &[]).await;
    host.round_trip().await;
    assert_eq!(host.names(), [] as [&str; 0]);
    host.prompt("script: say next");
    assert_eq!(host.result("deny").await["result"], "said: next");
    assert_eq!(
        host.names(),
        ["init", "message_start", "text", "message_stop", "result"]
    );

    // e: one call is to run. Its result has no PostToolBatch: the model is asked at once.
    let mut entries = left.clone();
    append_result(&mut entries, "mcp__tools__refund", FIRST);
    append_deferral(&mut entries, "Bash", SECOND);
    let before = cli.model_requests();
    let mut host = cli.resume(&entries, &[]).await;
    let result = host.result("allow").await;
    assert_eq!(result["result"], "refund: recorded\nBash: two");
    assert!(result["resume_reason"].is_null());
    let names = [
        "PreToolUse",
        "tool_result",
        "init",
        "message_start",
        "text",
        "message_stop",
        "result",
    ];
    assert_eq!(host.names(), names);
    assert_eq!(cli.model_requests() - before, 1);

    // f: cut after the prompt, everything is done again.
    let entries: Vec<Value> = left
        .into_iter()
        .filter(|it| it["type"] != "assistant")
        .collect();
    let before = cli.model_requests();
    let mut host = cli.resume(&entries, &[INTERRUPTED_TURN]).await;
    let result = host.result("allow").await;
    assert_eq!(result["resume_reason"], "interrupted_turn");
    assert_eq!(result["user_message_uuids"], json!([prompt]));
    assert_eq!(result["result"], "refund: refund ran\nBash: two");
    assert_eq!(cli.model_requests() - before, 2);
    assert!(host.names().contains(&"PostToolBatch".to_owned()));
}

async fn an_allow_carries_an_input_and_a_note(cli: &Cli) {
    const NOTE: &str = "a person changed it";
    const ONE: &str = r#"script: call Bash {"command":"echo one"}"#;
    let changed = || json!({"updatedInput": {"command": "echo two"}, "additionalContext": NOTE});
    let check_told = || assert!(cli.told_last(NOTE).is_none_or(|it| it == 1));
    let mut host = cli.start().await;
    host.prompt(ONE);
    host.hook("PreToolUse").await;
    host.answer_with("allow", changed());
    assert_eq!(host.result("allow").await["result"], "Bash: two");
    check_told();
    let chain = host.chain();
    let is_note = |it: &&Value| it["attachment"]["type"] == "hook_additional_context";
    let note = chain.iter().find(is_note).expect("the note is mirrored");
    assert_eq!(note["attachment"]["content"], json!([NOTE]));

    // A later process tells it again, although the result does not stand behind it.
    let mut host = cli.resume(&chain, &[]).await;
    host.prompt("script: say next");
    assert_eq!(host.result("deny").await["result"], "said: next");
    check_told();
    let is_result = |it: &Value| it["message"]["content"][0]["type"] == "tool_result";
    let at = chain.iter().position(is_result).expect("the result");
    let mut host = cli.resume(&chain[..=at], &[INTERRUPTED_TURN]).await;
    assert_eq!(host.result("deny").await["result"], "Bash: two");
    check_told();

    let mut entries = left_at_the_first_call(cli, ONE).await;
    append_deferral(&mut entries, "Bash", "bbbbbbbb-0000-4000-8000-000000000001");
    let mut host = cli.resume(&entries, &[]).await;
    host.hook("PreToolUse").await;
    host.answer_with("allow", changed());
    assert_eq!(host.result("allow").await["result"], "Bash: two");
    check_told();
}

async fn sigterm_ends_a_process_that_waits(cli: &Cli) {
    let mut host = cli.start().await;
    host.prompt(REFUND);
    host.hook("PreToolUse").await;
    let exit = match host.process.process_id() {
        // A shutdown throws away what is still said: see it.
        Some(pid) => {
            let pid = pid.try_into().ok().and_then(rustix::process::Pid::from_raw);
            rustix::process::kill_process(pid.expect("a pid"), rustix::process::Signal::TERM)
                .expect("the CLI is ours");
            host.end().await
        }
        None => host.process.shutdown(Duration::ZERO).await,
    };
    assert_eq!(exit, CliExit::Exited(143));
    let after = [
        "init",
        "message_start",
        "tool_use",
        "PreToolUse",
        "message_stop",
    ];
    let names = host.names();
    assert!(
        after.starts_with(&names.iter().map(String::as_str).collect::<Vec<_>>()),
        "{names:?}"
    );
    assert_eq!((cli.model_requests(), host.tool_calls()), (1, 0));
}

async fn a_message_is_not_taken_twice(cli: &Cli) {
    let mut host = cli.start().await;
    let taken = host.prompt("script: say one");
    host.result("allow").await;
    let mut again = cli.resume(&host.chain(), &[]).await;
    let is_over = |it: &Value| it["command_uuid"] == taken && it["state"] == "completed";
    for host in [&mut host, &mut again] {
        let before = host.frames.len();
        host.prompt_as(&taken, "script: say two");
        host.until("the message is over", is_over).await;
        host.round_trip().await;
        let said = &host.frames[before..];
        assert!(said.iter().all(|it| it["type"] != "result"));
        host.prompt("script: say three");
        assert_eq!(host.result("allow").await["result"], "said: three");
    }
    assert_eq!(cli.model_requests(), 3);
}

async fn one_process_has_several_turns(cli: &Cli) {
    let mut host = cli.start().await;
    let prompts = ["script: say one", REFUND, "script: recall"];
    let mut results = Vec::new();
    for prompt in prompts {
        let uuid = host.prompt(prompt);
        let result = host.result("allow").await;
        assert_eq!(result["user_message_uuids"], json!([uuid]));
        results.push(result);
    }
    let texts: Vec<&str> = results
        .iter()
        .filter_map(|it| it["result"].as_str())
        .collect();
    let recalled = format!("recalled: script: say one | {REFUND}");
    assert_eq!(texts, ["said: one", "refund: refund ran", &recalled]);
    let tokens = |it: &Value| -> (u64, u64) {
        let of = |usage: &Value| {
            let models = usage.as_object().expect("models").values();
            models
                .filter_map(|it| it["inputTokens"].as_u64())
                .sum::<u64>()
        };
        (
            of(&it["model_usage_since_last_result"]),
            of(&it["modelUsage"]),
        )
    };
    // Each request has eleven of them.
    let used: Vec<(u64, u64)> = results.iter().map(tokens).collect();
    assert_eq!(used, [(11, 11), (22, 33), (11, 44)]);
    let indexes: Vec<&Value> = results.iter().map(|it| &it["result_index"]).collect();
    assert_eq!(indexes, [&json!(0), &json!(1), &json!(2)]);
    let inits = host.names().iter().filter(|it| *it == "init").count();
    assert_eq!(inits, 3);
    host.process.close_input();
    assert_eq!(host.end().await, CliExit::Exited(0));
    // A message hangs on what was said last; the entry that closes a turn may be an attachment.
    let chain = host.chain();
    let mut known: Vec<&Value> = Vec::new();
    for entry in &chain {
        assert!(entry["parentUuid"].is_null() == known.is_empty());
        assert!(known.is_empty() || known.contains(&&entry["parentUuid"]));
        known.push(&entry["uuid"]);
    }
}

async fn a_message_is_folded_into_the_turn(cli: &Cli) {
    let mut host = cli.start().await;
    let first = host.prompt(REFUND);
    host.hook("PreToolUse").await;
    let second = host.prompt("be brief");
    host.until("the message is queued", |it| {
        it["type"] == "command_lifecycle" && it["command_uuid"] == second && it["state"] == "queued"
    })
    .await;
    let result = host.result("allow").await;
    assert_eq!(result["result"], "refund: refund ran\nsteered: be brief");
    assert_eq!(result["user_message_uuids"], json!([first, second]));
    assert_eq!(cli.model_requests(), 2);
    let chain = host.chain();
    let at = |fits: &dyn Fn(&Value) -> bool| chain.iter().position(fits).expect("an entry");
    let queued = at(&|it| it["attachment"]["type"] == "queued_command");
    assert!(queued > at(&|it| it["message"]["content"][0]["type"] == "tool_result"));
}

async fn a_call_runs_before_its_reply_is_complete(cli: &Cli) {
    let mut host = cli.start().await;
    host.prompt(r#"script: call lookup {"n":1} && call refund {"n":2} ;; hold g"#);
    host.hook("PreToolUse").await;
    host.answer("allow");
    host.until("its result", |it| it["type"] == "user").await;
    let begun = [
        "init",
        "message_start",
        "tool_use",
        "PreToolUse",
        "tools/call",
        "tool_result",
    ];
    assert_eq!(host.names(), begun);
    // Nothing of a reply is in the transcript before it is complete.
    host.round_trip().await;
    let kind = |it: &Value| {
        it["message"]["content"][0]["type"]
            .as_str()
            .map(str::to_owned)
    };
    let kinds = |host: &Host| host.chain().iter().filter_map(kind).collect::<Vec<_>>();
    // The mirror lags by some 100 ms.
    while kinds(&host).is_empty() {
        let is_mirror = |it: &Value| it["type"] == "transcript_mirror";
        host.until("the mirrored prompt", is_mirror).await;
    }
    assert_eq!(kinds(&host), ["text"]);
    cli.open_gate("g");
    let result = host.result("allow").await;
    assert_eq!(result["result"], "lookup: lookup ran\nrefund: refund ran");
    assert_eq!(
        kinds(&host),
        [
            "text",
            "tool_use",
            "tool_result",
            "tool_use",
            "tool_result",
            "text"
        ]
    );
    // The entries stand in the order in which things were said.
    let chain = host.chain();
    let of = |block: &str, nth: usize| {
        let mut found = chain
            .iter()
            .filter(|it| it["message"]["content"][0]["type"] == block);
        found.nth(nth).expect("an entry")
    };
    assert_eq!(
        of("tool_use", 1)["parentUuid"],
        of("tool_result", 0)["uuid"]
    );
}
