//! The list of open interrupts over all sessions.

use super::*;
use crate::ids::{FlowType, Tenant, Timestamp, ToolCallId, TurnId};
use crate::policy::{ToolEffect, ToolPolicy};
use crate::record::{CallRecord, OpenInterrupt};
use crate::store::{
    InterruptFilter, InterruptPage, InterruptPosition, InterruptRow, SessionSummary,
};
use crate::turn::{CallPlace, RequestedCall};

pub(super) const RULES: &[Rule] = &[
    ("an open interrupt comes back as it was committed", |it| {
        Box::pin(an_interrupt_comes_back(it))
    }),
    (
        "open interrupts are those of the last commit of each session",
        |it| Box::pin(the_last_commit_counts(it)),
    ),
    ("open interrupts are listed oldest first, in pages", |it| {
        Box::pin(pages_are_ordered(it))
    }),
    (
        "each filter of interrupts lets through what fits it",
        |it| Box::pin(each_filter_filters(it)),
    ),
    (
        "paging through interrupts misses and repeats nothing while others write",
        |it| Box::pin(paging_is_stable(it)),
    ),
    (
        "an interrupt that stands twice in a commit is refused",
        |it| Box::pin(twice_is_refused(it)),
    ),
];

/// A question about the call of this name.
fn asked(call: &str, requested_at: u64) -> OpenInterrupt {
    let call = RequestedCall {
        tool_call_id: must(ToolCallId::new(call), "make an id"),
        tool_name: "refund \"all\"".to_owned(),
        arguments: format!(r#"{{"order":"ü{}"}}"#, "7".repeat(600)),
        shown_arguments: None,
        policy: ToolPolicy::new(ToolEffect::NonIdempotentWrite),
        place: CallPlace::Step,
    };
    let now = Timestamp(requested_at);
    let record = CallRecord::requested(&id("s"), TurnId::new(3), &call, now);
    OpenInterrupt::of_call(&record)
}

/// The same with an end.
fn ending(call: &str, requested_at: u64, expires_at: Option<Timestamp>) -> OpenInterrupt {
    OpenInterrupt {
        expires_at,
        ..asked(call, requested_at)
    }
}

fn asking(interrupts: Vec<OpenInterrupt>) -> Commit {
    Commit {
        interrupts,
        ..state("s")
    }
}

async fn page(store: &Store, filter: &InterruptFilter, limit: usize) -> InterruptPage {
    must(
        store.list_interrupts(filter, limit).await,
        "list interrupts",
    )
}

/// Sessions and calls, in the order of the list.
async fn names(store: &Store, filter: InterruptFilter) -> Vec<String> {
    let page = page(store, &filter, 1000).await;
    assert!(!page.has_more);
    page.rows.iter().map(name).collect()
}

fn name(row: &InterruptRow) -> String {
    format!("{} {}", row.session, row.interrupt.tool_call_id)
}

async fn an_interrupt_comes_back(store: Store) {
    let flow_type = Some(must(FlowType::new("SupportAgent"), "make a flow type"));
    let tenant = Some(must(Tenant::new("acme/eu:1"), "make a tenant"));
    let first = asked("toolu_01", 1_700_000_000_123);
    let second = ending("toolu_02", 1_700_000_000_124, Some(Timestamp(u64::MAX)));
    let full = Commit {
        summary: SessionSummary {
            flow_type: flow_type.clone(),
            tenant: tenant.clone(),
            ..SessionSummary::default()
        },
        ..asking(vec![first.clone(), second.clone()])
    };
    commit(&store, &id("a"), 0, full).await;
    commit(
        &store,
        &id("b"),
        0,
        asking(vec![asked("toolu_01", u64::MAX)]),
    )
    .await;
    let row = |name, interrupt: OpenInterrupt| InterruptRow {
        session: id(name),
        flow_type: flow_type.clone().filter(|_| name == "a"),
        tenant: tenant.clone().filter(|_| name == "a"),
        interrupt,
    };
    let rows = vec![
        row("a", first),
        row("a", second),
        row("b", asked("toolu_01", u64::MAX)),
    ];
    let expected = InterruptPage {
        rows,
        has_more: false,
    };
    assert_eq!(
        page(&store, &InterruptFilter::default(), 10).await,
        expected
    );
}

async fn the_last_commit_counts(store: Store) {
    let all = InterruptFilter::default;
    let (one, two) = (asked("c1", 10), asked("c2", 11));
    let other = id("other");
    commit(&store, &other, 0, asking(vec![asked("c1", 12)])).await;
    let session = id("s");
    let steps = [
        (
            vec![one.clone(), two.clone()],
            &["s c1", "s c2", "other c1"][..],
        ),
        (
            vec![one.clone(), two.clone()],
            &["s c1", "s c2", "other c1"],
        ),
        (vec![two.clone()], &["s c2", "other c1"]),
        (vec![], &["other c1"]),
        (
            vec![asked("c3", 13), one.clone()],
            &["s c1", "other c1", "s c3"],
        ),
    ];
    for (on, (open, expected)) in steps.into_iter().enumerate() {
        commit(&store, &session, on as u64, asking(open)).await;
        assert_eq!(names(&store, all()).await, expected);
    }
    // The same question with another end is one question.
    let later = ending("c3", 13, Some(Timestamp(99)));
    commit(&store, &session, 5, asking(vec![later.clone()])).await;
    let rows = page(&store, &all(), 10).await.rows;
    let shown: Vec<_> = rows.into_iter().map(|it| it.interrupt).collect();
    assert_eq!(shown, [asked("c1", 12), later]);

    // What is refused opens nothing.
    let late = store.commit(&session, Revision(5), None, asking(vec![one]));
    refused(late.await, "a conflict", |it| {
        matches!(it, StoreError::Conflict { .. })
    });
    must(store.delete(&other).await, "delete");
    assert_eq!(names(&store, all()).await, ["s c3"]);
    // A session that has the id of a deleted one starts with none.
    commit(&store, &other, 0, state("new")).await;
    assert_eq!(names(&store, all()).await, ["s c3"]);
}

async fn pages_are_ordered(store: Store) {
    // By time, then by the bytes of the session, then by those of the id.
    let questions = [
        ("b", vec![("c2", 20), ("c1", 20)]),
        ("a/1", vec![("c1", 20)]),
        ("a", vec![("c10", 20), ("c9", 20), ("c1", 30)]),
        ("Z", vec![("c1", 5), ("c2", 20)]),
    ];
    for (session, calls) in questions {
        let open = calls.into_iter().map(|(call, at)| asked(call, at));
        commit(&store, &id(session), 0, asking(open.collect())).await;
    }
    let expected = [
        "Z c1", "Z c2", "a c10", "a c9", "a/1 c1", "b c1", "b c2", "a c1",
    ];
    for limit in 1..=expected.len() {
        let mut filter = InterruptFilter::default();
        let mut seen = Vec::new();
        loop {
            let page = page(&store, &filter, limit).await;
            seen.extend(page.rows.iter().map(name));
            assert_eq!(page.has_more, seen.len() < expected.len());
            filter.after = page.rows.last().map(InterruptRow::position);
            if !page.has_more {
                break;
            }
        }
        assert_eq!(seen, expected);
        let after_all = page(&store, &filter, limit).await;
        assert_eq!(after_all, InterruptPage::default());
    }
    let nothing = page(&store, &InterruptFilter::default(), 0).await;
    assert_eq!((nothing.rows.len(), nothing.has_more), (0, true));
    // A place need not be one of an interrupt that is there.
    let between = InterruptPosition {
        requested_at: Timestamp(20),
        session: id("a"),
        interrupt_id: crate::ids::InterruptId::from_client("t3/c5"),
    };
    let filter = InterruptFilter {
        after: Some(between),
        ..InterruptFilter::default()
    };
    assert_eq!(names(&store, filter).await, expected[3..]);
}

async fn each_filter_filters(store: Store) {
    let flow = |text| Some(must(FlowType::new(text), "make a flow type"));
    let tenant = |text| Some(must(Tenant::new(text), "make a tenant"));
    let sessions = [
        ("a", flow("F"), None, None),
        ("b", flow("f"), tenant("t"), Some(100)),
        ("c", flow("F"), tenant("t"), Some(200)),
        ("d", None, tenant("T"), None),
    ];
    for (at, (name, flow_type, tenant, end)) in sessions.into_iter().enumerate() {
        let question = ending("c1", at as u64, end.map(Timestamp));
        let full = Commit {
            summary: SessionSummary {
                flow_type,
                tenant,
                ..SessionSummary::default()
            },
            ..asking(vec![question])
        };
        commit(&store, &id(name), 0, full).await;
    }
    let any = InterruptFilter::default;
    let by = |end| InterruptFilter {
        expires_by: Some(Timestamp(end)),
        ..any()
    };
    let cases = [
        (any(), &["a c1", "b c1", "c c1", "d c1"][..]),
        (
            InterruptFilter {
                flow_type: flow("F"),
                ..any()
            },
            &["a c1", "c c1"],
        ),
        (
            InterruptFilter {
                tenant: tenant("t"),
                ..any()
            },
            &["b c1", "c c1"],
        ),
        (
            InterruptFilter {
                tenant: tenant("t"),
                flow_type: flow("F"),
                ..any()
            },
            &["c c1"],
        ),
        (
            InterruptFilter {
                tenant: tenant("none"),
                ..any()
            },
            &[],
        ),
        (by(99), &[]),
        (by(100), &["b c1"]),
        (by(u64::MAX), &["b c1", "c c1"]),
    ];
    for (filter, expected) in cases {
        assert_eq!(names(&store, filter.clone()).await, expected, "{filter:?}");
    }
    // A session that changes hands takes its questions along.
    let moved = Commit {
        summary: SessionSummary {
            tenant: tenant("T"),
            ..SessionSummary::default()
        },
        ..asking(vec![ending("c1", 1, Some(Timestamp(100)))])
    };
    commit(&store, &id("b"), 1, moved).await;
    let theirs = InterruptFilter {
        tenant: tenant("T"),
        ..any()
    };
    assert_eq!(names(&store, theirs).await, ["b c1", "d c1"]);
}

async fn paging_is_stable(store: Store) {
    let all: Vec<_> = (10..50).map(|it| id(&format!("s{it}"))).collect();
    for (at, session) in all.iter().enumerate() {
        commit(&store, session, 0, asking(vec![asked("c1", at as u64)])).await;
    }
    let mut filter = InterruptFilter::default();
    let mut seen = Vec::new();
    for turn in 1..=all.len() {
        let page = page(&store, &filter, 7).await;
        seen.extend(page.rows.iter().map(|it| it.session.clone()));
        let Some(last) = page.rows.last().filter(|_| page.has_more) else {
            break;
        };
        filter.after = Some(last.position());
        // Behind the reader one is decided; the others are committed again and stay where they are.
        commit(&store, &all[turn - 1], turn as u64, state("s")).await;
        for (at, session) in all.iter().enumerate().skip(turn) {
            let same = asking(vec![asked("c1", at as u64)]);
            commit(&store, session, turn as u64, same).await;
        }
    }
    assert_eq!(seen, all);
}

async fn twice_is_refused(store: Store) {
    let twice = asking(vec![asked("c1", 1), asked("c2", 1), asked("c1", 2)]);
    let session = id("s");
    let answer = store.commit(&session, Revision(0), None, twice).await;
    refused(answer, "`Corrupt`", is_corrupt);
    assert_eq!(load(&store, &session).await, None);
    assert!(names(&store, InterruptFilter::default()).await.is_empty());
}
