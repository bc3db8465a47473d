//! What a session does, told once and run on both: the fake CLI and the real one (M01, M16).

#![expect(
    clippy::needless_pass_by_ref_mut,
    reason = "all scenarios have one shape, and some restart the engine"
)]

mod questions;
mod steering;
mod wishes;

use std::future::Future;
use std::pin::Pin;

use abide::failure::FailureClass;
use abide::record::{MessageRole, OUTCOME_UNKNOWN_TEXT, ToolOutcome};
use abide::runner::GatedCallWait;
use abide::store::SessionStatus;

use crate::support::World;

use questions::QUESTIONS;
use steering::STEERING;
use wishes::WISHES;

/// A scenario by its name.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) run: for<'a> fn(&'a mut World) -> Pin<Box<dyn Future<Output = ()> + 'a>>,
    /// Also run on the second pinned CLI.
    pub(crate) is_central: bool,
}

const ALL: &[Scenario] = &[
    Scenario {
        name: "a plain turn",
        run: |it| Box::pin(a_plain_turn(it)),
        is_central: true,
    },
    Scenario {
        name: "an inline read",
        run: |it| Box::pin(an_inline_read(it)),
        is_central: false,
    },
    Scenario {
        name: "a second turn elsewhere",
        run: |it| Box::pin(a_second_turn_elsewhere(it)),
        is_central: true,
    },
    Scenario {
        name: "an approved write",
        run: |it| Box::pin(an_approved_write(it)),
        is_central: true,
    },
    Scenario {
        name: "a rejected write",
        run: |it| Box::pin(a_rejected_write(it)),
        is_central: true,
    },
    Scenario {
        name: "an idempotent write",
        run: |it| Box::pin(an_idempotent_write(it)),
        is_central: false,
    },
    Scenario {
        name: "a flaky write",
        run: |it| Box::pin(a_flaky_write(it)),
        is_central: false,
    },
    Scenario {
        name: "a read and a write",
        run: |it| Box::pin(a_read_and_a_write(it)),
        is_central: false,
    },
    Scenario {
        name: "two writes",
        run: |it| Box::pin(two_writes(it)),
        is_central: true,
    },
    Scenario {
        name: "an approved bash",
        run: |it| Box::pin(an_approved_bash(it)),
        is_central: true,
    },
    Scenario {
        name: "a rejected bash",
        run: |it| Box::pin(a_rejected_bash(it)),
        is_central: true,
    },
    Scenario {
        name: "a failing tool",
        run: |it| Box::pin(a_failing_tool(it)),
        is_central: false,
    },
    Scenario {
        name: "a panicking tool",
        run: |it| Box::pin(a_panicking_tool(it)),
        is_central: false,
    },
    Scenario {
        name: "a hanging tool",
        run: |it| Box::pin(a_hanging_tool(it)),
        is_central: false,
    },
    Scenario {
        name: "wrong arguments",
        run: |it| Box::pin(wrong_arguments(it)),
        is_central: false,
    },
    Scenario {
        name: "a parked session",
        run: |it| Box::pin(a_parked_session(it)),
        is_central: false,
    },
    Scenario {
        name: "three messages",
        run: |it| Box::pin(three_messages(it)),
        is_central: false,
    },
];

/// Returns every scenario.
pub(crate) fn all() -> impl Iterator<Item = &'static Scenario> {
    ALL.iter().chain(WISHES).chain(STEERING).chain(QUESTIONS)
}

/// A01, I19: an answer, its usage, nothing pending.
async fn a_plain_turn(world: &mut World) {
    let session = world.start_session("plain", "script: say hello").await;
    world.wait_for_turns(&session, 1).await;
    assert_eq!(
        world.conversation(&session).await,
        [
            (MessageRole::User, "script: say hello".to_owned()),
            (MessageRole::Assistant, "said: hello".to_owned())
        ]
    );
    let snapshot = world.snapshot(&session).await;
    assert_eq!(snapshot.status, SessionStatus::Idle);
    assert_eq!(snapshot.pending_interrupts, []);
    assert_eq!(snapshot.usage.model_calls, 1);
    assert!(snapshot.usage.input_tokens > 0 && snapshot.usage.output_tokens > 0);
}

