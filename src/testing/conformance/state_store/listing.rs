//! Lists: filters, order and paging.

use super::*;
use crate::event::StepKind;
use crate::ids::{FlowType, Tenant, Timestamp};
use crate::store::{
    SessionFilter, SessionPage, SessionStatus, SessionSummary, SummaryRow, TimeRange,
};

pub(super) const RULES: &[Rule] = &[
    ("a summary comes back as it was committed", |it| {
        Box::pin(a_summary_comes_back(it))
    }),
    ("each filter lets through what fits it", |it| {
        Box::pin(each_filter_filters(it))
    }),
    ("a Step and metadata are listed by, and times", |it| {
        Box::pin(further_filters(it))
    }),
    ("a list follows the last commit", |it| {
        Box::pin(a_list_follows_the_last_commit(it))
    }),
    (
        "pages are ordered by id and say whether there is more",
        |it| Box::pin(pages_are_ordered(it)),
    ),
    (
        "paging misses and repeats nothing while others write",
        |it| Box::pin(paging_is_stable(it)),
    ),
];

fn summarized(summary: SessionSummary) -> Commit {
    Commit {
        summary,
        ..state("s")
    }
}

fn flow(text: &str) -> Option<FlowType> {
    Some(must(FlowType::new(text), "make a flow type"))
}

fn tenant(text: &str) -> Option<Tenant> {
    Some(must(Tenant::new(text), "make a tenant"))
}

async fn page(store: &Store, filter: &SessionFilter, limit: usize) -> SessionPage {
    must(store.list(filter, limit).await, "list")
}

async fn names(store: &Store, filter: SessionFilter) -> Vec<String> {
    let page = page(store, &filter, 100).await;
    assert!(!page.has_more);
    let rows = page.rows.into_iter();
    rows.map(|it| it.session.as_str().to_owned()).collect()
}

