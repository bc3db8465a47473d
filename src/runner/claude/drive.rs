//! Drives one [`Segment`] over one CLI process: asks the machine, does what it says, reports back.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::Instant;

use super::hooks::HookRuns;
use super::mcp::{McpReply, ToolServer};
use super::redaction::Redaction;
use super::warm::Resident;
use super::{CliVersionPolicy, LIVE_CLI_VERSIONS, LiveProof, TESTED_CLI_VERSIONS};
use crate::failure::{AttemptFailure, FailureClass};
use crate::ids::{ClaudeSessionId, Revision, ToolCallId};
use crate::protocol::decode_line;
use crate::runner::{LinkError, ProcessSlot, SegmentLink};
use crate::segment::{Action, HooksAnswer, ProcessEnd, Segment, Standing};
use crate::transport::{CliError, CliExit, CliLauncher, CliProcess, LaunchSpec};
use crate::turn::{RunModelOutcome, SegmentEvent, SegmentReply};

/// How long a process whose output has ended may take to exit, so that its status is known.
const EXIT_GRACE: Duration = Duration::from_secs(2);

/// How much of stderr becomes part of a failure, in bytes: its end says what went wrong.
const STDERR_BYTES_MAX: usize = 1_000;

/// How long a tool of the CLI may go on when its turn is cancelled.
const CALL_PATIENCE: Duration = Duration::from_secs(4);

/// How long a CLI that was interrupted may take to say so.
const INTERRUPT_PATIENCE: Duration = Duration::from_secs(3);

/// A longer live window is as good as none: it is never met.
const WINDOW_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// How many events may wait for the session before the CLI's output has to wait for them.
const EVENTS_WAITING_MAX: usize = 64;

type Delivery =
    Pin<Box<dyn Future<Output = (SegmentEvent, Result<SegmentReply, LinkError>)> + Send>>;

/// One turn of the loop: whatever happened first.
enum Happened {
    Output(Result<Option<Vec<u8>>, CliError>),
    Tool(McpReply),
    Hooks(ToolCallId, HooksAnswer),
    Session(SegmentEvent, Result<SegmentReply, LinkError>),
    /// The session was committed; its revision now.
    Committed(Revision),
    /// People had their time.
    WindowOver,
    /// The turn is cancelled.
    Cancelled,
    /// The segment had its time to stop.
    StopPatienceOver,
}

/// What the options say about the CLI's version and about waiting, and what of them no failure may
/// show.
pub(super) struct Care {
    pub(super) versions: CliVersionPolicy,
    pub(super) redaction: Redaction,
    pub(super) live_window: Duration,
    /// Set when the CLI's version is not proven for live segments; later ones are native then.
    pub(super) live: LiveProof,
}

/// What a segment runs on: a process that is there, or one to start.
pub(super) enum Source {
    Start(LaunchSpec, ToolServer),
    Warm(Resident),
}

/// A segment that ended well, with its process if that stays.
pub(super) struct Driven {
    pub(super) outcome: RunModelOutcome,
    /// The process, with its Claude session and the last entry of its transcript.
    pub(super) resident: Option<(Resident, ClaudeSessionId, String)>,
}

struct Driver {
    segment: Segment,
    process: Box<dyn CliProcess>,
    server: ToolServer,
    hooks: HookRuns,
    link: SegmentLink,
    care: Care,
    // Events for the session, one at a time and in order.
    events: VecDeque<SegmentEvent>,
    delivery: Option<Delivery>,
    // The last commit of the session that was seen.
    seen: Revision,
    window: Window,
    slot: Option<ProcessSlot>,
    // When a segment that is stopping has had its time.
    stop_patience: Option<Instant>,
    is_interrupted: bool,
}

/// How long the process waits for people.
struct Window {
    length: Duration,
    // Since when nothing but a person can move the CLI on.
    ends: Option<Instant>,
}

/// Runs the segment to its end. The process is ended when this returns or is dropped, unless it is
/// part of what is returned.
pub(super) async fn drive(
    launcher: &dyn CliLauncher,
    source: Source,
    mut segment: Segment,
    hooks: HookRuns,
    link: SegmentLink,
    slot: Option<ProcessSlot>,
    care: Care,
) -> Result<Driven, AttemptFailure> {
    // Without a process, too, the span names the model that was to be asked.
    report_model_calls(&mut segment, &link);
    let (process, server) = match source {
        Source::Start(spec, server) => {
            let process = launcher
                .launch(spec)
                .await
                .map_err(|error| care.redaction.failure(failure_of(&error)))?;
            (process, server)
        }
        Source::Warm(resident) => (resident.process, resident.server),
    };
    let window = Window {
        length: care.live_window,
        ends: None,
    };
    let mut driver = Driver {
        segment,
        process,
        server,
        hooks,
        link,
        care,
        events: VecDeque::new(),
        delivery: None,
        seen: Revision(0),
        window,
        slot,
        stop_patience: None,
        is_interrupted: false,
    };
    match driver.run().await {
        Ok(()) => driver.finish(),
        Err(failure) => Err(driver.care.redaction.failure(failure)),
    }
}

