//! A store that remembers what was committed.

use std::sync::{Arc, Mutex};

use abide::ids::{Revision, SessionId};
use abide::store::{Commit, Fence, StateStore, StoreError};
use abide::testing::faults::Front;

#[derive(Debug)]
pub(crate) struct RecordingStore {
    inner: Arc<dyn StateStore>,
    commits: Arc<Mutex<Vec<Commit>>>,
}

impl RecordingStore {
    pub(crate) fn new(inner: Arc<dyn StateStore>, commits: Arc<Mutex<Vec<Commit>>>) -> Self {
        Self { inner, commits }
    }
}

impl Front for RecordingStore {
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
        let revision = self.inner.commit(session, expected, fence, commit.clone());
        let revision = revision.await?;
        self.commits.lock().expect("a list").push(commit);
        Ok(revision)
    }
}