async fn a_summary_comes_back(store: Store) {
    let full = SessionSummary {
        flow_type: flow("SupportAgent"),
        status: SessionStatus::AwaitingApproval,
        step: Some(StepKind::AwaitToolApproval),
        tenant: tenant("acme/eu:1"),
        metadata: [("plan", "gold \"plus\""), ("ü", "\u{1f980}\n"), ("", "")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        created_at: Timestamp(1_700_000_000_123),
        updated_at: Timestamp(1_700_000_000_456),
        due_at: Some(Timestamp(0)),
    };
    let never = SessionSummary {
        due_at: Some(Timestamp(u64::MAX)),
        status: SessionStatus::Ended,
        ..SessionSummary::default()
    };
    let summaries = [("a", full), ("b", SessionSummary::default()), ("c", never)];
    let mut rows = Vec::new();
    for (name, summary) in summaries {
        commit(&store, &id(name), 0, summarized(summary.clone())).await;
        rows.push(SummaryRow {
            session: id(name),
            revision: Revision(1),
            summary,
        });
    }
    let expected = SessionPage {
        rows,
        has_more: false,
    };
    assert_eq!(page(&store, &SessionFilter::default(), 10).await, expected);
}

async fn each_filter_filters(store: Store) {
    let statuses = [
        SessionStatus::Idle,
        SessionStatus::Running,
        SessionStatus::AwaitingApproval,
        SessionStatus::Ended,
    ];
    for (number, status) in statuses.into_iter().enumerate() {
        let summary = SessionSummary {
            flow_type: flow(if number < 2 { "F" } else { "f" }),
            status,
            tenant: tenant("t").filter(|_| number % 2 == 1),
            due_at: (number > 0).then_some(Timestamp(number as u64 * 100)),
            ..SessionSummary::default()
        };
        commit(&store, &id(&format!("s{number}")), 0, summarized(summary)).await;
    }
    let any = SessionFilter::default;
    let by = |due: u64| SessionFilter {
        due_by: Some(Timestamp(due)),
        ..any()
    };
    let cases = [
        (any(), &["s0", "s1", "s2", "s3"][..]),
        (
            SessionFilter {
                flow_type: flow("F"),
                ..any()
            },
            &["s0", "s1"],
        ),
        (
            SessionFilter {
                flow_type: flow("none"),
                ..any()
            },
            &[],
        ),
        (
            SessionFilter {
                tenant: tenant("t"),
                ..any()
            },
            &["s1", "s3"],
        ),
        (by(99), &[]),
        (by(100), &["s1"]),
        (by(299), &["s1", "s2"]),
        (by(u64::MAX), &["s1", "s2", "s3"]),
        (
            SessionFilter {
                after: Some(id("s1")),
                ..any()
            },
            &["s2", "s3"],
        ),
        (
            SessionFilter {
                after: Some(id("s11")),
                ..any()
            },
            &["s2", "s3"],
        ),
        (
            SessionFilter {
                after: Some(id("s3")),
                ..any()
            },
            &[],
        ),
        (
            SessionFilter {
                flow_type: flow("f"),
                tenant: tenant("t"),
                ..any()
            },
            &["s3"],
        ),
        (
            SessionFilter {
                after: Some(id("s1")),
                tenant: tenant("t"),
                ..by(300)
            },
            &["s3"],
        ),
    ];
    for (filter, expected) in cases {
        assert_eq!(names(&store, filter.clone()).await, expected, "{filter:?}");
    }
    for (number, status) in statuses.into_iter().enumerate() {
        let filter = SessionFilter {
            status: Some(status),
            ..any()
        };
        assert_eq!(names(&store, filter).await, [format!("s{number}")]);
    }
}

async fn further_filters(store: Store) {
    let pairs = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter();
        pairs
            .map(|(key, it)| ((*key).to_owned(), (*it).to_owned()))
            .collect()
    };
    let sessions = [
        ("a", Some(StepKind::RunModel), 10, 100, &[][..]),
        ("b", Some(StepKind::CallTool), 20, 50, &[("plan", "gold")]),
        (
            "c",
            Some(StepKind::RunModel),
            30,
            60_000,
            &[("plan", "silver"), ("eu", "yes")],
        ),
        ("d", None, 30, 130_000, &[("plan", "gold"), ("eu", "yes")]),
        ("e", None, 40, 130_001, &[("gold", "plan")]),
    ];
    for (name, step, created_at, updated_at, metadata) in sessions {
        let summary = SessionSummary {
            step,
            created_at: Timestamp(created_at),
            updated_at: Timestamp(updated_at),
            metadata: pairs(metadata),
            flow_type: flow(if name < "c" { "early" } else { "late" }),
            ..SessionSummary::default()
        };
        commit(&store, &id(name), 0, summarized(summary)).await;
    }
    let any = SessionFilter::default;
    let at = |step| SessionFilter {
        step: Some(step),
        ..any()
    };
    let with = |metadata: &[(&str, &str)]| SessionFilter {
        metadata: pairs(metadata),
        ..any()
    };
    let time = |from: Option<u64>, before: Option<u64>| TimeRange {
        from: from.map(Timestamp),
        before: before.map(Timestamp),
    };
    let created = |from, before| SessionFilter {
        created: time(from, before),
        ..any()
    };
    let updated = |from, before| SessionFilter {
        updated: time(from, before),
        ..any()
    };
    let cases = [
        (at(StepKind::RunModel), &["a", "c"][..]),
        (at(StepKind::CallTool), &["b"]),
        (at(StepKind::ResumeTurn), &[]),
        (with(&[("plan", "gold")]), &["b", "d"]),
        (with(&[("plan", "gold"), ("eu", "yes")]), &["d"]),
        (with(&[("plan", "")]), &[]),
        (with(&[("eu", "yes"), ("none", "none")]), &[]),
        (created(None, Some(30)), &["a", "b"]),
        (created(Some(30), None), &["c", "d", "e"]),
        (created(Some(20), Some(31)), &["b", "c", "d"]),
        (created(Some(31), Some(31)), &[]),
        (updated(Some(100), None), &["a", "c", "d", "e"]),
        (updated(None, Some(60_000)), &["a", "b"]),
        (updated(Some(60_000), Some(130_001)), &["c", "d"]),
        (updated(Some(130_001), None), &["e"]),
        (
            SessionFilter {
                after: Some(id("b")),
                ..with(&[("plan", "gold")])
            },
            &["d"],
        ),
        (
            SessionFilter {
                flow_type: flow("late"),
                step: Some(StepKind::RunModel),
                created: time(Some(30), None),
                updated: time(None, Some(70_000)),
                ..with(&[("eu", "yes")])
            },
            &["c"],
        ),
    ];
    for (filter, expected) in cases {
        assert_eq!(names(&store, filter.clone()).await, expected, "{filter:?}");
    }
    let gold = SessionFilter {
        metadata: pairs(&[("plan", "gold")]),
        ..any()
    };
    let first = page(&store, &gold, 1).await;
    assert_eq!((first.rows.len(), first.has_more), (1, true));

    // What a commit changes, a list follows; what is deleted is not found by what it had.
    let moved = SessionSummary {
        metadata: pairs(&[("plan", "bronze")]),
        updated_at: Timestamp(200_000),
        ..SessionSummary::default()
    };
    commit(&store, &id("b"), 1, summarized(moved)).await;
    must(store.delete(&id("d")).await, "delete");
    commit(&store, &id("d"), 0, state("new")).await;
    assert!(names(&store, gold).await.is_empty());
    assert_eq!(names(&store, with(&[("plan", "bronze")])).await, ["b"]);
    assert_eq!(
        names(&store, updated(Some(130_001), None)).await,
        ["b", "e"]
    );
    assert!(names(&store, at(StepKind::CallTool)).await.is_empty());
}

