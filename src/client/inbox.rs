//! What waits for people, over all sessions.

use super::{AgentSessionClient, ClientError};
use crate::store::{InterruptFilter, InterruptPage, StoreError};

impl AgentSessionClient {
    /// Lists the open interrupts of all sessions, those that wait longest first, at most `limit`: an
    /// inbox. To go on, ask again after the place of the last one
    /// ([`InterruptRow::position`](crate::store::InterruptRow::position)): an interrupt keeps its place
    /// as long as it is open, so that paging neither misses nor repeats one that was open all the
    /// while. The snapshot of its session has the whole arguments.
    ///
    /// # Errors
    /// What the store reports.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn list_interrupts(
        &self,
        filter: &InterruptFilter,
        limit: usize,
    ) -> Result<InterruptPage, ClientError> {
        let page = self.store.list_interrupts(filter, limit).await?;
        match page.rows.iter().find(|it| it.interrupt.encoded.is_some()) {
            Some(row) => Err(ClientError::Store(StoreError::Corrupt {
                what: format!(
                    "an interrupt of the session {}: it was stored through a payload codec, and is \
                     read without one",
                    row.session
                ),
            })),
            None => Ok(page),
        }
    }
}