impl Driver {
    fn finish(self) -> Result<Driven, AttemptFailure> {
        let stays = self.segment.stays();
        let end = match self.segment.finish() {
            Ok(end) => end,
            Err(failure) => return Err(self.care.redaction.failure(failure)),
        };
        let resident = match (
            end.outcome.is_completed() && stays,
            self.slot,
            end.stands_at,
        ) {
            (true, Some(slot), Some((session, last_entry))) => {
                let resident = Resident {
                    process: self.process,
                    server: self.server,
                    slot,
                };
                Some((resident, session, last_entry))
            }
            // What the CLI does until its end is nobody's business any more.
            (_, _, _) => None,
        };
        Ok(Driven {
            outcome: end.outcome,
            resident,
        })
    }

    /// Gives the place to run back while the CLI waits for a record, and takes one again before it
    /// goes on.
    async fn keep_place(&mut self) {
        let Some(slot) = &mut self.slot else { return };
        if self.segment.is_stopping() {
            // Stopping is no work that others have to wait for.
            return;
        }
        if self.segment.is_idle() {
            slot.wait();
        } else if !self.segment.is_ended() {
            slot.run().await;
        }
    }

    async fn run(&mut self) -> Result<(), AttemptFailure> {
        loop {
            self.keep_place().await;
            self.drain()?;
            // What was reported must be answered before the end: a start mark that is granted late
            // has an end of its own.
            if self.segment.is_ended() && self.delivery.is_none() {
                return Ok(());
            }
            match self.next().await {
                Happened::Output(line) => self.on_output(line).await?,
                Happened::Tool(reply) => match reply.message {
                    Some(message) => self.segment.handle_mcp_response(reply.request_id, message),
                    None => self.segment.handle_mcp_failure(reply.request_id),
                },
                Happened::Hooks(id, answer) => self.segment.handle_hooks_answer(&id, answer),
                Happened::Session(event, answer) => {
                    self.delivery = None;
                    self.on_answer(event, answer)?;
                }
                Happened::Committed(revision) => {
                    self.seen = revision;
                    self.segment.handle_session_changed();
                }
                Happened::Cancelled => self.stop(),
                Happened::StopPatienceOver => {
                    self.segment.handle_cancel_patience_over();
                    self.stop_patience = Some(Instant::now() + INTERRUPT_PATIENCE);
                }
                Happened::WindowOver => {
                    self.window.ends = None;
                    self.segment.handle_window_over();
                }
            }
        }
    }

    /// The turn is cancelled: a call that runs in the CLI gets some time, and then the CLI.
    fn stop(&mut self) {
        self.segment.handle_cancel();
        self.stop_patience = Some(Instant::now() + CALL_PATIENCE);
    }

