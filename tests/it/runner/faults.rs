//! A CLI that does wrong, on the fake alone.

use abide::failure::FailureClass;
use abide::testing::fake_cli::{Fault, MirrorLag};

use super::*;

const WRITE: &str = r#"script: call refund {"order_id":"7"}"#;
const READ: &str = r#"script: call look_up {"order_id":"7"}"#;
const BASH: &str = r#"script: call Bash {"command":"echo ran"}"#;

async fn failure_of(world: &World, fault: Fault, prompt: &str) -> FailureClass {
    world.handle().fault_next_launch(vec![fault]);
    let mut agent = Agent::new(world);
    agent.say(prompt);
    let failure = agent.segment(Vec::new()).await.end.unwrap_err();
    assert_eq!(world.handle().running(), 0);
    failure.class
}

/// G5, section 11: each way in which a CLI breaks the contract or dies ends the attempt in its class.
#[tokio::test]
async fn a_broken_segment_fails_in_its_class() {
    for (fault, prompt, class) in [
        (Fault::IgnoreDeferral, WRITE, FailureClass::CliContract),
        (Fault::WrongDeferredId, WRITE, FailureClass::CliContract),
        (Fault::NoMirror, READ, FailureClass::CliContract),
        (Fault::RunWithoutAsking, BASH, FailureClass::UndecidedCall),
        (Fault::DieAfterSent(9), READ, FailureClass::CliFailed),
        (
            Fault::ExitAfterSent { lines: 5, code: 1 },
            READ,
            FailureClass::CliFailed,
        ),
        (
            Fault::ResultError("error_max_turns".to_owned()),
            READ,
            FailureClass::MaxTurns,
        ),
        (
            Fault::ApiError {
                status: 529,
                at_model_call: 1,
                recovers: false,
            },
            READ,
            FailureClass::Overloaded,
        ),
        (
            Fault::ApiError {
                status: 401,
                at_model_call: 1,
                recovers: false,
            },
            READ,
            FailureClass::Authentication,
        ),
    ] {
        let world = World::fake();
        let found = failure_of(&world, fault.clone(), prompt).await;
        assert_eq!(found, class, "{fault:?}");
    }
}

/// G5: what a CLI does wrong and the gate repairs: the turn goes on, and nothing ran twice.
#[tokio::test]
async fn repeated_late_and_unknown_frames_change_nothing() {
    for faults in [
        vec![Fault::RepeatHook],
        vec![Fault::RepeatCall],
        vec![Fault::UnknownFrames],
        vec![Fault::ApiError {
            status: 529,
            at_model_call: 1,
            recovers: true,
        }],
    ] {
        let world = World::fake();
        world.handle().set_mirror_lag(MirrorLag::UntilResult);
        world.handle().fault_next_launch(faults.clone());
        let mut agent = Agent::new(&world);
        agent.turn(READ).await;
        assert_eq!(agent.desk.runs(), ["look_up 7"], "{faults:?}");
    }
}

/// L20: a permitted call runs as the permitted tool, never as another.
#[tokio::test]
async fn another_tool_under_a_permitted_id_never_runs() {
    let world = World::fake();
    world
        .handle()
        .fault_next_launch(vec![Fault::CallAnotherTool("refund".to_owned())]);
    let mut agent = Agent::new(&world);
    agent.turn(READ).await;
    assert_eq!(agent.desk.runs(), [] as [String; 0]);
}

/// L26, L27: without hooks nothing new runs, and a resumed call is answered from its record.
#[tokio::test]
async fn skipped_hooks_are_answered_by_permission_questions() {
    let world = World::fake();
    world.handle().fault_next_launch(vec![Fault::SkipHooks]);
    let mut agent = Agent::new(&world);
    agent.turn(READ).await;
    assert_eq!(agent.desk.runs(), [] as [String; 0]);

    let mut agent = Agent::new(&world);
    let call = agent.turn_to_call(WRITE).await;
    world
        .handle()
        .fault_next_launch(vec![Fault::SkipHooksOnResume]);
    let segment = agent.resume(&call, succeeded("done")).await;
    assert_eq!(agent.complete(segment), "refund: done");

    let mut agent = Agent::new(&world);
    let call = agent.turn_to_call(BASH).await;
    world
        .handle()
        .fault_next_launch(vec![Fault::SkipHooksOnResume]);
    let segment = agent.resume(&call, ResumedFate::Permitted).await;
    assert_eq!(segment.events.len(), 2);
    agent.complete(segment);
    assert_eq!(world.bash_runs(), 1);
}

