//! Cancelling, deadlines and settings, with a CLI underneath (rows N19, N35, N45).

use std::time::Duration;

use abide::client::{CloseMode, ResolveInterrupt, StartSession};
use abide::event::EventKind;
use abide::failure::FailureClass;
use abide::ids::{FlowType, SessionId, TurnId};
use abide::policy::{ToolEffect, ToolPolicies, ToolPolicy};
use abide::record::{CallStatus, EXPIRED_TEXT, MessageRole, ToolOutcome};
use abide::runner::GatedCallWait;
use abide::settings::SessionSettings;
use abide::spend::UsageLimit;
use abide::store::{InterruptFilter, SessionStatus};
use serde_json::json;

use super::Scenario;
use crate::support::{Cli, World};

pub(crate) const WISHES: &[Scenario] = &[
    Scenario {
        name: "cancelled while streaming",
        run: |it| Box::pin(cancelled_while_streaming(it)),
        is_central: true,
    },
    Scenario {
        name: "cancelled while a call waits live",
        run: |it| Box::pin(cancelled_while_a_call_waits(it, false)),
        is_central: true,
    },
    Scenario {
        name: "cancelled while a call is parked",
        run: |it| Box::pin(cancelled_while_a_call_waits(it, true)),
        is_central: false,
    },
    Scenario {
        name: "a deadline without a worker",
        run: |it| Box::pin(a_deadline_without_a_worker(it)),
        is_central: true,
    },
    Scenario {
        name: "approved with other arguments, live",
        run: |it| Box::pin(approved_with_other_arguments(it, false)),
        is_central: true,
    },
    Scenario {
        name: "approved with other arguments, parked",
        run: |it| Box::pin(approved_with_other_arguments(it, true)),
        is_central: true,
    },
    Scenario {
        name: "a command approved with another one, live",
        run: |it| Box::pin(a_command_approved_with_another(it, false)),
        is_central: true,
    },
    Scenario {
        name: "a command approved with another one, parked",
        run: |it| Box::pin(a_command_approved_with_another(it, true)),
        is_central: true,
    },
    Scenario {
        name: "arguments behind a view",
        run: |it| Box::pin(arguments_behind_a_view(it)),
        is_central: true,
    },
    Scenario {
        name: "asked by a rule",
        run: |it| Box::pin(asked_by_a_rule(it)),
        is_central: true,
    },
    Scenario {
        name: "another model in the next turn",
        run: |it| Box::pin(another_model_in_the_next_turn(it)),
        is_central: false,
    },
    Scenario {
        name: "another model while a turn runs",
        run: |it| Box::pin(another_model_while_a_turn_runs(it)),
        is_central: true,
    },
    Scenario {
        name: "a spend limit in the middle of a turn",
        run: |it| Box::pin(a_spend_limit_in_the_middle_of_a_turn(it)),
        is_central: true,
    },
    Scenario {
        name: "a fork on another branch",
        run: |it| Box::pin(a_fork_on_another_branch(it)),
        is_central: false,
    },
    Scenario {
        name: "closed while streaming",
        run: |it| Box::pin(closed_while_streaming(it)),
        is_central: false,
    },
];

pub(super) const REFUND: &str = r#"script: call refund {"order_id":"7"}"#;

/// No process waits for a person.
pub(super) async fn park_at_once(world: &mut World) {
    world.session_options.live_window = Duration::ZERO;
    world.shut_down().await;
    world.start_engine().await;
}

async fn cancel(world: &World, session: &SessionId) {
    let reason = Some("enough".to_owned());
    let client = world.client();
    let cancelled = client.cancel_turn(session, None, reason, None).await;
    assert!(!cancelled.expect("the cancel is taken").duplicate);
}

