//! Lists of sessions: which of them match, a page at a time.

use rusqlite::types;
use rusqlite::{Connection, Row, params_from_iter};

use super::failure::{Fault, bound, count, time_column, time_from_column};
use crate::ids::{FlowType, Revision, SessionId, Tenant};
use crate::store::{
    SessionFilter, SessionPage, SessionStatus, SessionSummary, StoreError, SummaryRow,
};

pub(super) fn list(
    at: &Connection,
    filter: &SessionFilter,
    limit: usize,
) -> Result<SessionPage, Fault> {
    let (conditions, values) = conditions(filter);
    // Few sessions are due at a time, which SQLite would not guess.
    let index = match filter.due_by {
        Some(_) => "INDEXED BY sessions_by_due_at",
        None => "",
    };
    // One more than asked for tells whether there are more.
    let fetched = bound(limit as u64).saturating_add(1);
    let mut select = at.prepare_cached(&format!(
        "SELECT id, revision, flow_type, status, tenant, metadata, created_at, updated_at, due_at
         FROM sessions {index} WHERE {conditions} ORDER BY id LIMIT {fetched}"
    ))?;
    let mut found = select.query(params_from_iter(values))?;
    let mut page = SessionPage::default();
    while let Some(row) = found.next()? {
        if page.rows.len() == limit {
            page.has_more = true;
            break;
        }
        page.rows.push(summary_row(row)?);
    }
    Ok(page)
}

fn conditions(filter: &SessionFilter) -> (String, Vec<types::Value>) {
    let SessionFilter {
        flow_type,
        status,
        tenant,
        due_by,
        after,
    } = filter;
    let text = |it: &str| types::Value::Text(it.to_owned());
    let wanted = [
        (
            "flow_type =",
            flow_type.as_ref().map(|it| text(it.as_str())),
        ),
        ("status =", status.map(|it| text(it.name()))),
        ("tenant =", tenant.as_ref().map(|it| text(it.as_str()))),
        (
            "due_at <=",
            due_by.map(|it| types::Value::Integer(time_column(it))),
        ),
        ("id >", after.as_ref().map(|it| text(it.as_str()))),
    ];
    let mut sql = String::from("TRUE");
    let mut values = Vec::new();
    for (condition, value) in wanted {
        if let Some(value) = value {
            sql += " AND ";
            sql += condition;
            sql += " ?";
            values.push(value);
        }
    }
    (sql, values)
}

fn summary_row(row: &Row<'_>) -> Result<SummaryRow, Fault> {
    let id: String = row.get(0)?;
    let damaged = |column: &str| StoreError::Corrupt {
        what: format!("the {column} of the session {id}"),
    };
    let status: String = row.get(3)?;
    let metadata: String = row.get(5)?;
    Ok(SummaryRow {
        session: SessionId::new(id.clone()).map_err(|_| damaged("id"))?,
        revision: Revision(count(row, 1)?),
        summary: SessionSummary {
            flow_type: row
                .get::<_, Option<String>>(2)?
                .map(FlowType::new)
                .transpose()
                .map_err(|_| damaged("flow type"))?,
            status: SessionStatus::from_name(&status).ok_or_else(|| damaged("status"))?,
            tenant: row
                .get::<_, Option<String>>(4)?
                .map(Tenant::new)
                .transpose()
                .map_err(|_| damaged("tenant"))?,
            metadata: serde_json::from_str(&metadata).map_err(|_| damaged("metadata"))?,
            created_at: time_from_column(row.get(6)?),
            updated_at: time_from_column(row.get(7)?),
            due_at: row.get::<_, Option<i64>>(8)?.map(time_from_column),
        },
    })
}
