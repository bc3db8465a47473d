//! Files of older formats, brought to today's in the transaction that opens them (G12).
//!
//! A process that still writes an older format is refused from then on.

use rusqlite::{Connection, params};
use serde::Deserialize;

use super::failure::Fault;
use super::interrupts;
use crate::commit::SessionStatus;
use crate::event::StepKind;
use crate::ids::SessionId;
use crate::record::{CallRecord, OpenInterrupt};
use crate::store::StoreError;

/// Brings a file of the format `from` to today's.
pub(super) fn migrate(at: &Connection, from: u32) -> Result<(), Fault> {
    if from < 2 {
        at.execute_batch(FROM_1_TO_2)?;
    }
    if from < 3 {
        at.execute_batch(FROM_2_TO_3)?;
        index_open_interrupts(at)?;
    }
    Ok(())
}

/// Format 1 had every value as it is.
const FROM_1_TO_2: &str = "
ALTER TABLE rows ADD COLUMN codec INTEGER NOT NULL DEFAULT 0;
ALTER TABLE events ADD COLUMN codec INTEGER NOT NULL DEFAULT 0;
";

/// Format 2 listed sessions by fewer things, and no interrupts. The Step of a session that has
/// something to do for a worker comes with its next commit.
const FROM_2_TO_3: &str = "
ALTER TABLE sessions ADD COLUMN step TEXT;
ALTER TABLE sessions ADD COLUMN updated_minute INTEGER NOT NULL DEFAULT 0;
CREATE INDEX sessions_by_step ON sessions (step, id) WHERE step IS NOT NULL;
CREATE INDEX sessions_by_created_at ON sessions (created_at);
CREATE INDEX sessions_by_updated_minute ON sessions (updated_minute);
UPDATE sessions SET updated_minute = updated_at / 60000;

CREATE TABLE session_metadata (
    session INTEGER NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    session_id TEXT NOT NULL,
    PRIMARY KEY (session, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX session_metadata_by_value ON session_metadata (key, value, session_id);
INSERT INTO session_metadata (session, key, value, session_id)
    SELECT sessions.number, one.key, one.value, sessions.id
    FROM sessions, json_each(sessions.metadata) AS one;

CREATE TABLE interrupts (
    session INTEGER NOT NULL,
    id TEXT NOT NULL,
    requested_at INTEGER NOT NULL,
    session_id TEXT NOT NULL,
    flow_type TEXT,
    tenant TEXT,
    expires_at INTEGER,
    shown TEXT NOT NULL,
    PRIMARY KEY (session, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX interrupts_by_age ON interrupts (requested_at, session_id, id);
CREATE INDEX interrupts_by_flow_type ON interrupts (flow_type, requested_at, session_id, id);
CREATE INDEX interrupts_by_tenant ON interrupts (tenant, requested_at, session_id, id)
    WHERE tenant IS NOT NULL;
CREATE INDEX interrupts_by_end ON interrupts (expires_at) WHERE expires_at IS NOT NULL;
";

/// What the states in a file of format 2 say about open interrupts, and nothing else of them.
#[derive(Deserialize)]
struct StateBefore3 {
    turn: Option<TurnBefore3>,
}

#[derive(Deserialize)]
struct TurnBefore3 {
    calls: Vec<CallBefore3>,
}

#[derive(Deserialize)]
struct CallBefore3 {
    record: CallRecord,
    step: serde_json::Value,
}

impl CallBefore3 {
    fn open_interrupt(&self) -> Option<OpenInterrupt> {
        let is_open = self.step.get("await_tool_approval").is_some();
        is_open.then(|| OpenInterrupt::of_call(&self.record))
    }
}

/// The person whom a parked session waits for would not find it otherwise: nothing commits it before.
fn index_open_interrupts(at: &Connection) -> Result<(), Fault> {
    let mut select = at.prepare(
        "SELECT number, id, flow_type, tenant, state FROM sessions JOIN states ON session = number
         WHERE status IN (?1, ?2)",
    )?;
    let with_turns = [SessionStatus::AwaitingApproval, SessionStatus::Running];
    let mut rows = select.query(with_turns.map(SessionStatus::name))?;
    while let Some(row) = rows.next()? {
        let state: Vec<u8> = row.get(4)?;
        // One that cannot be read is not for this version to show either.
        let Ok(state) = serde_json::from_slice::<StateBefore3>(&state) else {
            continue;
        };
        let calls = state.turn.map(|it| it.calls).unwrap_or_default();
        let open: Vec<_> = calls
            .iter()
            .filter_map(CallBefore3::open_interrupt)
            .collect();
        let id: String = row.get(1)?;
        let session = interrupts::Owner {
            number: row.get(0)?,
            id: &SessionId::new(id).map_err(|_| StoreError::Corrupt {
                what: "the id of a session".to_owned(),
            })?,
            flow_type: row.get(2)?,
            tenant: row.get(3)?,
        };
        interrupts::replace(at, &session, &open)?;
    }
    at.execute(
        "UPDATE sessions SET step = ?1 WHERE status = ?2",
        params![
            StepKind::AwaitToolApproval.name(),
            SessionStatus::AwaitingApproval.name()
        ],
    )?;
    Ok(())
}