/// After a cancelled turn the next message is answered, and the model was told.
async fn check_next_turn(world: &World, session: &SessionId) {
    world.send(session, "script: say next").await;
    world.wait_for_turns(session, 2).await;
    let snapshot = world.snapshot(session).await;
    assert_eq!(snapshot.last_failure, None);
    assert_eq!(world.last_answer(session).await, "said: next");
    assert_eq!(snapshot.status, SessionStatus::Idle);
    if let Cli::Real { api, .. } = &world.cli {
        let requests = api.main_requests();
        let last = requests.last().expect("a request");
        let told = "[The user cancelled the previous turn: enough]";
        assert!(last.body.to_string().contains(told), "the model is told");
    }
}

/// §8: the CLI is interrupted in the stream; what people saw is kept and marked.
async fn cancelled_while_streaming(world: &mut World) {
    let session = world.start_session("cancel", "script: stall middle").await;
    let seen = world.wait_for_live_text(&session).await;
    cancel(world, &session).await;
    world.wait_for_turns(&session, 1).await;
    let conversation = world.conversation(&session).await;
    let (role, partial) = &conversation[1];
    assert_eq!(*role, MessageRole::Partial);
    assert!(partial.starts_with(&seen), "{partial} {seen}");
    assert_eq!(conversation[2].0, MessageRole::Note);
    world.open_gate("middle");
    check_next_turn(world, &session).await;
}

async fn cancelled_while_a_call_waits(world: &mut World, parked: bool) {
    if parked {
        park_at_once(world).await;
    }
    let session = world.start_session("cancel", REFUND).await;
    let open = world.wait_for_interrupt(&session).await;
    if parked {
        world.wait_until_parked(&session).await;
    }
    cancel(world, &session).await;
    world.wait_for_turns(&session, 1).await;
    let outcome = world.outcome(&session, &open).await;
    assert_eq!(outcome.status(), CallStatus::Skipped);
    check_next_turn(world, &session).await;
    assert_eq!(world.effects.lines(), Vec::<String>::new());
}

/// N35: the deadline passes while nobody lives who could notice; the next worker tells the model.
async fn a_deadline_without_a_worker(world: &mut World) {
    world.session_options.interrupt_deadline = Some(Duration::from_millis(1));
    world.session_options.live_window = Duration::ZERO;
    world.shut_down().await;
    world.start_engine().await;
    let session = world.start_session("late", REFUND).await;
    let open = world
        .wait_for(&session, |it| {
            matches!(it.kind, EventKind::InterruptRequested { .. })
        })
        .await;
    world.crash();
    let EventKind::InterruptRequested { expires_at, .. } = open.kind else {
        panic!("{open:?}");
    };
    assert!(expires_at.is_some());
    world.start_engine().await;
    world.wait_for_turns(&session, 1).await;
    assert_eq!(
        world.last_answer(&session).await,
        format!("refund: {EXPIRED_TEXT}")
    );
    assert_eq!(world.effects.lines(), Vec::<String>::new());
}

/// N45: the process of the turn before is not used for another model.
async fn another_model_in_the_next_turn(world: &mut World) {
    let session = world.start_session("models", "script: say one").await;
    world.wait_for_turns(&session, 1).await;
    let settings = SessionSettings {
        model: Some("claude-opus-5-5".to_owned()),
        ..SessionSettings::default()
    };
    let client = world.client();
    let changed = client.update_settings(&session, 0, settings, None);
    changed.await.expect("the settings are taken");
    world.send(&session, "script: say two").await;
    world.wait_for_turns(&session, 2).await;
    assert_eq!(world.last_answer(&session).await, "said: two");
    assert_eq!(world.starts(), 2);
    if let Cli::Real { api, .. } = &world.cli {
        let models = api.main_requests();
        let models: Vec<_> = models.iter().map(|it| it.body["model"].clone()).collect();
        assert_eq!(models, ["claude-sonnet-5", "claude-opus-5-5"]);
    }
}

