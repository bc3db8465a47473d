//! Gates: named points at which a scripted answer waits until the test lets it go on.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

/// A named point at which scripted answers wait.
///
/// Created by [`ScriptedMessagesApi::gate`](super::ScriptedMessagesApi::gate); clones are the same
/// gate. A gate is closed at first, and stays open once it was opened.
#[derive(Debug, Clone)]
pub struct Gate {
    state: watch::Sender<GateState>,
}

#[derive(Debug, Clone, Copy)]
struct GateState {
    reached: usize,
    open: bool,
}

impl Gate {
    fn closed() -> Self {
        let state = GateState {
            reached: 0,
            open: false,
        };
        Self {
            state: watch::Sender::new(state),
        }
    }

    /// Lets every answer that waits here go on, and every later one pass.
    pub fn open(&self) {
        self.state.send_modify(|state| state.open = true);
    }

    /// Returns how many answers came to this gate, passed ones included.
    #[must_use]
    pub fn times_reached(&self) -> usize {
        self.state.borrow().reached
    }

    /// Waits until at least `times` answers came to this gate.
    ///
    /// What the answer says before the gate is on its way by then; the client may not have read it
    /// yet.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only watches.
    pub async fn wait_until_reached(&self, times: usize) {
        self.wait_for(|state| state.reached >= times).await;
    }

    /// Counts an arrival and waits until the gate is open.
    pub(super) async fn pass(&self) {
        self.state.send_modify(|state| state.reached += 1);
        self.wait_for(|state| state.open).await;
    }

    async fn wait_for(&self, condition: impl Fn(GateState) -> bool) {
        // An error means that no sender is left, and `self` is one.
        let _ = self
            .state
            .subscribe()
            .wait_for(|state| condition(*state))
            .await;
    }
}

/// The gates of one server, made when first named by a reply or by the test.
#[derive(Debug, Default)]
pub(super) struct Gates {
    by_name: Mutex<BTreeMap<String, Gate>>,
}

impl Gates {
    pub(super) fn named(&self, name: &str) -> Gate {
        self.by_name
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(name.to_owned())
            .or_insert_with(Gate::closed)
            .clone()
    }
}
