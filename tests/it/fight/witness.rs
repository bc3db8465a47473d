//! A store that remembers under which epoch who committed what.

use std::sync::{Arc, Mutex, PoisonError};

use abide::ids::{LeaseEpoch, Revision, SessionId};
use abide::store::{Commit, Fence, StateStore, StoreError};
use abide::testing::faults::Front;

/// A commit under a lease, as the store answered it.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// Which engine, counted over all that were ever started.
    pub(super) engine: usize,
    pub(super) session: SessionId,
    pub(super) epoch: LeaseEpoch,
    /// False when it was refused as fenced.
    pub(super) was_taken: bool,
}

/// What all engines did, in the order in which the store answered.
#[derive(Debug, Clone, Default)]
pub(super) struct Witness(Arc<Mutex<Vec<Seen>>>);

impl Witness {
    pub(super) fn all(&self) -> Vec<Seen> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn of_engine(&self, engine: usize, inner: Arc<dyn StateStore>) -> Witnessed {
        let witness = self.clone();
        Witnessed {
            inner,
            engine,
            witness,
        }
    }
}

/// What one engine sees of the store.
#[derive(Debug)]
pub(super) struct Witnessed {
    inner: Arc<dyn StateStore>,
    engine: usize,
    witness: Witness,
}

impl Front for Witnessed {
    fn behind(&self) -> &dyn StateStore {
        &*self.inner
    }

    async fn pass_commit(
        &self,
        session: &SessionId,
        expected: Revision,
        fence: Option<Fence>,
        commit: Commit,
    ) -> Result<Revision, StoreError> {
        let epoch = fence.as_ref().map(Fence::epoch);
        let answer = self.inner.commit(session, expected, fence, commit).await;
        let was_taken = match &answer {
            Ok(_) => Some(true),
            Err(StoreError::Fenced { .. }) => Some(false),
            Err(_) => None,
        };
        if let (Some(epoch), Some(was_taken)) = (epoch, was_taken) {
            let mut all = self
                .witness
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            all.push(Seen {
                engine: self.engine,
                session: session.clone(),
                epoch,
                was_taken,
            });
        }
        answer
    }
}
