//! Processes that stay between two turns, for the next message (design.md 4): a second turn costs no
//! start. One is used again only if it stands exactly where the session stands.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::mcp::ToolServer;
use crate::ids::{ClaudeSessionId, LeaseEpoch, SessionId};
use crate::protocol::{AgentSetup, CliFrame, decode_line};
use crate::runner::ProcessSlot;
use crate::transport::{CliProcess, LaunchFile, LaunchSpec};

/// How long a process that is not needed any more may take to end by itself.
const EXIT_GRACE: Duration = Duration::from_secs(2);

/// A process between two turns, with what belongs to it.
pub(super) struct Resident {
    pub(super) process: Box<dyn CliProcess>,
    pub(super) server: ToolServer,
    pub(super) slot: ProcessSlot,
}

/// Where a process stands and what it was started with: all of it must fit.
#[derive(Clone, PartialEq)]
pub(super) struct WarmKey {
    pub(super) claude_session: ClaudeSessionId,
    /// The last entry of the transcript.
    pub(super) last_entry: String,
    pub(super) started_with: StartedWith,
}

/// What a process was started with, but for the transcript.
#[derive(Clone, PartialEq)]
pub(super) struct StartedWith {
    arguments: Vec<String>,
    environment: BTreeMap<String, String>,
    working_directory: PathBuf,
    files: Vec<LaunchFile>,
    setup: AgentSetup,
}

impl StartedWith {
    pub(super) fn of(launch: &LaunchSpec, setup: &AgentSetup) -> Self {
        let is_kept = |it: &&String| !it.starts_with("--resume=");
        let mut environment = launch.environment.clone();
        environment.remove(super::planning::RESUME_INTERRUPTED_TURN);
        Self {
            arguments: launch.arguments.iter().filter(is_kept).cloned().collect(),
            environment,
            working_directory: launch.working_directory.clone(),
            files: launch.files.clone(),
            setup: setup.clone(),
        }
    }
}

/// The processes of one runner that wait for a next message.
#[derive(Clone, Default)]
pub(super) struct WarmProcesses(Arc<Mutex<HashMap<SessionId, Handle>>>);

struct Handle {
    key: WarmKey,
    epoch: LeaseEpoch,
    claim: oneshot::Sender<oneshot::Sender<Resident>>,
}

impl WarmProcesses {
    /// Keeps a process until it is claimed, for `window` at most. Must be called inside a tokio
    /// runtime.
    pub(super) fn keep(
        &self,
        session: SessionId,
        key: WarmKey,
        epoch: LeaseEpoch,
        mut resident: Resident,
        window: Duration,
    ) {
        resident.slot.wait();
        let (claim, claimed) = oneshot::channel();
        let handle = Handle { key, epoch, claim };
        // One that was kept before is ended by this.
        self.lock().insert(session.clone(), handle);
        let kept = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            wait(resident, claimed, window).await;
            if let Some(kept) = kept.upgrade() {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                if kept.get(&session).is_some_and(|it| it.claim.is_closed()) {
                    kept.remove(&session);
                }
            }
        });
    }

    /// Takes the session's process if it fits; ends it otherwise. A larger epoch by more than one
    /// says that another worker had the session meanwhile.
    pub(super) async fn claim(
        &self,
        session: &SessionId,
        key: &WarmKey,
        epoch: LeaseEpoch,
    ) -> Option<Resident> {
        let handle = self.lock().remove(session)?;
        let is_ours = epoch.0 >= handle.epoch.0 && epoch.0 - handle.epoch.0 <= 1;
        if handle.key != *key || !is_ours {
            return None;
        }
        let (reply, resident) = oneshot::channel();
        handle.claim.send(reply).ok()?;
        resident.await.ok()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Handle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits with a process for its claim, and ends it when none comes.
async fn wait(
    mut resident: Resident,
    mut claimed: oneshot::Receiver<oneshot::Sender<Resident>>,
    window: Duration,
) {
    let over = tokio::time::sleep(window);
    tokio::pin!(over);
    loop {
        tokio::select! {
            biased;
            claim = &mut claimed => match claim {
                Ok(reply) => {
                    // Whoever claimed it and is gone leaves it to be dropped, which ends it.
                    let _ = reply.send(resident);
                    return;
                }
                Err(_) => break,
            },
            () = &mut over => break,
            () = resident.slot.evicted() => break,
            line = resident.process.receive() => match line {
                Ok(Some(line)) if says_nothing(&line) => {}
                // It ended, or does something unasked.
                Ok(Some(_) | None) | Err(_) => break,
            },
        }
    }
    resident.process.close_input();
    let _ = resident.process.shutdown(EXIT_GRACE).await;
}

/// True for what a CLI writes after its result by itself: bookkeeping (spec/cli-protocol.md 0.8).
fn says_nothing(line: &[u8]) -> bool {
    match decode_line(line) {
        Ok(CliFrame::Mirror(frame)) => frame
            .entries
            .iter()
            .all(|it| it.head().is_ok_and(|head| head.uuid.is_none())),
        Ok(CliFrame::Unknown { .. } | CliFrame::NotJson) => true,
        Ok(
            CliFrame::ControlRequest { .. }
            | CliFrame::ControlResponse(_)
            | CliFrame::ControlCancel { .. }
            | CliFrame::System(_)
            | CliFrame::Assistant(_)
            | CliFrame::User(_)
            | CliFrame::Delta(_)
            | CliFrame::Reply(_)
            | CliFrame::Result(_),
        )
        | Err(_) => false,
    }
}