/// L25: an id of an earlier turn is not used again.
#[tokio::test]
async fn a_used_id_is_denied() {
    let world = World::fake();
    let mut agent = Agent::new(&world);
    let answer = agent
        .turn(r#"script: call look_up {"order_id":"7"} ;; reuse look_up {"order_id":"8"}"#)
        .await;
    assert_eq!(agent.desk.runs(), ["look_up 7"]);
    assert_eq!(
        answer.lines().last(),
        Some(
            "reused look_up: PreToolUse:mcp__tools__look_up hook error: mcp__tools__look_up did not run: a decision about this call was already made"
        )
    );
}

/// G8: a segment that was taken over ends at once, and its call never starts.
#[tokio::test]
async fn a_superseded_segment_ends_without_starting_the_call() {
    let world = World::fake();
    let mut agent = Agent::new(&world);
    agent.start = Start::Supersede;
    let call = agent.turn_to_call(BASH).await;
    let segment = agent.resume(&call, ResumedFate::Permitted).await;
    let failure = segment.end.unwrap_err();
    assert_eq!(failure.class, FailureClass::CliFailed);
    assert_eq!(world.bash_runs(), 0);
    assert_eq!(world.handle().running(), 0);
}

/// G5: a start that the session does not permit fails the attempt, which still is the session's.
#[tokio::test]
async fn a_start_that_is_not_permitted_fails_the_segment() {
    let world = World::fake();
    let mut agent = Agent::new(&world);
    agent.start = Start::Forbid;
    let call = agent.turn_to_call(BASH).await;
    let segment = agent.resume(&call, ResumedFate::Permitted).await;
    assert_eq!(segment.end.unwrap_err().class, FailureClass::Runner);
    assert_eq!(world.bash_runs(), 0);
    assert_eq!(world.handle().running(), 0);
}

/// G14: dropping a running segment ends its process.
#[tokio::test]
async fn a_dropped_segment_ends_its_process() {
    let world = World::fake();
    let mut agent = Agent::new(&world);
    agent.say("script: stall never");
    tokio::select! {
        _ = agent.segment(Vec::new()) => panic!("the gate is closed"),
        () = world.handle().wait_until(|launches| {
            launches.iter().any(|it| it.lines_sent.iter().any(|line| line.contains("text_delta")))
        }) => {}
    }
    assert_eq!(world.handle().running(), 0);
}

/// G3: a resume without the pending call in the transcript is refused, as the CLI would wait for ever.
#[tokio::test]
async fn a_resume_of_a_call_that_does_not_wait_is_refused() {
    let world = World::fake();
    let mut agent = Agent::new(&world);
    let call = agent.turn_to_call(WRITE).await;
    let segment = agent.resume(&call, succeeded("done")).await;
    agent.complete(segment);
    let failure = agent
        .resume(&call, succeeded("done"))
        .await
        .end
        .unwrap_err();
    assert_eq!(failure.class, FailureClass::Runner);
    assert_eq!(world.handle().launches().len(), 2);
}

/// G4, L28, M38: the tool server runs a permitted call with the decided input only.
#[tokio::test]
async fn another_input_under_a_permitted_id_never_runs() {
    let world = World::fake();
    world.handle().fault_next_launch(vec![Fault::CallOtherInput(
        r#"{"order_id":"8"}"#.to_owned(),
    )]);
    let mut agent = Agent::new(&world);
    assert_eq!(
        agent.turn(READ).await,
        "look_up: the call did not run: it was not permitted"
    );
    assert_eq!(agent.desk.runs(), [] as [&str; 0]);
}

/// M38, L30, G1: a hook that is repeated changes no deferral, no replay and no start.
#[tokio::test]
async fn repeated_hooks_change_no_deferral_and_no_replay() {
    let world = World::fake();
    for prompt in [WRITE, BASH] {
        let mut agent = Agent::new(&world);
        world.handle().fault_next_launch(vec![Fault::RepeatHook]);
        let call = agent.turn_to_call(prompt).await;
        let fate = match call.place {
            CallPlace::Step => succeeded("done"),
            CallPlace::Segment => ResumedFate::Permitted,
        };
        world
            .handle()
            .fault_next_launch(vec![Fault::RepeatHook, Fault::RepeatCall]);
        let segment = agent.resume(&call, fate).await;
        agent.complete(segment);
        assert_eq!(agent.desk.runs(), [] as [&str; 0]);
    }
    assert_eq!(world.bash_runs(), 1);
}

/// M38, G5: whatever a CLI does with a write that must wait, its handler never runs.
#[tokio::test]
async fn a_write_runs_under_no_fault() {
    for fault in [
        Fault::IgnoreDeferral,
        Fault::RunWithoutAsking,
        Fault::WrongDeferredId,
        Fault::SkipHooks,
        Fault::CallAnotherTool("look_up".to_owned()),
    ] {
        let world = World::fake();
        world.handle().fault_next_launch(vec![fault.clone()]);
        let mut agent = Agent::new(&world);
        agent.say(WRITE);
        // How it ends is for other tests to say.
        let _ = agent.segment(Vec::new()).await;
        assert_eq!(agent.desk.runs(), [] as [&str; 0], "{fault:?}");
    }
}

/// M39, L22, L23: the id of a resumed call is used up in its segment, for its tool and others.
#[tokio::test]
async fn the_id_of_a_resumed_call_runs_nothing_more() {
    for tool in ["refund", "look_up"] {
        let world = World::fake();
        let mut agent = Agent::new(&world);
        let reuse = format!(r#"{WRITE} ;; reuse {tool} {{"order_id":"8"}}"#);
        let call = agent.turn_to_call(&reuse).await;
        let segment = agent.resume(&call, succeeded("done")).await;
        let reason = match tool {
            "refund" => "a decision about this call was already made",
            _ => "the record under this id is of another call",
        };
        assert_eq!(
            agent.complete(segment),
            format!(
                "reused {tool}: PreToolUse:mcp__tools__{tool} hook error: mcp__tools__{tool} did not run: {reason}"
            )
        );
        assert_eq!(agent.desk.runs(), [] as [&str; 0]);
    }
}
