//! Lists of sessions: which of them match, a page at a time.

use rusqlite::types;
use rusqlite::{Connection, Row, params_from_iter};

use super::failure::{Fault, bound, count, minute_column, time_column, time_from_column};
use crate::event::StepKind;
use crate::ids::{FlowType, Revision, SessionId, Tenant};
use crate::store::{
    SessionFilter, SessionPage, SessionStatus, SessionSummary, StoreError, SummaryRow, TimeRange,
};

pub(super) fn list(
    at: &Connection,
    filter: &SessionFilter,
    limit: usize,
) -> Result<SessionPage, Fault> {
    let (statement, values) = statement(filter, limit);
    let mut select = at.prepare_cached(&statement)?;
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

/// Returns the statement that lists, and its values.
pub(super) fn statement(filter: &SessionFilter, limit: usize) -> (String, Vec<types::Value>) {
    let Query {
        source,
        conditions,
        order,
        values,
    } = Query::of(filter);
    // One more than asked for tells whether there are more.
    let fetched = bound(limit as u64).saturating_add(1);
    let statement = format!(
        "SELECT sessions.id, revision, flow_type, status, tenant, sessions.metadata, created_at,
         updated_at, due_at, step FROM {source} WHERE {conditions} ORDER BY {order} LIMIT {fetched}"
    );
    (statement, values)
}

/// The parts of the statement that differ from filter to filter.
struct Query {
    source: &'static str,
    conditions: String,
    order: &'static str,
    values: Vec<types::Value>,
}

impl Query {
    /// Each filter is looked up in its index. Where two fit, one of them is walked through in the order
    /// of the ids, without sorting; times are a matter of sorting.
    fn of(filter: &SessionFilter) -> Self {
        let SessionFilter {
            flow_type,
            status,
            step,
            tenant,
            metadata,
            created,
            updated,
            due_by,
            after,
        } = filter;
        let has_equal =
            (flow_type.is_some() || status.is_some()) || (step.is_some() || tenant.is_some());
        // Few sessions are due at a time, have the same metadata, or are new or were changed of late:
        // SQLite would not guess that.
        let (source, order) = if due_by.is_some() {
            ("sessions INDEXED BY sessions_by_due_at", "sessions.id")
        } else if !metadata.is_empty() {
            (
                "session_metadata AS wanted CROSS JOIN sessions ON number = wanted.session",
                "wanted.session_id",
            )
        } else if updated.from.is_some() && !has_equal {
            (
                "sessions INDEXED BY sessions_by_updated_minute",
                "sessions.id",
            )
        } else if created.from.is_some() && !has_equal {
            ("sessions INDEXED BY sessions_by_created_at", "sessions.id")
        } else {
            ("sessions", "sessions.id")
        };
        let mut query = Self {
            source,
            conditions: String::from("TRUE"),
            order,
            values: Vec::new(),
        };
        let text = |it: &str| types::Value::Text(it.to_owned());
        let mut pairs = metadata.iter();
        if due_by.is_none()
            && let Some((key, value)) = pairs.next()
        {
            query.and("wanted.key = ?", [text(key)]);
            query.and("wanted.value = ?", [text(value)]);
        }
        for (key, value) in pairs {
            query.and(
                "EXISTS (SELECT 1 FROM session_metadata AS other
                 WHERE other.session = number AND other.key = ? AND other.value = ?)",
                [text(key), text(value)],
            );
        }
        if let Some(it) = flow_type {
            query.and("flow_type = ?", [text(it.as_str())]);
        }
        if let Some(it) = status {
            query.and("status = ?", [text(it.name())]);
        }
        if let Some(it) = step {
            query.and("step = ?", [text(it.name())]);
        }
        if let Some(it) = tenant {
            query.and("tenant = ?", [text(it.as_str())]);
        }
        query.within("created_at", created);
        query.within("updated_at", updated);
        let minute = |it| types::Value::Integer(minute_column(it));
        if let Some(it) = updated.from {
            query.and("updated_minute >= ?", [minute(it)]);
        }
        if let Some(it) = updated.before {
            query.and("updated_minute <= ?", [minute(it)]);
        }
        if let Some(it) = due_by {
            query.and("due_at <= ?", [types::Value::Integer(time_column(*it))]);
        }
        if let Some(it) = after {
            query.and(format!("{order} > ?"), [text(it.as_str())]);
        }
        query
    }

    fn and<const N: usize>(&mut self, condition: impl AsRef<str>, values: [types::Value; N]) {
        self.conditions += " AND ";
        self.conditions += condition.as_ref();
        self.values.extend(values);
    }

    fn within(&mut self, column: &str, range: &TimeRange) {
        let time = |it| types::Value::Integer(time_column(it));
        if let Some(it) = range.from {
            self.and(format!("{column} >= ?"), [time(it)]);
        }
        if let Some(it) = range.before {
            self.and(format!("{column} < ?"), [time(it)]);
        }
    }
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
            step: (row.get::<_, Option<String>>(9)?)
                .map(|it| StepKind::from_name(&it).ok_or_else(|| damaged("Step")))
                .transpose()?,
        },
    })
}
