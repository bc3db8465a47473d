//! The inbox in files of older versions.

use std::path::{Path, PathBuf};

use abide::event::StepKind;
use abide::ids::{SessionId, Tenant, Timestamp};
use abide::session::SessionState;
use abide::store::{
    Commit, InterruptFilter, InterruptRow, SessionFilter, SqliteStateStore, StateStore, TimeRange,
};
use rusqlite::Connection;

const FORMAT_2: &str = include_str!("../../fixtures/stored/sqlite_2.sql");

fn place() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sessions.db");
    (directory, path)
}

fn id(text: &str) -> SessionId {
    SessionId::new(text).unwrap()
}

async fn interrupts(store: &dyn StateStore, filter: &InterruptFilter) -> Vec<InterruptRow> {
    let page = store.list_interrupts(filter, 100).await.unwrap();
    assert!(!page.has_more);
    page.rows
}

async fn sessions(store: &dyn StateStore, filter: SessionFilter) -> Vec<String> {
    let page = store.list(&filter, 100).await.unwrap();
    let rows = page.rows.into_iter();
    rows.map(|it| it.session.as_str().to_owned()).collect()
}

/// G12: a file of format 2, which knew no inbox, has one once it is opened: what is parked in it is
/// committed by nobody before its person has found it.
#[tokio::test]
async fn a_file_of_format_2_has_an_inbox() {
    let (_directory, path) = place();
    let old = Connection::open(&path).unwrap();
    old.execute_batch(FORMAT_2).unwrap();
    drop(old);
    let store = SqliteStateStore::open(&path).await.unwrap();
    let stored = store.load(&id("s")).await.unwrap().unwrap();
    let state = SessionState::read(&stored.state).unwrap();
    let expected = state.turn.unwrap().open_interrupts();
    assert_eq!(expected.len(), 3);
    let rows = interrupts(&store, &InterruptFilter::default()).await;
    let shown: Vec<_> = rows.iter().map(|it| it.interrupt.clone()).collect();
    assert_eq!(shown, expected);
    for row in &rows {
        let owner = (
            row.session.as_str(),
            row.flow_type.as_ref().unwrap().as_str(),
        );
        assert_eq!(owner, ("s", "Flow"));
        assert_eq!(row.tenant, Some(Tenant::new("acme").unwrap()));
    }

    let any = SessionFilter::default;
    let with = |metadata: &[(&str, &str)]| SessionFilter {
        metadata: (metadata.iter())
            .map(|(key, it)| ((*key).to_owned(), (*it).to_owned()))
            .collect(),
        ..any()
    };
    let updated = |from, before| SessionFilter {
        updated: TimeRange {
            from: Some(Timestamp(from)),
            before: Some(Timestamp(before)),
        },
        ..any()
    };
    let waiting = SessionFilter {
        step: Some(StepKind::AwaitToolApproval),
        ..any()
    };
    for (filter, expected) in [
        (waiting, &["s"][..]),
        (with(&[("order", "42")]), &["idle", "s"]),
        (with(&[("order", "42"), ("plan", "gold")]), &["s"]),
        (updated(1_000_000, 1_060_001), &["running", "s"]),
        (updated(1_060_001, 1_120_001), &["idle", "unreadable"]),
    ] {
        assert_eq!(
            sessions(&store, filter.clone()).await,
            expected,
            "{filter:?}"
        );
    }
    // It is written on: the next commit says what is open.
    let next = Commit {
        state: stored.state,
        ..Commit::default()
    };
    store
        .commit(&id("s"), stored.revision, None, next)
        .await
        .unwrap();
    let again = SqliteStateStore::open(&path).await.unwrap();
    assert_eq!(interrupts(&again, &InterruptFilter::default()).await, []);
}

/// G12: an older file ends up with the tables and indexes of a new one.
#[tokio::test]
async fn a_migrated_file_is_made_like_a_new_one() {
    const FORMAT_1: &str = include_str!("../../fixtures/stored/sqlite_1.sql");
    let (directory, new) = place();
    drop(SqliteStateStore::open(&new).await.unwrap());
    let expected = layout(&new);
    for (name, made) in [("1.db", FORMAT_1), ("2.db", FORMAT_2)] {
        let path = directory.path().join(name);
        let old = Connection::open(&path).unwrap();
        old.execute_batch(made).unwrap();
        drop(old);
        assert_ne!(layout(&path), expected);
        drop(SqliteStateStore::open(&path).await.unwrap());
        assert_eq!(layout(&path), expected);
    }
}

/// Every column of every table, and how every index was made; sorted, because columns that were
/// added later stand last.
fn layout(path: &Path) -> Vec<String> {
    let connection = Connection::open(path).unwrap();
    let mut select = connection
        .prepare(
            "SELECT tables.name || ' ' || columns.name || ' ' || columns.type || ' ' || \"notnull\" || ' '
                 || coalesce(dflt_value, '-') || ' ' || pk
             FROM sqlite_schema AS tables, pragma_table_info(tables.name) AS columns
             WHERE tables.type = 'table'
             UNION ALL SELECT sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL
             UNION ALL SELECT 'format ' || user_version FROM pragma_user_version
             ORDER BY 1",
        )
        .unwrap();
    let lines = select.query_map([], |row| row.get(0)).unwrap();
    lines.map(Result::unwrap).collect()
}