    async fn next(&mut self) -> Happened {
        let delivery = async {
            match &mut self.delivery {
                Some(delivery) => delivery.await,
                None => std::future::pending().await,
            }
        };
        // Waiting begins when it is first seen, and anything that moves the CLI on ends it.
        self.window.ends = match self.window.ends {
            _ if !self.segment.waits_for_people() => None,
            Some(ends) => Some(ends),
            None => Some(Instant::now() + self.window.length.min(WINDOW_MAX)),
        };
        let window = async {
            match self.window.ends {
                Some(ends) => tokio::time::sleep_until(ends).await,
                None => std::future::pending().await,
            }
        };
        let waits_for_people = self.window.ends.is_some();
        let evicted = async {
            match &self.slot {
                Some(slot) => slot.evicted().await,
                None => std::future::pending().await,
            }
        };
        if self.segment.is_interrupted() && !self.is_interrupted {
            self.is_interrupted = true;
            self.stop_patience = Some(Instant::now() + INTERRUPT_PATIENCE);
        }
        let stop_patience = self.stop_patience;
        let patience_over = async {
            match stop_patience {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let is_stopping = self.segment.is_stopping();
        let watches = self.segment.watches_session();
        let mut link = self.link.clone();
        let committed = async {
            match link.watch(self.seen).await {
                Ok(revision) => revision,
                // The engine is going down; it ends this segment.
                Err(_) => std::future::pending().await,
            }
        };
        let may_read = !self.segment.is_ended() && self.events.len() < EVENTS_WAITING_MAX;
        let output = async {
            // A CLI that writes faster than the session takes it waits on its pipe.
            self.link.wait_for_room().await;
            self.process.receive().await
        };
        tokio::select! {
            line = output, if may_read => Happened::Output(line),
            reply = self.server.next_reply() => Happened::Tool(reply),
            (id, answer) = self.hooks.next_answer() => Happened::Hooks(id, answer),
            (event, answer) = delivery => Happened::Session(event, answer),
            revision = committed, if watches => Happened::Committed(revision),
            () = self.link.cancelled(), if !is_stopping => Happened::Cancelled,
            () = patience_over => Happened::StopPatienceOver,
            () = window => Happened::WindowOver,
            // Another process needs the place more.
            () = evicted, if waits_for_people => Happened::WindowOver,
        }
    }

    /// Does everything that the machine wants now.
    fn drain(&mut self) -> Result<(), AttemptFailure> {
        loop {
            if let Some(frame) = self.segment.poll_transmit() {
                let line = frame.encode().map_err(|error| {
                    AttemptFailure::new(FailureClass::Runner, error.to_string())
                })?;
                match self.process.send(line) {
                    // A CLI that closed its input is about to end, and its output says why.
                    Ok(()) | Err(CliError::InputClosed) => {}
                    Err(error) => return Err(failure_of(&error)),
                }
            } else if let Some(action) = self.segment.poll_action() {
                self.act(action)?;
            } else {
                break;
            }
        }
        report_model_calls(&mut self.segment, &self.link);
        if self.delivery.is_none()
            && let Some(event) = self.events.pop_front()
        {
            let link = self.link.clone();
            self.delivery = Some(Box::pin(async move {
                let answer = link.deliver(event.clone()).await;
                (event, answer)
            }));
        }
        Ok(())
    }

    fn act(&mut self, action: Action) -> Result<(), AttemptFailure> {
        match action {
            Action::ServeMcp {
                request_id,
                message,
                permit,
            } => self.server.serve(request_id, &message, permit),
            Action::CancelMcp { request_id } => self.server.cancel(&request_id),
            Action::AskHooks(question) => self.hooks.ask(question),
            Action::CancelHooks { tool_call_id } => self.hooks.cancel(&tool_call_id),
            Action::Deliver(event) => self.events.push_back(event),
            Action::Live { kind, text } => self.link.live(kind, text),
            Action::CliVersion(version) => self.on_version(version.as_deref())?,
            Action::CloseInput => self.process.close_input(),
        }
        Ok(())
    }

    fn on_version(&self, version: Option<&str>) -> Result<(), AttemptFailure> {
        let version = version.unwrap_or("unknown");
        let is_refused = matches!(self.care.versions, CliVersionPolicy::Refuse)
            && !TESTED_CLI_VERSIONS.contains(&version);
        if self.segment.needs_proven_cli() && !LIVE_CLI_VERSIONS.contains(&version) && !is_refused {
            self.care.live.refute();
            tracing::warn!(%version, proven = ?LIVE_CLI_VERSIONS, "this version of the Claude Code CLI is not proven for live segments; gated calls end the process");
            return Err(AttemptFailure::new(
                FailureClass::CliFailed,
                format!(
                    "the Claude Code CLI {version} is not proven for live segments; the turn goes on without them"
                ),
            ));
        }
        if TESTED_CLI_VERSIONS.contains(&version) {
            return Ok(());
        }
        match self.care.versions {
            CliVersionPolicy::Warn => {
                tracing::warn!(%version, tested = ?TESTED_CLI_VERSIONS, "this version of the Claude Code CLI is not tested");
                Ok(())
            }
            CliVersionPolicy::Refuse => Err(AttemptFailure::new(
                FailureClass::CliVersion,
                format!(
                    "the Claude Code CLI has version {version}; tested are {}",
                    TESTED_CLI_VERSIONS.join(", ")
                ),
            )),
        }
    }

    async fn on_output(
        &mut self,
        line: Result<Option<Vec<u8>>, CliError>,
    ) -> Result<(), AttemptFailure> {
        match line {
            Ok(Some(line)) => match decode_line(&line) {
                Ok(frame) => self.segment.handle_frame(frame),
                Err(error) => self.segment.handle_protocol_error(&error),
            },
            Ok(None) => {
                let exit = self.process.shutdown(EXIT_GRACE).await;
                // Before it is cut, lest a cut secret is not recognised.
                let stderr = self.care.redaction.text(&self.process.stderr_tail());
                let start =
                    stderr.floor_char_boundary(stderr.len().saturating_sub(STDERR_BYTES_MAX));
                self.segment.handle_end_of_output(ProcessEnd {
                    exit: &exit_text(exit),
                    stderr_tail: &stderr[start..],
                });
            }
            Err(error) => return Err(failure_of(&error)),
        }
        Ok(())
    }

    fn on_answer(
        &mut self,
        event: SegmentEvent,
        answer: Result<SegmentReply, LinkError>,
    ) -> Result<(), AttemptFailure> {
        // Whoever took over does not read this failure; it only ends the segment.
        let answer = answer
            .map_err(|error| AttemptFailure::new(FailureClass::CliFailed, error.to_string()))?;
        match (event, answer) {
            (SegmentEvent::CallStarting { tool_call_id }, SegmentReply::Granted) => {
                self.segment.handle_call_granted(&tool_call_id);
            }
            (SegmentEvent::CallStarting { tool_call_id }, SegmentReply::Final(outcome)) => {
                self.segment.handle_call_final(&tool_call_id, outcome);
            }
            (SegmentEvent::CallStarting { tool_call_id }, SegmentReply::Open) => {
                self.segment.handle_call_not_yet(&tool_call_id);
            }
            (SegmentEvent::CallStanding { tool_call_id }, SegmentReply::Open) => {
                self.segment
                    .handle_call_standing(&tool_call_id, Standing::Open);
            }
            (
                SegmentEvent::CallStanding { tool_call_id },
                SegmentReply::Permitted { changed_arguments },
            ) => {
                let standing = Standing::Permitted { changed_arguments };
                self.segment.handle_call_standing(&tool_call_id, standing);
            }
            (SegmentEvent::CallStanding { tool_call_id }, SegmentReply::Final(outcome)) => {
                self.segment
                    .handle_call_standing(&tool_call_id, Standing::Final(outcome));
            }
            (SegmentEvent::Checkpoint(_), SegmentReply::Accepted) => {
                self.segment.handle_checkpoint_committed();
            }
            (SegmentEvent::ParkRequested(_), SegmentReply::Parked) => {
                self.segment.handle_park_answer(true);
            }
            (SegmentEvent::ParkRequested(_), SegmentReply::Accepted) => {
                self.segment.handle_park_answer(false);
            }
            (
                SegmentEvent::CallFinished { .. }
                | SegmentEvent::CallGivenUp { .. }
                | SegmentEvent::InlineCallStarted { .. }
                | SegmentEvent::InlineCallFinished { .. },
                SegmentReply::Accepted,
            ) => {}
            // Only a segment that is to stop, for a cancel or a message that goes in now, is not asked for
            // its calls any more.
            (
                SegmentEvent::Checkpoint(_)
                | SegmentEvent::ParkRequested(_)
                | SegmentEvent::CallStanding { .. },
                SegmentReply::NotPermitted,
            ) if !self.segment.is_stopping() => self.stop(),
            (_, SegmentReply::NotPermitted) if self.segment.is_stopping() => {}
            (event, answer) => {
                return Err(AttemptFailure::new(
                    FailureClass::Runner,
                    format!("the session answered {answer:?} to {}", event.name()),
                ));
            }
        }
        Ok(())
    }
}

fn report_model_calls(segment: &mut Segment, link: &SegmentLink) {
    if let Some(known) = segment.poll_model_calls() {
        link.model_calls(known);
    }
}

const fn class_of(error: &CliError) -> FailureClass {
    match error {
        CliError::NotFound { .. } | CliError::NotExecutable { .. } => FailureClass::CliUnavailable,
        CliError::WorkingDirectory { .. } | CliError::InvalidLaunch { .. } => FailureClass::Options,
        CliError::LineBreak => FailureClass::Runner,
        CliError::LineTooLong { .. }
        | CliError::InputClosed
        | CliError::InputQueueFull { .. }
        | CliError::Io { .. } => FailureClass::CliFailed,
    }
}

fn failure_of(error: &CliError) -> AttemptFailure {
    let detail = match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    AttemptFailure::new(class_of(error), detail)
}

fn exit_text(exit: CliExit) -> String {
    match exit {
        CliExit::Exited(status) => format!("exit status {status}"),
        CliExit::Signalled(signal) => format!("signal {signal}"),
        CliExit::Unknown => "its end was not seen".to_owned(),
    }
}

#[cfg(test)]
mod tests;
