//! The live path, stepped by hand: calls of a complete reply become records, questions are held, and
//! every tool boundary is a checkpoint (design.md 4).

use super::*;
use crate::protocol::HostFrame;

const PROMPT: &str = "prompt-uuid";

/// A live turn whose prompt is mirrored.
pub(super) fn live() -> Stepper {
    let mut stepper = unmirrored();
    stepper.mirror_prompt();
    stepper
}

/// A live turn in which these tools have approval rules.
pub(super) fn ruled(tools: &[&str]) -> Stepper {
    live_with(|plan| plan.ruled = tools.iter().map(|it| (*it).to_owned()).collect())
}

/// A live turn whose plan is a little different.
pub(super) fn live_with(change: impl FnOnce(&mut SegmentPlan)) -> Stepper {
    let mut plan = live_plan();
    change(&mut plan);
    let mut stepper = started(plan);
    stepper.mirror_prompt();
    stepper
}

fn unmirrored() -> Stepper {
    started(live_plan())
}

fn live_plan() -> SegmentPlan {
    let mut plan = plan(SegmentStart::Turn {
        prompt: vec!["go".to_owned()],
        uuid: Some(PROMPT.to_owned()),
    });
    plan.path = GatedPath::Live;
    plan.offered = BTreeSet::from(["Bash".to_owned(), "Read".to_owned()]);
    plan
}

fn started(plan: SegmentPlan) -> Stepper {
    let mut stepper = Stepper::new(plan);
    stepper.json(json!({"type": "system", "subtype": "init", "session_id": "c1"}));
    stepper.take();
    stepper
}

impl Stepper {
    fn mirror_prompt(&mut self) {
        self.mirror(
            json!({"type": "user", "uuid": PROMPT, "message": {"role": "user", "content": "go"}}),
        );
    }

    pub(super) fn reply_starts(&mut self) {
        self.json(json!({"type": "stream_event", "parent_tool_use_id": null,
            "event": {"type": "message_start", "message": {"id": "m1", "usage": {"input_tokens": 3}}}}));
    }

    pub(super) fn reply_ends(&mut self, given_up: bool) {
        self.json(json!({"type": "stream_event", "parent_tool_use_id": null,
            "event": {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 2}}}));
        let mut stop = json!({"type": "stream_event", "parent_tool_use_id": null,
            "event": {"type": "message_stop"}});
        if given_up {
            stop["abandoned_blocks"] = json!({"api_message_id": "m1", "from_block_index": 0});
        }
        self.json(stop);
    }

    /// A block of the reply that asks for a call.
    pub(super) fn asks(&mut self, id: &str, tool: &str, input: Value) {
        self.json(
            json!({"type": "assistant", "parent_tool_use_id": null, "uuid": format!("use-{id}"),
            "message": {"id": "m1", "model": "m", "content": [
                {"type": "tool_use", "id": id, "name": tool, "input": input}]}}),
        );
    }

    /// The CLI's question about a call, with the input of the block.
    pub(super) fn asked(&mut self, request: &str, id: &str, tool: &str, input: Value) {
        self.json(hook(request, id, tool, json!({"tool_input": input})));
    }

    pub(super) fn batch(&mut self, request: &str) {
        self.json(
            json!({"type": "control_request", "request_id": request, "request": {
            "subtype": "hook_callback", "callback_id": "abide-post-tool-batch",
            "input": {"hook_event_name": "PostToolBatch"}}}),
        );
    }

    pub(super) fn committed(&mut self) {
        self.segment.handle_checkpoint_committed();
        self.drain();
    }

    pub(super) fn stands(&mut self, id: &str, standing: Standing) {
        let id = ToolCallId::new(id).unwrap();
        self.segment.handle_call_standing(&id, standing);
        self.drain();
    }

    fn window_over(&mut self) {
        self.segment.handle_window_over();
        self.drain();
    }

    fn parks(&mut self, is_parked: bool) {
        self.segment.handle_park_answer(is_parked);
        self.drain();
    }

    pub(super) fn session_changed(&mut self) {
        self.segment.handle_session_changed();
        self.drain();
    }
}

pub(super) fn refund() -> Value {
    json!({"amount": 5})
}

/// A person approved what the model asked for.
const PERMITTED: Standing = Standing::Permitted {
    changed_arguments: None,
};