async fn a_list_follows_the_last_commit(store: Store) {
    let session = id("moving");
    let due = |due_at: Option<u64>, status| SessionSummary {
        due_at: due_at.map(Timestamp),
        status,
        flow_type: flow("F"),
        ..SessionSummary::default()
    };
    let by_ten = || SessionFilter {
        due_by: Some(Timestamp(10)),
        ..SessionFilter::default()
    };
    let running = || SessionFilter {
        status: Some(SessionStatus::Running),
        ..SessionFilter::default()
    };
    let (idle, busy) = (SessionStatus::Idle, SessionStatus::Running);
    let steps = [
        (due(None, idle), false, false),
        (due(Some(10), busy), true, true),
        (due(Some(11), busy), false, true),
        (due(Some(5), idle), true, false),
        (due(None, idle), false, false),
    ];
    for (on, (summary, is_due, is_running)) in steps.into_iter().enumerate() {
        commit(&store, &session, on as u64, summarized(summary.clone())).await;
        assert_eq!(names(&store, by_ten()).await.len(), usize::from(is_due));
        assert_eq!(
            names(&store, running()).await.len(),
            usize::from(is_running)
        );
        let listed = page(&store, &SessionFilter::default(), 10).await;
        let expected = SummaryRow {
            session: session.clone(),
            revision: Revision(on as u64 + 1),
            summary,
        };
        assert_eq!(listed.rows, [expected]);
    }
}

async fn pages_are_ordered(store: Store) {
    // Bytes decide, not an alphabet.
    for name in ["b", "a", "Z", "a/1", "a.1", "aa"] {
        commit(&store, &id(name), 0, state("s")).await;
    }
    let mut filter = SessionFilter::default();
    for (limit, expected, has_more) in [
        (2, &["Z", "a"][..], true),
        (3, &["a.1", "a/1", "aa"], true),
        (1, &["b"], false),
        (1, &[], false),
    ] {
        let page = page(&store, &filter, limit).await;
        let listed: Vec<_> = page.rows.iter().map(|it| it.session.as_str()).collect();
        assert_eq!((listed.as_slice(), page.has_more), (expected, has_more));
        filter.after = page
            .rows
            .last()
            .map(|it| it.session.clone())
            .or(filter.after);
    }
    let nothing = page(&store, &SessionFilter::default(), 0).await;
    assert_eq!((nothing.rows.len(), nothing.has_more), (0, true));
    let all = page(&store, &SessionFilter::default(), usize::MAX).await;
    assert_eq!((all.rows.len(), all.has_more), (6, false));
}

async fn paging_is_stable(store: Store) {
    let all: Vec<_> = (10..50).map(|it| id(&format!("s{it}"))).collect();
    for session in &all {
        commit(&store, session, 0, state("s")).await;
    }
    let mut filter = SessionFilter::default();
    let mut seen = Vec::new();
    for turn in 1..=all.len() {
        let page = page(&store, &filter, 7).await;
        seen.extend(page.rows.iter().map(|it| it.session.clone()));
        let Some(last) = page.rows.last().filter(|_| page.has_more) else {
            break;
        };
        filter.after = Some(last.session.clone());
        // Behind the reader one appears and one goes, and every other one is committed again.
        commit(&store, &id(&format!("s1{turn}x")), 0, state("s")).await;
        must(store.delete(&all[turn - 1]).await, "delete");
        for session in &all[turn..] {
            commit(&store, session, turn as u64, state("t")).await;
        }
    }
    assert_eq!(seen, all);
}