/// B09, E05: a read runs inside the segment, without a record and without a person.
async fn an_inline_read(world: &mut World) {
    let session = world
        .start_session("read", r#"script: call lookup {"order_id":"7"}"#)
        .await;
    world.wait_for_turns(&session, 1).await;
    assert_eq!(world.last_answer(&session).await, "lookup: order 7 is fine");
    assert_eq!(world.effects.lines(), ["lookup 7"]);
    assert_eq!(world.snapshot(&session).await.usage.model_calls, 2);
}

/// A04: a second turn on another worker, with another HOME, knows the first.
async fn a_second_turn_elsewhere(world: &mut World) {
    let session = world.start_session("recall", "script: say one").await;
    world.wait_for_turns(&session, 1).await;
    world.shut_down().await;
    world.start_engine().await;
    world.send(&session, "script: recall").await;
    world.wait_for_turns(&session, 2).await;
    assert!(world.last_answer(&session).await.contains("say one"));
}

/// B10, M21: a write waits, runs once under its key, and the model gets its result.
async fn an_approved_write(world: &mut World) {
    let session = world
        .start_session("write", r#"script: call refund {"order_id":"7"}"#)
        .await;
    let open = world.wait_for_interrupt(&session).await;
    assert_eq!(
        (open.tool_name.as_str(), open.arguments.as_str()),
        ("refund", r#"{"order_id":"7"}"#)
    );
    assert_eq!(world.effects.lines(), Vec::<String>::new());
    world.approve(&session).await;
    world.wait_for_turns(&session, 1).await;
    let key = format!("write/t1/{}", open.tool_call_id);
    assert_eq!(world.effects.lines(), [format!("refund 7 under {key}")]);
    assert_eq!(
        world.last_answer(&session).await,
        "refund: order 7 is refunded"
    );
    assert_eq!(
        world.outcome(&session, &open).await,
        ToolOutcome::Succeeded {
            output: "order 7 is refunded".to_owned()
        }
    );
}

/// M22: a rejected write never runs, and the model gets the person's words.
async fn a_rejected_write(world: &mut World) {
    let session = world
        .start_session("rejected", r#"script: call refund {"order_id":"7"}"#)
        .await;
    let open = world.wait_for_interrupt(&session).await;
    world.reject(&session, "not today").await;
    world.wait_for_turns(&session, 1).await;
    assert_eq!(world.effects.lines(), Vec::<String>::new());
    assert_eq!(
        world.last_answer(&session).await,
        "refund: The user rejected this call: not today"
    );
    assert_eq!(
        world.outcome(&session, &open).await,
        ToolOutcome::Rejected {
            message: Some("not today".to_owned())
        }
    );
}

/// E07: an idempotent write needs no person and runs in its own Step under its key.
async fn an_idempotent_write(world: &mut World) {
    let session = world
        .start_session("idempotent", r#"script: call set_status {"order_id":"7"}"#)
        .await;
    world.wait_for_turns(&session, 1).await;
    let lines = world.effects.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].starts_with("set_status 7 under idempotent/t1/"),
        "{lines:?}"
    );
    assert_eq!(
        world.last_answer(&session).await,
        "set_status: order 7 has a status"
    );
}

/// G2, M28: a failed attempt is made again under the same key.
async fn a_flaky_write(world: &mut World) {
    let session = world
        .start_session("flaky", r#"script: call retry {"order_id":"7"}"#)
        .await;
    world.wait_for_turns(&session, 1).await;
    let lines = world.effects.lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[0], lines[1]);
    assert_eq!(
        world.last_answer(&session).await,
        "retry: order 7 took two attempts"
    );
}

/// Section 6: a read of the reply that also asks for a write runs in the first segment.
async fn a_read_and_a_write(world: &mut World) {
    let script = r#"script: call lookup {"order_id":"7"} && call refund {"order_id":"7"}"#;
    let session = world.start_session("both", script).await;
    world.approve(&session).await;
    world.wait_for_turns(&session, 1).await;
    let lines = world.effects.lines();
    assert_eq!(
        lines.iter().filter(|it| *it == "lookup 7").count(),
        1,
        "{lines:?}"
    );
    assert_eq!(
        lines
            .iter()
            .filter(|it| it.starts_with("refund 7 under "))
            .count(),
        1,
        "{lines:?}"
    );
}

/// M31: of two writes in one reply the second is refused and asked for again by itself.
async fn two_writes(world: &mut World) {
    let script = r#"script: call refund {"order_id":"1"} && call refund {"order_id":"2"}"#;
    let session = world.start_session("two", script).await;
    for order in ["1", "2"] {
        let open = world.wait_for_interrupt(&session).await;
        assert_eq!(open.arguments, format!(r#"{{"order_id":"{order}"}}"#));
        world.approve(&session).await;
    }
    world.wait_for_turns(&session, 1).await;
    let lines = world.effects.lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[0].starts_with("refund 1 under ") && lines[1].starts_with("refund 2 under "),
        "{lines:?}"
    );
}

/// B11, M30: Bash waits for a person, then runs once, inside the CLI, under a start mark.
async fn an_approved_bash(world: &mut World) {
    let session = world
        .start_session(
            "bash",
            r#"script: call Bash {"command":"echo ran >> marker; cat marker"}"#,
        )
        .await;
    let open = world.wait_for_interrupt(&session).await;
    assert_eq!(open.tool_name, "Bash");
    world.approve(&session).await;
    world.wait_for_turns(&session, 1).await;
    let ToolOutcome::Succeeded { output } = world.outcome(&session, &open).await else {
        panic!("the call succeeded");
    };
    // What a command prints, the fake does not know; the record has what the model read.
    assert_eq!(world.last_answer(&session).await, format!("Bash: {output}"));
    assert_eq!(world.bash_runs(), 1);
}

/// M30: a rejected Bash never runs; the model gets the text without the hook's prefix.
async fn a_rejected_bash(world: &mut World) {
    let session = world
        .start_session(
            "nobash",
            r#"script: call Bash {"command":"echo ran >> marker"}"#,
        )
        .await;
    world.reject(&session, "no shell").await;
    world.wait_for_turns(&session, 1).await;
    assert_eq!(
        world.last_answer(&session).await,
        "Bash: The user rejected this call: no shell"
    );
    assert_eq!(world.bash_runs(), 0);
}

/// E18: a tool that fails for good is recorded as failed, and not tried again.
async fn a_failing_tool(world: &mut World) {
    let session = world
        .start_session("failing", r#"script: call refuse {"order_id":"7"}"#)
        .await;
    world.approve(&session).await;
    world.wait_for_turns(&session, 1).await;
    assert_eq!(world.effects.lines(), ["refuse 7"]);
    assert_eq!(
        world.last_answer(&session).await,
        "refuse: the desk is closed"
    );
}

/// E19, G1: a panic of a single-attempt tool leaves its outcome unknown, and the model is told.
async fn a_panicking_tool(world: &mut World) {
    let session = world
        .start_session("panic", r#"script: call break {"order_id":"7"}"#)
        .await;
    let open = world.wait_for_interrupt(&session).await;
    world.approve(&session).await;
    world.wait_for_turns(&session, 1).await;
    assert_eq!(world.effects.lines(), ["break 7"]);
    assert_eq!(
        world.outcome(&session, &open).await,
        ToolOutcome::OutcomeUnknown
    );
    assert_eq!(
        world.last_answer(&session).await,
        format!("break: {OUTCOME_UNKNOWN_TEXT}")
    );
}

/// A tool that never ends meets its deadline; the turn goes on.
async fn a_hanging_tool(world: &mut World) {
    let session = world
        .start_session("hang", r#"script: call hang {"order_id":"7"}"#)
        .await;
    let open = world.wait_for_interrupt(&session).await;
    world.approve(&session).await;
    world.wait_for_turns(&session, 1).await;
    assert_eq!(world.effects.lines(), ["hang 7"]);
    assert_eq!(
        world.outcome(&session, &open).await,
        ToolOutcome::OutcomeUnknown
    );
}

/// E15: arguments that do not fit never reach the handler, and the model may call again.
async fn wrong_arguments(world: &mut World) {
    let session = world
        .start_session("wrong", r#"script: call refund {"order":7}"#)
        .await;
    let open = world.wait_for_interrupt(&session).await;
    world.approve(&session).await;
    world.wait_for_turns(&session, 1).await;
    assert_eq!(world.effects.lines(), Vec::<String>::new());
    assert_eq!(
        world.outcome(&session, &open).await,
        ToolOutcome::Failed {
            error: "the tool did not run, so it is safe to call again: invalid arguments: missing field `order_id`"
                .to_owned()
        }
    );
}

/// G9, A01: while a person decides nothing runs; another worker takes the answer up.
async fn a_parked_session(world: &mut World) {
    let session = world
        .start_session("parked", r#"script: call refund {"order_id":"7"}"#)
        .await;
    world.wait_for_interrupt(&session).await;
    world.shut_down().await;
    let stored = world
        .store
        .load(&session)
        .await
        .expect("a load")
        .expect("the session");
    assert_eq!(stored.lease, None);
    world.approve(&session).await;
    world.start_engine().await;
    world.wait_for_turns(&session, 1).await;
    assert_eq!(world.effects.lines().len(), 1);
    assert_eq!(
        world.last_answer(&session).await,
        "refund: order 7 is refunded"
    );
}

/// G6, B08: messages that come while a turn runs are answered in order, each by its own turn.
async fn three_messages(world: &mut World) {
    let session = world.start_session("three", "script: say one").await;
    world.send(&session, "script: say two").await;
    world.send(&session, "script: say three").await;
    world.wait_for_turns(&session, 3).await;
    let answers: Vec<_> = world
        .conversation(&session)
        .await
        .into_iter()
        .map(|(_, text)| text)
        .collect();
    assert_eq!(
        answers,
        [
            "script: say one",
            "said: one",
            "script: say two",
            "said: two",
            "script: say three",
            "said: three"
        ]
    );
    assert_eq!(
        world
            .snapshot(&session)
            .await
            .last_failure
            .map(|it| it.class),
        None::<FailureClass>
    );
}

/// Every scenario on the fake CLI, which asserts on all that it receives, both ways.
#[tokio::test]
async fn every_scenario_runs_on_the_fake_cli() {
    for wait in [GatedCallWait::Native, GatedCallWait::Live] {
        for scenario in all() {
            println!("scenario: {} ({wait:?})", scenario.name);
            let mut world = World::fake_with(wait).await;
            (scenario.run)(&mut world).await;
            world.check_cli().await;
        }
    }
}
