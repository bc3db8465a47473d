//! Random histories: whatever comes, in whatever order, the rules of [`World::check`] hold.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use super::shrink::shrink;
use super::*;
use crate::turn::SegmentProgress;

/// How many histories, and how many inputs each.
const HISTORIES: u64 = 200;
const INPUTS: u64 = 500;

const CLOSE_MODES: [CloseMode; 3] = [CloseMode::Cancel, CloseMode::Reject, CloseMode::Drain];

/// An input and when it came.
type Fed = (Timestamp, Input);

/// SplitMix64: small, seeded, and the same on every machine.
struct Random(u64);

impl Random {
    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut it = self.0;
        it = (it ^ (it >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        it = (it ^ (it >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        it ^ (it >> 31)
    }

    const fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    const fn is_one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        let count = u64::try_from(from.len()).unwrap();
        let index = count.checked_sub(1).map(|last| self.below(last + 1))?;
        from.get(usize::try_from(index).unwrap()).cloned()
    }
}

/// One history: the world, all grants that were ever given, and what was fed in.
struct History {
    world: World,
    random: Random,
    grants: Vec<AttemptKey>,
    inputs: Vec<Input>,
    calls: u64,
    is_patient: bool,
}

/// G1, G2, G3, G6, G7, G8, G13, N34: 100,000 random inputs, with duplicates, stale reports, crashes and
/// clock steps; then the world calms down and every message is answered. What moved is what the
/// manual lists.
#[test]
fn no_history_breaks_a_rule_and_each_ends() {
    const PLAYERS: u64 = 2;
    let play = |player: u64| {
        let seeds = (0..HISTORIES).filter(|it| it % PLAYERS == player);
        seeds.flat_map(play_and_shrink).collect::<BTreeSet<_>>()
    };
    let mut moves = std::thread::scope(|scope| {
        let players: Vec<_> = (0..PLAYERS)
            .map(|player| scope.spawn(move || play(player)))
            .collect();
        let moves = players.into_iter().map(|it| it.join().unwrap());
        moves.flatten().collect::<BTreeSet<_>>()
    });
    // Too rare for chance: the turn fails in the moment in which a handler runs beside its segment.
    moves.extend(live::failed_beside_a_handler().moves);
    transitions::check(&moves);
}

/// Plays the history of a seed; one that fails is told in its smallest form.
fn play_and_shrink(seed: u64) -> BTreeSet<transitions::Move> {
    let fed = Mutex::new(Vec::new());
    let played = catch_unwind(AssertUnwindSafe(|| {
        let mut history = History::new(seed);
        for step in 0..INPUTS {
            history.world.label = format!("seed {seed}, input {step}");
            if let Some(next) = history.advance() {
                fed.lock().unwrap().push(next);
            }
        }
        history.settle();
        history.world.moves
    }));
    played.unwrap_or_else(|_| {
        let fed = fed.into_inner().unwrap_or_else(PoisonError::into_inner);
        let fails = |it: &[Fed]| catch_unwind(AssertUnwindSafe(|| replay(seed, it))).is_err();
        let smallest = shrink(fed, fails);
        panic!("seed {seed} fails, and still does with these inputs alone: {smallest:#?}");
    })
}

/// Plays these inputs and no others.
fn replay(seed: u64, fed: &[Fed]) {
    let mut history = History::new(seed);
    for (at, input) in fed {
        history.world.now = *at;
        history.feed(input.clone());
    }
    history.settle();
}

/// The same inputs give the same bytes.
#[test]
fn the_same_seed_gives_the_same_bytes() {
    let play = || {
        let mut history = History::new(7);
        for _ in 0..INPUTS {
            history.advance();
        }
        let World {
            state,
            events,
            rows,
            chunks,
            ..
        } = history.world;
        (state.write().unwrap(), events, rows, chunks)
    };
    assert!(play() == play());
}

impl History {
    fn new(seed: u64) -> Self {
        Self {
            world: World::labelled(format!("seed {seed}")),
            random: Random(seed),
            grants: Vec::new(),
            inputs: Vec::new(),
            calls: 0,
            is_patient: seed.is_multiple_of(2),
        }
    }

    /// Feeds one random input, and returns it with its time.
    fn advance(&mut self) -> Option<Fed> {
        self.move_clock();
        let input = if self.random.is_one_in(8) {
            self.random.pick(&self.inputs)
        } else {
            self.next_input()
        };
        let input = input?;
        self.inputs.push(input.clone());
        let fed = (self.world.now, input.clone());
        self.feed(input);
        Some(fed)
    }

    fn feed(&mut self, input: Input) {
        let asked = match &input {
            Input::BeginAttempt { step_id, .. } => Some(*step_id),
            _ => None,
        };
        match self.world.apply(input) {
            Ok(Reply::Granted(running)) => {
                let step_id = asked.unwrap();
                let key = AttemptKey { step_id, running };
                if !self.grants.contains(&key) {
                    self.grants.push(key);
                }
            }
            Ok(_) | Err(ReduceError::Refused(_)) => {}
            Err(ReduceError::Bug(bug)) => panic!("{}: {bug}", self.world.label),
        }
    }

    fn move_clock(&mut self) {
        match self.random.below(20) {
            0 => self.world.wait(Duration::from_secs(100)),
            1 => self.world.now.0 = self.world.now.0.saturating_sub(30_000),
            _ => self.world.wait(Duration::from_millis(700)),
        }
    }

    fn next_input(&mut self) -> Option<Input> {
        // In every other history nobody writes while a turn is active.
        let is_quiet = self.is_patient && self.world.state.status() != SessionStatus::Idle;
        match self.random.below(18) {
            0 if is_quiet => Some(self.wish()),
            0 => Some(self.message()),
            1 => Some(self.start()),
            2 => self.answer_interrupt(),
            3..=7 => Some(self.begin()),
            8 => Some(self.wish()),
            9 => Some(Input::TimePassed),
            _ => self.report(),
        }
    }

    /// What a client wants beyond messages and decisions.
    fn wish(&mut self) -> Input {
        let some_message = MessageId::new(self.random.below(10));
        let queued = self.world.state.queue.iter().map(|it| it.message_id);
        let queued: Vec<_> = queued.collect();
        let message_id = self.random.pick(&queued).unwrap_or(some_message);
        let text = format!("wish {}", self.random.below(1_000));
        let mode = if self.random.is_one_in(3) {
            SteerMode::Now
        } else {
            SteerMode::AtBoundary
        };
        match self.random.below(16) {
            0 | 1 => Input::CancelTurn {
                turn_id: None,
                reason: Some("enough".to_owned()),
            },
            2 => Input::CancelTurn {
                turn_id: Some(TurnId::new(self.random.below(5))),
                reason: None,
            },
            3 => Input::DeleteQueuedMessage { message_id },
            4 => Input::EditQueuedMessage { message_id, text },
            5..=7 => Input::SteerUserMessage {
                steering: Steering::New(text),
                mode,
            },
            8..=10 => Input::SteerUserMessage {
                steering: Steering::Queued(message_id),
                mode,
            },
            11 | 12 => Input::UpdateSettings {
                expected_revision: self.random.below(3),
                settings: SessionSettings {
                    model: Some("other".to_owned()),
                    ..SessionSettings::default()
                },
            },
            13 if self.random.is_one_in(16) => Input::SizeMeasured {
                stored_bytes: self.random.below(1_300),
                written_before: self.random.below(1_000),
                bytes_max: 1_000,
            },
            13 if self.random.is_one_in(4) => Input::CloseSession {
                mode: self.random.pick(&CLOSE_MODES).unwrap(),
            },
            13 => Input::CloseSession {
                mode: CloseMode::Reject,
            },
            _ => match self.world.state.turn.as_ref().map(|it| &it.steered[..]) {
                Some([first, ..]) => Input::TakeSteered {
                    message_id: first.message_id,
                    text,
                },
                Some([]) | None => Input::TakeSteered { message_id, text },
            },
        }
    }

    fn message(&mut self) -> Input {
        let text = if self.random.is_one_in(10) {
            " ".to_owned()
        } else {
            format!("message {}", self.random.below(1_000))
        };
        Input::SendUserMessage { text }
    }

    fn start(&mut self) -> Input {
        let number = match self.world.state.queue.first() {
            Some(first) if !self.random.is_one_in(4) => first.message_id.number(),
            Some(_) | None => self.random.below(10),
        };
        Input::StartTurn {
            message_id: MessageId::new(number),
            text: "text".to_owned(),
        }
    }

    fn answer_interrupt(&mut self) -> Option<Input> {
        let open = self.world.open_interrupts();
        let known: Vec<_> = self
            .world
            .records()
            .into_keys()
            .map(InterruptId::from_client)
            .collect();
        let id = if self.random.is_one_in(5) {
            self.random.pick(&known)?
        } else {
            self.random.pick(&open)?
        };
        let decision = match self.random.below(3) {
            0 => Decision::Reject {
                message: Some("no".to_owned()),
            },
            _ => Decision::Approve,
        };
        Some(Input::ResolveInterrupt(Resolution {
            interrupt_id: id,
            decision,
            decided_by: None,
            digest: None,
            arguments: match self.random.below(12) {
                0 | 1 => ResolvedArguments::Changed("{}".to_owned()),
                2..=4 => ResolvedArguments::Answered("{}".to_owned()),
                _ => ResolvedArguments::AsAsked,
            },
        }))
    }

    /// Mostly the owner asks for what is due; sometimes it crashed before, sometimes it is stale.
    fn begin(&mut self) -> Input {
        let due: Vec<_> = due_steps(&self.world.state)
            .iter()
            .filter_map(DueStep::step_id)
            .collect();
        let step_id = match self.random.pick(&due) {
            Some(step_id) if !self.random.is_one_in(10) => step_id,
            Some(_) | None => StepId::new(self.random.below(60)),
        };
        let epoch = match self.random.below(12) {
            0 => {
                self.world.epoch.0 += 1;
                self.world.epoch.0
            }
            1 => self.random.below(self.world.epoch.0 + 1),
            _ => self.world.epoch.0,
        };
        self.world.nonces += u64::from(!self.random.is_one_in(4));
        Input::BeginAttempt {
            step_id,
            nonce: Nonce::new(format!("n{}", self.world.nonces)).unwrap(),
            epoch: LeaseEpoch(epoch),
        }
    }

    /// Mostly the last grant reports; sometimes an old one.
    fn report(&mut self) -> Option<Input> {
        let attempt = if self.random.is_one_in(3) {
            // One of the last few may still run beside the last one.
            let from = self.grants.len().saturating_sub(4);
            self.random.pick(&self.grants[from..])?
        } else if self.random.is_one_in(8) {
            self.random.pick(&self.grants)?
        } else {
            self.grants.last()?.clone()
        };
        Some(match self.random.below(12) {
            0 => Input::ReleaseAttempt { attempt },
            1..=3 => Input::ToolEnded {
                attempt,
                end: self.tool_end(),
            },
            4..=7 => Input::Segment {
                attempt,
                event: self.segment_event()?,
            },
            _ => Input::SegmentEnded {
                attempt,
                end: self.segment_end(),
            },
        })
    }

    fn tool_end(&mut self) -> ToolCallEnd {
        let text = "text".to_owned();
        match self.random.below(6) {
            0 => ToolCallEnd::Failed { error: text },
            1 => ToolCallEnd::NotRun { error: text },
            2 => ToolCallEnd::Unknown { detail: text },
            _ => ToolCallEnd::Succeeded { output: text },
        }
    }

    fn segment_event(&mut self) -> Option<SegmentEvent> {
        match self.random.below(12) {
            0 | 1 => return Some(SegmentEvent::Checkpoint(self.progress())),
            2 => return Some(SegmentEvent::ParkRequested(self.progress())),
            _ => {}
        }
        let tool_call_id = self.random.pick(&self.turn_calls())?;
        Some(match self.random.below(8) {
            0 | 1 => SegmentEvent::CallFinished {
                tool_call_id,
                outcome: match self.random.below(3) {
                    0 => ToolOutcome::Failed {
                        error: "no".to_owned(),
                    },
                    _ => ToolOutcome::Succeeded {
                        output: "yes".to_owned(),
                    },
                },
            },
            2 => SegmentEvent::CallStanding { tool_call_id },
            3 => SegmentEvent::CallGivenUp { tool_call_id },
            _ => SegmentEvent::CallStarting { tool_call_id },
        })
    }

    fn turn_calls(&self) -> Vec<ToolCallId> {
        let calls = self.world.state.turn.iter().flat_map(|it| &it.calls);
        calls.map(|it| it.record.tool_call_id.clone()).collect()
    }

    /// Something said, results of calls, new calls; any of it may be missing.
    fn progress(&mut self) -> SegmentProgress {
        let mut messages = Vec::new();
        if self.random.is_one_in(3) {
            messages.push(said("progress"));
        }
        if let Some(id) = self.random.pick(&self.turn_calls()) {
            messages.push(NewMessage {
                role: MessageRole::Tool,
                tool_call_id: Some(id),
                ..said("result")
            });
        }
        let count = self.random.below(4);
        SegmentProgress {
            messages,
            calls: (0..count).map(|_| self.call()).collect(),
            ended: Vec::new(),
            usage: usage(),
        }
    }

    fn segment_end(&mut self) -> Result<RunModelOutcome, AttemptFailure> {
        match self.random.below(10) {
            0 => Err(failure(FailureClass::Options)),
            1 | 2 => Err(failure(FailureClass::CliFailed)),
            3 => Ok(completed("answer")),
            _ => {
                let count = 1 + self.random.below(4);
                Ok(requested((0..count).map(|_| self.call()).collect()))
            }
        }
    }

    fn call(&mut self) -> RequestedCall {
        self.calls += u64::from(!self.random.is_one_in(50));
        let effects = [
            ToolEffect::Read,
            ToolEffect::IdempotentWrite,
            ToolEffect::NonIdempotentWrite,
            ToolEffect::Unclassified,
        ];
        let approvals = [
            Approval::ByEffect,
            Approval::Required,
            Approval::NotRequired,
            Approval::NotRequired,
            Approval::Answers,
        ];
        let places = [CallPlace::Step, CallPlace::Segment];
        let mut policy = ToolPolicy::new(self.random.pick(&effects).unwrap())
            .with_approval(self.random.pick(&approvals).unwrap());
        if self.random.is_one_in(3) {
            policy = policy.with_approval_deadline(Duration::from_secs(20));
        }
        let place = self.random.pick(&places).unwrap();
        RequestedCall {
            // Few inputs, so that approvals are carried over.
            arguments: format!(r#"{{"for":{}}}"#, self.random.below(3)),
            shown_arguments: self.random.is_one_in(4).then(|| "null".to_owned()),
            ..call_with(&format!("c{}", self.calls), policy, place)
        }
    }

    /// From here on everything goes well: what was accepted is answered, and nothing is stuck.
    fn settle(&mut self) {
        let label = self.world.label.clone();
        self.world.label = format!("{label}, settling");
        self.world.epoch.0 += 1;
        for _ in 0..1_000 {
            match self.world.state.status() {
                SessionStatus::Idle | SessionStatus::Ended => return,
                SessionStatus::Running | SessionStatus::AwaitingApproval => {}
            }
            for interrupt_id in self.world.open_interrupts() {
                // Each is a question or an approval, and one of the two is refused.
                let answered = ResolvedArguments::Answered("{}".to_owned());
                for arguments in [answered, ResolvedArguments::AsAsked] {
                    self.feed(Input::ResolveInterrupt(Resolution {
                        interrupt_id: interrupt_id.clone(),
                        decision: Decision::Approve,
                        decided_by: None,
                        digest: None,
                        arguments,
                    }));
                }
            }
            match due_steps(&self.world.state).last().cloned() {
                None => {}
                Some(DueStep::PassTime { at }) => {
                    self.world.now = self.world.now.max(at);
                    self.feed(Input::TimePassed);
                }
                Some(DueStep::TakeSteered { message_id }) => {
                    let text = "text".to_owned();
                    self.feed(Input::TakeSteered { message_id, text });
                }
                Some(DueStep::StartTurn { .. }) => {
                    self.world.start_turn();
                }
                Some(DueStep::RunModel { step_id, .. } | DueStep::CallTool { step_id, .. }) => {
                    self.settle_step(step_id);
                }
            }
        }
        panic!("{label}: it never comes to rest: {:?}", self.world.state);
    }

    fn settle_step(&mut self, step_id: StepId) {
        let world = &mut self.world;
        world.now = world.now.max(world.state.due_at().unwrap());
        world.nonces += 1;
        let nonce = format!("n{}", world.nonces);
        let reply = world.begin(step_id, &nonce, world.epoch);
        let Reply::Granted(running) = reply else {
            // A loss that it settled may have ended the Step or made it wait.
            return;
        };
        let attempt = AttemptKey { step_id, running };
        if matches!(&world.turn().phase, Phase::RunModel(own) if own.step_id == step_id) {
            world.end(&attempt, Ok(completed("at last")));
        } else {
            world.tool_ends(&attempt, succeeded());
        }
    }
}