/// N45: the turn that runs keeps its model, in every request; the next turn has the other one.
async fn another_model_while_a_turn_runs(world: &mut World) {
    let script = r#"script: call lookup {"order_id":"7"} ;; pause middle"#;
    let session = world.start_session("models", script).await;
    world.effects.wait_for(1).await;
    let settings = SessionSettings {
        model: Some("claude-opus-5-5".to_owned()),
        ..SessionSettings::default()
    };
    let client = world.client();
    let changed = client.update_settings(&session, 0, settings, None);
    changed.await.expect("the settings are taken");
    world.open_gate("middle");
    world.wait_for_turns(&session, 1).await;
    world.send(&session, "script: say two").await;
    world.wait_for_turns(&session, 2).await;
    assert_eq!(world.last_answer(&session).await, "said: two");
    if let Cli::Real { api, .. } = &world.cli {
        let models = api.main_requests();
        let models: Vec<_> = models.iter().map(|it| it.body["model"].clone()).collect();
        let (old, new) = ("claude-sonnet-5", "claude-opus-5-5");
        assert_eq!(models, [old, old, new]);
    }
}

/// N42: the limit is crossed by the second of three replies: what ran stays, the model is not asked a
/// third time, the process ends, and the session goes on.
async fn a_spend_limit_in_the_middle_of_a_turn(world: &mut World) {
    let mut limit = UsageLimit::default();
    limit.turn.model_calls = Some(2);
    world.spend_limit = Some(limit);
    world.shut_down().await;
    world.start_engine().await;
    let [one, two, three] = [1, 2, 3].map(|it| format!(r#"lookup {{"order_id":"{it}"}}"#));
    let script = format!("script: call {one} ;; then {two} ;; then {three}");
    let session = world.start_session("limit", &script).await;
    world.wait_for_turns(&session, 1).await;
    let failure = world.snapshot(&session).await.last_failure;
    if matches!(world.wait, GatedCallWait::Native) {
        // It has no checkpoints: the limit is asked before each segment alone.
        assert_eq!(failure, None);
        assert_eq!(world.effects.lines().len(), 3);
        return;
    }
    let failure = failure.expect("the turn failed");
    assert_eq!(failure.class, FailureClass::SpendLimit);
    assert_eq!(failure.detail, "the model calls of the turn are used up");
    world.wait_until_no_cli().await;
    assert_eq!(world.starts(), 1);
    assert_eq!(world.effects.lines(), ["lookup 1", "lookup 2"]);
    if let Cli::Real { api, .. } = &world.cli {
        assert_eq!(api.main_requests().len(), 2);
    }
    assert_eq!(world.snapshot(&session).await.status, SessionStatus::Idle);
    world.send(&session, "script: recall").await;
    world.wait_for_turns(&session, 2).await;
    let answer = world.last_answer(&session).await;
    let told = "[The previous turn failed (spend_limit) and its answer is lost.]";
    assert!(answer.contains(told), "{answer}");
    assert_eq!(world.starts(), 2);
}

async fn closed_while_streaming(world: &mut World) {
    let session = world.start_session("close", "script: stall middle").await;
    world.wait_for_live_text(&session).await;
    world.send(&session, "script: say never").await;
    let client = world.client();
    let closed = client.close_session(&session, CloseMode::Cancel, None);
    closed.await.expect("the close is taken");
    world
        .wait_for(&session, |it| {
            matches!(it.kind, EventKind::SessionEnded { .. })
        })
        .await;
    world.open_gate("middle");
    assert_eq!(world.snapshot(&session).await.status, SessionStatus::Ended);
}

/// G4: the handler gets what the person wrote, and the model is told.
async fn approved_with_other_arguments(world: &mut World, parked: bool) {
    if parked {
        park_at_once(world).await;
    }
    let session = world.start_session("changed", REFUND).await;
    let open = world.wait_for_interrupt(&session).await;
    if parked {
        world.wait_until_parked(&session).await;
    }
    let answer = ResolveInterrupt::approve(open.interrupt_id)
        .for_digest(open.digest)
        .with_changed_arguments(r#"{"order_id":"8"}"#);
    let client = world.client();
    let resolved = client.resolve_interrupt(&session, answer).await;
    assert!(resolved.expect("the answer is taken"));
    world.wait_for_turns(&session, 1).await;
    let told = "[A person changed the input of this call. It ran with: {\"order_id\":\"8\"}]";
    let answer = world.last_answer(&session).await;
    assert_eq!(answer, format!("refund: {told}\norder 8 is refunded"));
    let effects = world.effects.lines();
    assert_eq!(effects.len(), 1);
    assert!(effects[0].starts_with("refund 8"), "{effects:?}");
}

/// G4: the CLI runs the command that the person wrote, once; the record has it, and the model is told.
async fn a_command_approved_with_another(world: &mut World, parked: bool) {
    if parked {
        park_at_once(world).await;
    }
    let session =
        (world.start_session("command", r#"script: call Bash {"command":"false"}"#)).await;
    let open = world.wait_for_interrupt(&session).await;
    if parked {
        world.wait_until_parked(&session).await;
    }
    let answer = ResolveInterrupt::approve(open.interrupt_id.clone())
        .for_digest(open.digest.clone())
        .with_changed_arguments(format!(r#"{{"command":"{BASH_COMMAND}; cat marker"}}"#));
    let client = world.client();
    let resolved = client.resolve_interrupt(&session, answer).await;
    assert!(resolved.expect("the answer is taken"));
    world.wait_for_turns(&session, 1).await;
    assert_eq!(world.bash_runs(), 1);
    let ToolOutcome::Succeeded { output } = world.outcome(&session, &open).await else {
        panic!("the call succeeded");
    };
    let note = "[A person changed the input of this call. It ran with: {\"command\":\"echo ran >> marker; cat marker\"}]\n";
    let ran = output.strip_prefix(note).expect("the record tells of it");
    assert_eq!(world.last_answer(&session).await, format!("Bash: {ran}"));
    match &world.cli {
        Cli::Fake { handle, .. } => {
            let ran = handle.effects();
            assert!(format!("{ran:?}").contains("cat marker"), "{ran:?}");
        }
        Cli::Real { api, .. } => {
            let asked = api.main_requests();
            let last = asked.last().expect("a request").body.to_string();
            assert_eq!(last.matches("A person changed the input").count(), 1);
        }
    }
}

/// G10: people see what the application makes of the arguments, everywhere; what runs is the whole of
/// them. What a person puts in their place is shown nowhere.
async fn arguments_behind_a_view(world: &mut World) {
    world.view = Some(|tool, _| json!({"of": tool}));
    world.shut_down().await;
    world.start_engine().await;
    let session = world.start_session("view", REFUND).await;
    for changed in [None, Some(r#"{"order_id":"8"}"#)] {
        let open = world.wait_for_interrupt(&session).await;
        assert_eq!(open.arguments, r#"{"of":"refund"}"#);
        let client = world.client();
        let filter = InterruptFilter::default();
        let inbox = client.list_interrupts(&filter, 10).await;
        let inbox = inbox.expect("the inbox is read").rows;
        assert_eq!(inbox[0].interrupt.arguments_preview, r#"{"of":"refund"}"#);
        let mut answer = ResolveInterrupt::approve(open.interrupt_id).for_digest(open.digest);
        if let Some(changed) = changed {
            answer = answer.with_changed_arguments(changed);
        }
        let resolved = client.resolve_interrupt(&session, answer).await;
        assert!(resolved.expect("the answer is taken"));
        world.wait_for_turns(&session, 1).await;
        if changed.is_none() {
            world.send(&session, REFUND).await;
        }
    }
    world.wait_for_turns(&session, 2).await;
    let effects = world.effects.lines();
    let ran: Vec<&str> = effects.iter().filter_map(|it| it.get(..8)).collect();
    assert_eq!(ran, ["refund 7", "refund 8"]);
    let told = "refund: [A person changed the input of this call.]\norder 8 is refunded";
    assert_eq!(world.last_answer(&session).await, told);
}

/// F01, G32: a person is asked about the calls that a rule names, and about no others: an
/// unclassified write and a command run unasked, and a read waits. A new engine asks no rule about
/// a recorded call.
async fn asked_by_a_rule(world: &mut World) {
    world.policies = ToolPolicies::new().with("Read", ToolPolicy::new(ToolEffect::Read));
    world.rules = vec![
        ("refund", |call| call.input["order_id"] == "100"),
        ("lookup", |call| call.input["order_id"] == "9"),
        ("Bash", |call| call.input["command"] != BASH_COMMAND),
        ("Read", |call| {
            // The CLI makes the path absolute before it asks.
            let path = call.input["file_path"].as_str().unwrap_or_default();
            !path.ends_with("notes")
        }),
    ];
    world.shut_down().await;
    world.start_engine().await;
    std::fs::write(world.work_path("notes"), "buy milk").expect("a file");
    let refund = r#"script: call refund {"order_id":"7"}"#;
    let session = world.start_session("ruled", refund).await;
    world.wait_for_turns(&session, 1).await;
    world
        .send(
            &session,
            &format!(r#"script: call Bash {{"command":"{BASH_COMMAND}"}}"#),
        )
        .await;
    world.wait_for_turns(&session, 2).await;
    assert_eq!(world.bash_runs(), 1);
    let reads = r#"script: call lookup {"order_id":"8"} && Read {"file_path":"notes"}"#;
    world.send(&session, reads).await;
    world.wait_for_turns(&session, 3).await;
    let answer = world.last_answer(&session).await;
    assert!(!answer.contains("did not run"), "{answer}");
    if let Cli::Real { .. } = &world.cli {
        assert!(answer.contains("buy milk"), "{answer}");
    }
    assert_eq!(world.effects.lines().len(), 2);

    let asked = r#"script: call lookup {"order_id":"9"}"#;
    world.send(&session, asked).await;
    let open = world.wait_for_interrupt(&session).await;
    assert_eq!(
        (open.tool_name.as_str(), open.effect),
        ("lookup", ToolEffect::Read)
    );
    world.rules = vec![
        ("lookup", |_| false),
        ("refund", |_| panic!("it cannot say")),
    ];
    world.shut_down().await;
    world.start_engine().await;
    world.approve(&session).await;
    world.wait_for_turns(&session, 4).await;
    assert_eq!(world.last_answer(&session).await, "lookup: order 9 is fine");

    world.send(&session, REFUND).await;
    world.wait_for_interrupt(&session).await;
    world.reject(&session, "not today").await;
    world.wait_for_turns(&session, 5).await;
    assert_eq!(world.effects.lines().len(), 3);
}

const BASH_COMMAND: &str = "echo ran >> marker";

/// The CLI resumes the conversation of the turn that was named, in both sessions.
async fn a_fork_on_another_branch(world: &mut World) {
    let session = world.start_session("trunk", "script: say one").await;
    world.wait_for_turns(&session, 1).await;
    world.send(&session, "script: say two").await;
    world.wait_for_turns(&session, 2).await;
    let fork = SessionId::new("branch").expect("an id");
    let flow_type = FlowType::new("Test").expect("a flow type");
    let start = StartSession::new(fork.clone(), flow_type).with_initial_message("script: recall");
    let client = world.client();
    let forked = client.fork_session(&session, TurnId::new(1), start).await;
    assert!(forked.expect("it is forked"));
    world.wait_for_turns(&fork, 1).await;
    let answer = world.last_answer(&fork).await;
    assert!(
        answer.contains("one") && !answer.contains("two"),
        "{answer}"
    );
    world.send(&session, "script: recall").await;
    world.wait_for_turns(&session, 3).await;
    assert!(world.last_answer(&session).await.contains("two"));
}