fn done() -> Standing {
    Standing::Final(ToolOutcome::Succeeded {
        output: "done".to_owned(),
    })
}

/// G4: a tool of the CLI runs with what a person wrote, and the model is told so.
#[test]
fn a_tool_of_the_cli_runs_with_what_a_person_wrote() {
    let mut it = live();
    it.reply_starts();
    it.asks("c1", "Bash", json!({"command": "ls"}));
    it.reply_ends(false);
    it.committed();
    it.asked("r1", "c1", "Bash", json!({"command": "ls"}));
    it.take();
    it.stands(
        "c1",
        Standing::Permitted {
            changed_arguments: Some(r#"{"command":"pwd"}"#.to_owned()),
        },
    );
    assert_eq!(it.take(), ["starting c1"]);
    it.granted("c1");
    let note = r#"[A person changed the input of this call. It ran with: {"command":"pwd"}]"#;
    let told = format!(r#"hook "allow" {{"command":"pwd"}} {}"#, json!(note));
    assert_eq!(it.take(), [told]);
}

/// Changed arguments that cannot be read end the segment before anything runs.
#[test]
fn changed_arguments_that_are_no_json_end_the_segment() {
    let mut it = live();
    it.reply_starts();
    it.asks("c1", "Bash", json!({"command": "ls"}));
    it.reply_ends(false);
    it.committed();
    it.asked("r1", "c1", "Bash", json!({"command": "ls"}));
    it.take();
    it.stands(
        "c1",
        Standing::Permitted {
            changed_arguments: Some("{".to_owned()),
        },
    );
    assert!(it.segment.is_ended());
    assert!(!it.take().iter().any(|it| it.contains("allow")));
}

/// Two gated calls and a read in one reply: one checkpoint with both calls when the reply is complete,
/// answers in the model's order from the records, and a checkpoint before the next model call.
#[test]
fn a_reply_with_two_gated_calls_costs_no_process_and_no_model_call() {
    let mut it = live();
    it.reply_starts();
    it.asks("c1", "mcp__tools__create_refund", refund());
    it.asked("r1", "c1", "mcp__tools__create_refund", refund());
    it.asks("c2", "mcp__tools__lookup", json!({"a": 1}));
    it.asks("c3", "Bash", json!({"command": "ls"}));
    assert_eq!(
        it.take(),
        Vec::<String>::new(),
        "the reply may still be given up"
    );
    it.reply_ends(false);
    assert_eq!(
        it.take(),
        [
            "checkpoint Assistant() 1+3; c1 create_refund Step {\"amount\":5}; c3 Bash Segment {\"command\":\"ls\"}"
        ]
    );
    it.committed();
    assert_eq!(it.take(), ["standing c1"]);
    it.stands("c1", Standing::Open);
    assert!(it.segment.waits_for_people());
    it.session_changed();
    it.stands("c1", done());
    assert_eq!(it.take(), ["standing c1", r#"hook "allow" {"amount":5}"#]);
    it.call("m1", "c1", "create_refund");
    it.tool_result("c1", "done", false);
    it.asked("r2", "c2", "mcp__tools__lookup", json!({"a": 1}));
    it.take();
    it.call("m2", "c2", "lookup");
    it.tool_result("c2", "fine", false);
    it.take();
    it.asked("r3", "c3", "Bash", json!({"command": "ls"}));
    assert_eq!(it.take(), ["standing c3"]);
    it.stands("c3", PERMITTED);
    assert_eq!(it.take(), ["starting c3"]);
    it.granted("c3");
    assert_eq!(it.take(), [r#"hook "allow" {"command":"ls"}"#]);
    assert!(!it.segment.waits_for_people());
    it.tool_result("c3", "marker", false);
    it.take();
    it.batch("b1");
    assert_eq!(
        it.take(),
        ["checkpoint Tool(done) 1+0; Tool(fine) 1+0; Tool(marker) 1+0"],
        "the next model call waits"
    );
    it.committed();
    assert_eq!(it.take(), [r#"go on "b1""#]);
}

/// 17k: results that are not mirrored yet are provisional, and their entries come with a later
/// checkpoint, without a second message.
#[test]
fn what_is_only_announced_is_kept_and_replaced_later() {
    let mut it = live();
    it.reply_starts();
    it.asks("c1", "mcp__tools__lookup", json!({"a": 1}));
    it.asked("r1", "c1", "mcp__tools__lookup", json!({"a": 1}));
    it.reply_ends(false);
    let message = json!({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "c1", "content": "fine"}]});
    it.json(
        json!({"type": "user", "message": message, "parent_tool_use_id": null, "uuid": "result"}),
    );
    it.take();
    it.batch("b1");
    assert_eq!(it.take(), ["checkpoint Assistant() 1+1; Tool(fine) 0+1"]);
    it.committed();
    it.take();
    let used = json!({"id": "m1", "model": "m", "content": [
        {"type": "tool_use", "id": "c1", "name": "mcp__tools__lookup", "input": {"a": 1}}]});
    it.mirror(json!({"type": "assistant", "uuid": "use-c1", "message": used}));
    it.mirror(json!({"type": "user", "uuid": "result", "message": message}));
    it.reply("m2", "bye");
    it.result(json!({}));
    let RunModelOutcome::TurnCompleted { messages, .. } = it.finish().unwrap() else {
        panic!("the turn is over");
    };
    assert_eq!(messages.len(), 1);
    assert_eq!(
        entries(&messages[0].item).len(),
        3,
        "both lines and the answer"
    );
}

/// Nothing can be resumed without the prompt, so a checkpoint waits until its entry is mirrored.
#[test]
fn a_checkpoint_waits_for_the_prompt() {
    let mut it = unmirrored();
    it.asks("c1", "mcp__tools__create_refund", refund());
    assert_eq!(it.take(), Vec::<String>::new());
    it.mirror_prompt();
    assert_eq!(it.take().len(), 1);
}

/// A reply that the CLI gave up asks nobody: its calls are denied, and never recorded.
#[test]
fn a_reply_that_was_given_up_records_nothing() {
    let mut it = live();
    it.reply_starts();
    it.asks("c1", "mcp__tools__create_refund", refund());
    it.asked("r1", "c1", "mcp__tools__create_refund", refund());
    it.reply_ends(true);
    assert_eq!(
        it.take(),
        [r#"hook "deny" "it did not run: the reply was given up""#]
    );
    it.call("m1", "c1", "create_refund");
    assert_eq!(it.take()[0], "serve tools/call Refuse");
}

/// A recorded call that the CLI refuses by itself is given up: nobody needs to decide any more.
#[test]
fn a_recorded_call_that_the_cli_gives_up_is_told() {
    let mut it = live();
    it.asks("c1", "mcp__tools__create_refund", refund());
    it.committed();
    it.take();
    it.tool_result("c1", "<tool_use_error>aborted</tool_use_error>", true);
    assert_eq!(it.take(), ["given up c1"]);
}

/// 17i: parking is a commit; after it the CLI gets no line any more, whatever it asks. When the
/// session refuses, the segment goes on, and asks again only after a commit.
#[test]
fn a_parked_segment_says_nothing_more() {
    let mut it = live();
    it.asks("c1", "mcp__tools__create_refund", refund());
    it.committed();
    it.asked("r1", "c1", "mcp__tools__create_refund", refund());
    it.stands("c1", Standing::Open);
    it.take();
    it.window_over();
    assert_eq!(it.take(), ["park "]);
    it.parks(false);
    assert!(!it.segment.waits_for_people() && it.segment.is_idle());
    it.session_changed();
    it.stands("c1", Standing::Open);
    assert!(it.segment.waits_for_people());
    it.take();
    it.window_over();
    it.parks(true);
    it.take();
    it.asked("r2", "c2", "Bash", json!({}));
    it.call("m1", "c1", "create_refund");
    assert_eq!(it.take(), Vec::<String>::new());
    assert!(matches!(it.finish(), Ok(RunModelOutcome::Parked)));
}

/// G4, L22: under a recorded id only its own tool is answered, with the recorded input, once.
#[test]
fn a_recorded_id_is_good_for_its_own_call_alone() {
    let mut it = live();
    it.asks("c1", "mcp__tools__create_refund", refund());
    it.committed();
    it.take();
    it.asked("r1", "c1", "Bash", json!({"command": "rm"}));
    assert!(it.take()[0].starts_with(r#"hook "deny""#));
    it.asked(
        "r2",
        "c1",
        "mcp__tools__create_refund",
        json!({"amount": 999}),
    );
    it.stands("c1", done());
    assert_eq!(it.take(), ["standing c1", r#"hook "allow" {"amount":5}"#]);
    it.call_with("m1", "c1", "create_refund", json!({"amount": 999}));
    it.call_with("m2", "c1", "lookup", json!({"amount": 5}));
    it.call("m3", "c1", "create_refund");
    it.call("m4", "c1", "create_refund");
    let served: Vec<String> = (it.take().into_iter())
        .filter(|it| it.starts_with("serve"))
        .collect();
    assert_eq!(
        served,
        [
            "serve tools/call Refuse",
            "serve tools/call Refuse",
            r#"serve tools/call Replay { text: "done", is_error: false }"#,
            "serve tools/call Refuse",
        ]
    );
}

/// Application hooks are asked once, when the block is complete, and their answer holds for the
/// CLI's later question (D07, L19).
#[test]
fn hooks_are_asked_before_the_cli_asks() {
    let mut plan = plan(SegmentStart::Turn {
        prompt: vec!["go".to_owned()],
        uuid: None,
    });
    plan.path = GatedPath::Live;
    plan.offered = BTreeSet::from(["Bash".to_owned()]);
    plan.asks_hooks = true;
    let mut it = Stepper::new(plan);
    it.json(json!({"type": "system", "subtype": "init", "session_id": "c1"}));
    it.take();
    it.reply_starts();
    it.asks("c1", "mcp__tools__create_refund", refund());
    it.asks("c2", "Bash", json!({}));
    it.reply_ends(false);
    assert_eq!(it.take().len(), 2, "the checkpoint waits for both");
    let changed = RawValue::from_string(r#"{"amount":6}"#.to_owned()).unwrap();
    it.hooks_say(
        "c1",
        HooksAnswer::Continue {
            updated_input: Some(changed),
            needs_person: None,
        },
    );
    assert_eq!(it.take(), Vec::<String>::new());
    let reason = "no shell".to_owned();
    it.hooks_say("c2", HooksAnswer::Deny { reason });
    let told = it.take();
    assert!(
        told[0].ends_with(r#"c1 create_refund Step {"amount":6}"#),
        "{told:?}"
    );
    it.committed();
    it.asked("r2", "c2", "Bash", json!({}));
    it.asked("r3", "c2", "Bash", json!({}));
    let told = it.take();
    assert_eq!(told[0], r#"hook "deny" "no shell""#);
    assert!(told[1].contains("already made"), "{told:?}");
}

/// The usage of complete replies is told at checkpoints, and the result tells the rest alone.
#[test]
fn usage_is_told_once() {
    let mut it = live();
    it.reply_starts();
    it.asks("c1", "mcp__tools__create_refund", refund());
    it.reply_ends(false);
    it.committed();
    it.asked("r1", "c1", "mcp__tools__create_refund", refund());
    it.stands("c1", done());
    it.call("m1", "c1", "create_refund");
    it.tool_result("c1", "done", false);
    let used = json!({"id": "m1", "model": "m", "content": []});
    it.mirror(json!({"type": "assistant", "uuid": "use-c1", "message": used}));
    it.reply("m2", "bye");
    it.result(
        json!({"model_usage_since_last_result": {"m": {"inputTokens": 10, "outputTokens": 7}}}),
    );
    let RunModelOutcome::TurnCompleted { usage, .. } = it.finish().unwrap() else {
        panic!("the turn is over");
    };
    assert_eq!(
        (usage.input_tokens, usage.output_tokens, usage.model_calls),
        (7, 5, 1)
    );
}

/// A warm process is not initialized again, and stays after its answer; not after a failure.
#[test]
fn a_warm_process_is_asked_at_once() {
    let start = SegmentStart::Turn {
        prompt: vec!["go".to_owned()],
        uuid: None,
    };
    let mut plan = plan(start);
    (plan.is_warm, plan.stays) = (true, true);
    let mut segment = Segment::new(plan.clone()).unwrap();
    assert!(matches!(
        segment.poll_transmit(),
        Some(HostFrame::UserPrompt { .. })
    ));
    for (extra, closes) in [(json!({}), false), (json!({"is_error": true}), true)] {
        let mut it = Stepper::new(plan.clone());
        it.reply("m1", "bye");
        it.take();
        it.result(extra);
        assert_eq!(it.take().contains(&"close input".to_owned()), closes);
    }
}
