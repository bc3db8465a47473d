//! How a segment stops when its turn is cancelled (spec/cli-protocol.md 8): nothing more is allowed, a
//! tool of the CLI that runs under a start mark comes to its end, and then the CLI is interrupted. What
//! it says after that is of no interest but for its result.

use super::{Segment, SegmentEnd, State, usage};
use crate::protocol::{CliFrame, ControlRequest, HostFrame, ResultFrame};
use crate::turn::{RunModelOutcome, Usage};

const INTERRUPT_REQUEST: &str = "abide-interrupt";

/// How far a segment is with stopping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Stopping {
    #[default]
    NotAsked,
    /// A call runs inside the CLI; it is waited for.
    AwaitsCall,
    /// The CLI was interrupted.
    Interrupted,
}

impl Segment {
    /// Stops: the turn is cancelled.
    pub fn handle_cancel(&mut self) {
        if self.stopping != Stopping::NotAsked || self.is_ended() {
            return;
        }
        if self.recorded.has_started() {
            self.stopping = Stopping::AwaitsCall;
        } else {
            self.interrupt();
        }
        // Behind the interrupt: a denial alone would buy a model call.
        self.deny_all();
    }

    /// Takes the news that the segment had its time for what it waits for: a call that runs is cut
    /// off; a CLI that was interrupted and says nothing is given up.
    pub fn handle_cancel_patience_over(&mut self) {
        match self.stopping {
            Stopping::AwaitsCall => self.interrupt(),
            Stopping::Interrupted => self.end_cancelled(Usage::default()),
            Stopping::NotAsked => {}
        }
    }

    /// True once [`Segment::handle_cancel`] was called.
    #[must_use]
    pub const fn is_stopping(&self) -> bool {
        match self.stopping {
            Stopping::NotAsked => false,
            Stopping::AwaitsCall | Stopping::Interrupted => true,
        }
    }

    /// True once the CLI was interrupted.
    #[must_use]
    pub const fn is_interrupted(&self) -> bool {
        match self.stopping {
            Stopping::Interrupted => true,
            Stopping::NotAsked | Stopping::AwaitsCall => false,
        }
    }

    fn interrupt(&mut self) {
        self.stopping = Stopping::Interrupted;
        self.transmit.push_back(HostFrame::Interrupt {
            request_id: INTERRUPT_REQUEST.to_owned(),
        });
    }

    /// Takes a frame of a CLI that is to stop.
    pub(super) fn on_frame_while_stopping(&mut self, frame: CliFrame) {
        match frame {
            CliFrame::ControlRequest {
                request_id,
                request,
            } => self.refuse_while_stopping(request_id, request),
            // The result of a call that ran to its end; a cut one has no known end (G1).
            CliFrame::User(frame) if self.stopping == Stopping::AwaitsCall => {
                self.on_user(&frame);
                if !self.recorded.has_started() {
                    self.interrupt();
                }
            }
            CliFrame::Result(result) => self.on_result_while_stopping(&result),
            CliFrame::ControlCancel { request_id } => self.on_cancel(request_id),
            CliFrame::Reply(mark) => self.count(&mark),
            CliFrame::User(_)
            | CliFrame::ControlResponse(_)
            | CliFrame::System(_)
            | CliFrame::Assistant(_)
            | CliFrame::Delta(_)
            | CliFrame::Mirror(_)
            | CliFrame::Unknown { .. }
            | CliFrame::NotJson => {}
        }
    }

    fn refuse_while_stopping(&mut self, request_id: String, request: ControlRequest) {
        self.refuse(request_id, &request, "the turn was cancelled");
    }

    fn on_result_while_stopping(&mut self, result: &ResultFrame) {
        let usage = self.meter.rest(Usage {
            model_calls: self.transcript.model_calls(),
            ..usage::of_result(result)
        });
        self.end_cancelled(usage);
    }

    /// The process is of no use any more, whatever its end says.
    pub(super) fn end_cancelled(&mut self, rest: Usage) {
        let counted = self.meter.take();
        let usage = if rest == Usage::default() {
            counted
        } else {
            rest
        };
        if let State::Running = self.state {
            self.state = State::Ended(Ok(SegmentEnd {
                outcome: RunModelOutcome::Cancelled {
                    partial: None,
                    usage,
                },
                stands_at: None,
            }));
        }
    }
}
