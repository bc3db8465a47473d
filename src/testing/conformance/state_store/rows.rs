//! Rows: texts, arguments, outputs, records, receipts.

use super::*;
use crate::store::{RowChange, RowKey, RowKind};

pub(super) const RULES: &[Rule] = &[
    ("rows are read in the order that was asked for", |it| {
        Box::pin(rows_are_read_in_order(it))
    }),
    ("a row is replaced and deleted", |it| {
        Box::pin(a_row_is_replaced_and_deleted(it))
    }),
    ("changes of one commit apply in their order", |it| {
        Box::pin(changes_apply_in_order(it))
    }),
    ("kinds and sessions do not share rows", |it| {
        Box::pin(kinds_and_sessions_stay_apart(it))
    }),
];

fn key(kind: RowKind, text: &str) -> RowKey {
    RowKey {
        kind,
        key: text.to_owned(),
    }
}

fn record(text: &str) -> RowKey {
    key(RowKind::Record, text)
}

fn put(key: RowKey, value: &str) -> RowChange {
    RowChange::Put(key, value.into())
}

fn changing(rows: Vec<RowChange>) -> Commit {
    Commit { rows, ..state("s") }
}

async fn read(store: &Store, session: &SessionId, keys: &[RowKey]) -> Vec<Option<String>> {
    must(store.read_rows(session, keys).await, "read rows")
        .into_iter()
        .map(|it| it.map(|it| String::from_utf8_lossy(&it).into_owned()))
        .collect()
}

fn values<const N: usize>(values: [&str; N]) -> [Option<String>; N] {
    values.map(|it| (!it.is_empty()).then(|| it.to_owned()))
}

async fn rows_are_read_in_order(store: Store) {
    let session = id("rows");
    let rows = vec![
        put(record("a"), "1"),
        put(record("b"), "2"),
        put(record("c"), "3"),
    ];
    commit(&store, &session, 0, changing(rows)).await;
    let keys = ["c", "missing", "a", "c"].map(record);
    assert_eq!(
        read(&store, &session, &keys).await,
        values(["3", "", "1", "3"])
    );
    assert_eq!(read(&store, &session, &[]).await, values([]));
    assert_eq!(
        read(&store, &id("unknown"), &keys[..2]).await,
        values(["", ""])
    );
}

async fn a_row_is_replaced_and_deleted(store: Store) {
    let session = id("rows");
    let keys = ["a", "b"].map(record);
    commit(
        &store,
        &session,
        0,
        changing(vec![put(record("a"), "1"), put(record("b"), "2")]),
    )
    .await;
    commit(&store, &session, 1, changing(vec![put(record("a"), "one")])).await;
    assert_eq!(read(&store, &session, &keys).await, values(["one", "2"]));
    let deletions = ["b", "never"].map(|it| RowChange::Delete(record(it)));
    commit(&store, &session, 2, changing(deletions.into())).await;
    assert_eq!(read(&store, &session, &keys).await, values(["one", ""]));
    commit(&store, &session, 3, changing(vec![put(record("b"), "two")])).await;
    assert_eq!(read(&store, &session, &keys).await, values(["one", "two"]));
}

async fn changes_apply_in_order(store: Store) {
    let session = id("rows");
    let rows = vec![
        put(record("a"), "1"),
        put(record("a"), "2"),
        put(record("b"), "1"),
        RowChange::Delete(record("b")),
        RowChange::Delete(record("c")),
        put(record("c"), "3"),
    ];
    commit(&store, &session, 0, changing(rows)).await;
    let keys = ["a", "b", "c"].map(record);
    assert_eq!(read(&store, &session, &keys).await, values(["2", "", "3"]));
}

async fn kinds_and_sessions_stay_apart(store: Store) {
    let kinds = [
        RowKind::Message,
        RowKind::Record,
        RowKind::Arguments,
        RowKind::ChangedArguments,
        RowKind::ShownArguments,
        RowKind::Output,
        RowKind::Receipt,
    ];
    let names = [
        "t1/toolu_01",
        "t1:toolu_01",
        "T1/toolu_01",
        "",
        "ü\u{0}\u{1f980}",
    ];
    let (first, second) = (id("a"), id("a/b"));
    for session in [&first, &second] {
        let rows = kinds.iter().flat_map(|kind| {
            names.map(|it| put(key(*kind, it), &format!("{session} {} {it}", kind.name())))
        });
        commit(&store, session, 0, changing(rows.collect())).await;
    }
    for session in [&first, &second] {
        for kind in kinds {
            let expected = names.map(|it| Some(format!("{session} {} {it}", kind.name())));
            let keys = names.map(|it| key(kind, it));
            assert_eq!(read(&store, session, &keys).await, expected);
        }
    }
}
