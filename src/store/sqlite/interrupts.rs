//! The index of open interrupts over all sessions.

use rusqlite::{Connection, Row, params, params_from_iter, types};

use super::failure::{Fault, bound, time_column};
use crate::ids::{FlowType, SessionId, Tenant};
use crate::record::OpenInterrupt;
use crate::store::{InterruptFilter, InterruptPage, InterruptRow, StoreError, rules};

/// The session whose interrupts are indexed, and what they are listed by.
#[derive(Debug)]
pub(super) struct Owner<'a> {
    pub(super) number: i64,
    pub(super) id: &'a SessionId,
    pub(super) flow_type: Option<String>,
    pub(super) tenant: Option<String>,
}

/// Makes these the session's open interrupts. Writes only what differs: most commits change none.
pub(super) fn replace(
    at: &Connection,
    owner: &Owner<'_>,
    open: &[OpenInterrupt],
) -> Result<(), Fault> {
    rules::check_interrupts(open)?;
    if open.is_empty() {
        at.prepare_cached("DELETE FROM interrupts WHERE session = ?1")?
            .execute([owner.number])?;
        return Ok(());
    }
    for gone in stored_ids(at, owner.number)? {
        if !open.iter().any(|it| it.interrupt_id.as_str() == gone) {
            at.prepare_cached("DELETE FROM interrupts WHERE session = ?1 AND id = ?2")?
                .execute(params![owner.number, gone])?;
        }
    }
    for interrupt in open {
        let shown = serde_json::to_string(interrupt).map_err(|it| StoreError::Backend {
            operation: "encode an interrupt",
            source: it.into(),
        })?;
        at.prepare_cached(
            "INSERT INTO interrupts
                 (session, id, requested_at, session_id, flow_type, tenant, expires_at, shown)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
             ON CONFLICT DO UPDATE SET requested_at = ?3, flow_type = ?5, tenant = ?6,
                 expires_at = ?7, shown = ?8
             WHERE shown IS NOT ?8 OR flow_type IS NOT ?5 OR tenant IS NOT ?6",
        )?
        .execute(params![
            owner.number,
            interrupt.interrupt_id.as_str(),
            time_column(interrupt.requested_at),
            owner.id.as_str(),
            owner.flow_type,
            owner.tenant,
            interrupt.expires_at.map(time_column),
            shown,
        ])?;
    }
    Ok(())
}

fn stored_ids(at: &Connection, session: i64) -> Result<Vec<String>, Fault> {
    let mut select = at.prepare_cached("SELECT id FROM interrupts WHERE session = ?1")?;
    let ids = select.query_map([session], |row| row.get(0))?;
    Ok(ids.collect::<Result<_, _>>()?)
}

pub(super) fn list(
    at: &Connection,
    filter: &InterruptFilter,
    limit: usize,
) -> Result<InterruptPage, Fault> {
    let (statement, values) = statement(filter, limit);
    let mut select = at.prepare_cached(&statement)?;
    let mut found = select.query(params_from_iter(values))?;
    let mut page = InterruptPage::default();
    while let Some(row) = found.next()? {
        if page.rows.len() == limit {
            page.has_more = true;
            break;
        }
        page.rows.push(interrupt_row(row)?);
    }
    Ok(page)
}

/// Returns the statement that lists, and its values.
pub(super) fn statement(filter: &InterruptFilter, limit: usize) -> (String, Vec<types::Value>) {
    let (conditions, values) = conditions(filter);
    // One more than asked for tells whether there are more.
    let fetched = bound(limit as u64).saturating_add(1);
    // Few of them have an end, which SQLite would not guess.
    let index = match filter.expires_by {
        Some(_) => "INDEXED BY interrupts_by_end",
        None => "",
    };
    let statement = format!(
        "SELECT session_id, flow_type, tenant, shown FROM interrupts {index} WHERE {conditions}
         ORDER BY requested_at, session_id, id LIMIT {fetched}"
    );
    (statement, values)
}

fn conditions(filter: &InterruptFilter) -> (String, Vec<types::Value>) {
    let InterruptFilter {
        flow_type,
        tenant,
        expires_by,
        after,
    } = filter;
    let text = |it: &str| types::Value::Text(it.to_owned());
    let mut sql = String::from("TRUE");
    let mut values = Vec::new();
    if let Some(it) = flow_type {
        sql += " AND flow_type = ?";
        values.push(text(it.as_str()));
    }
    if let Some(it) = tenant {
        sql += " AND tenant = ?";
        values.push(text(it.as_str()));
    }
    if let Some(it) = expires_by {
        sql += " AND expires_at <= ?";
        values.push(types::Value::Integer(time_column(*it)));
    }
    if let Some(it) = after {
        sql += " AND (requested_at, session_id, id) > (?, ?, ?)";
        values.extend([
            types::Value::Integer(time_column(it.requested_at)),
            text(it.session.as_str()),
            text(it.interrupt_id.as_str()),
        ]);
    }
    (sql, values)
}

fn interrupt_row(row: &Row<'_>) -> Result<InterruptRow, Fault> {
    let session: String = row.get(0)?;
    let damaged = |what: &str| StoreError::Corrupt {
        what: format!("the {what} of an interrupt of the session {session}"),
    };
    let shown: String = row.get(3)?;
    Ok(InterruptRow {
        session: SessionId::new(session.clone()).map_err(|_| damaged("session"))?,
        flow_type: row
            .get::<_, Option<String>>(1)?
            .map(FlowType::new)
            .transpose()
            .map_err(|_| damaged("flow type"))?,
        tenant: row
            .get::<_, Option<String>>(2)?
            .map(Tenant::new)
            .transpose()
            .map_err(|_| damaged("tenant"))?,
        interrupt: serde_json::from_str(&shown).map_err(|_| damaged("description"))?,
    })
}
