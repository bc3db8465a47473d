//! The inbox: every open interrupt of every session, until it is decided.

use abide::event::StepKind;
use abide::ids::Tenant;
use abide::store::{InterruptFilter, InterruptRow, SessionFilter, SqliteStateStore, TimeRange};

use super::*;

/// Sessions and calls in the order of the list, read in pages of two.
async fn inbox(client: &AgentSessionClient, filter: InterruptFilter) -> Vec<InterruptRow> {
    let mut filter = filter;
    let mut rows: Vec<InterruptRow> = Vec::new();
    loop {
        let page = client.list_interrupts(&filter, 2).await.unwrap();
        rows.extend(page.rows);
        filter.after = rows.last().map(InterruptRow::position);
        if !page.has_more {
            return rows;
        }
    }
}

fn names(rows: &[InterruptRow]) -> Vec<String> {
    let rows = rows.iter();
    rows.map(|it| format!("{} {}", it.session, it.interrupt.interrupt_id))
        .collect()
}

/// Starts a session and waits until it waits for people.
async fn park(client: &AgentSessionClient, start: StartSession) {
    let id = start.session_id.clone();
    client.start_session(start).await.unwrap();
    Log::of(client, &id).await.suspended().await;
}

async fn interrupts_are_listed_until_they_are_decided(place: &Place) {
    let engine = place.engine().await;
    let (client, reader) = (engine.client(), place.client());
    let all = InterruptFilter::default;
    let tenant = Tenant::new("acme").unwrap();
    park(&client, start("b", "call write:c1 write:c2")).await;
    park(
        &client,
        start("a", "call write:c1").with_tenant(tenant.clone()),
    )
    .await;
    park(&client, start("c", "call write:c1")).await;
    client.start_session(start("d", "hello")).await.unwrap();
    Log::of(&client, &session("d")).await.turns_over(1).await;

    let rows = inbox(&reader, all()).await;
    let mut listed = names(&rows);
    listed.sort();
    assert_eq!(listed, ["a t1/c1", "b t1/c1", "b t1/c2", "c t1/c1"]);
    assert!(rows.is_sorted_by_key(InterruptRow::position));
    for row in &rows {
        let snapshot = reader.snapshot(&row.session).await.unwrap();
        let listed = &row.interrupt;
        let mut pending = snapshot.pending_interrupts.iter();
        let shown = pending.find(|it| it.interrupt_id == listed.interrupt_id);
        let shown = shown.unwrap();
        assert_eq!(listed.turn_id, shown.turn_id);
        assert_eq!(listed.tool_call_id, shown.tool_call_id);
        assert_eq!(listed.tool_name, shown.tool_name);
        assert_eq!(listed.arguments_preview, shown.arguments);
        assert_eq!(listed.arguments_bytes, shown.arguments.len() as u64);
        assert_eq!(listed.digest, shown.digest);
        assert_eq!(listed.effect, shown.effect);
        assert_eq!(listed.requested_at, shown.requested_at);
        assert_eq!(row.flow_type, Some(FlowType::new("Scripted").unwrap()));
        assert_eq!(row.tenant.is_some(), row.session == session("a"));
    }
    let theirs = InterruptFilter {
        tenant: Some(tenant),
        ..all()
    };
    assert_eq!(names(&inbox(&reader, theirs).await), ["a t1/c1"]);

    // One of two decided: the other one is still asked about, and the list needs no engine.
    engine.shutdown().await;
    let b = session("b");
    reader
        .resolve_interrupt(&b, approve("t1/c2"))
        .await
        .unwrap();
    let mut listed = names(&inbox(&reader, all()).await);
    listed.sort();
    assert_eq!(listed, ["a t1/c1", "b t1/c1", "c t1/c1"]);
    let answer = reject("t1/c1", "no");
    reader
        .resolve_interrupt(&session("c"), answer)
        .await
        .unwrap();
    let _engine = place.engine().await;
    reader
        .resolve_interrupt(&b, approve("t1/c1"))
        .await
        .unwrap();
    for name in ["b", "c"] {
        Log::of(&reader, &session(name)).await.turns_over(1).await;
    }
    assert_eq!(names(&inbox(&reader, all()).await), ["a t1/c1"]);
}

/// N50: in memory.
#[tokio::test(start_paused = true)]
async fn open_interrupts_are_listed_until_they_are_decided() {
    interrupts_are_listed_until_they_are_decided(&Place::new(Scripted::open())).await;
}

/// N50: on SQLite, where the reader has a connection of its own, as in another process.
#[tokio::test]
async fn open_interrupts_of_a_file_are_listed_until_they_are_decided() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.db");
    let mut place = Place::new(Scripted::open());
    place.store = Arc::new(SqliteStateStore::open(&file).await.unwrap());
    interrupts_are_listed_until_they_are_decided(&place).await;
    let other = SqliteStateStore::open(&file).await.unwrap();
    let other = AgentSessionClient::new(Arc::new(other));
    let expected = inbox(&place.client(), InterruptFilter::default()).await;
    assert_eq!(names(&expected), ["a t1/c1"]);
    assert_eq!(inbox(&other, InterruptFilter::default()).await, expected);
}

/// Sessions are found by the Step that they are at, by what they were started with, and by time.
#[tokio::test(start_paused = true)]
async fn sessions_are_found_by_step_metadata_and_time() {
    let place = Place::new(Scripted::closed());
    let engine = place.engine().await;
    let client = engine.client();
    client.start_session(start("runs", "wait")).await.unwrap();
    place.runner.waiting(1).await;
    let gold = start("asks", "call write:c1").with_metadata("plan", "gold");
    park(&client, gold).await;
    client
        .start_session(start("acts", "call slow:c1"))
        .await
        .unwrap();
    place.runner.waiting(2).await;
    let before = place.now();
    // sleeps because only (virtual) time passes here
    tokio::time::sleep(std::time::Duration::from_secs(90)).await;
    client.start_session(start("late", "wait")).await.unwrap();
    place.runner.waiting(3).await;
    let any = SessionFilter::default;
    let at = |step| SessionFilter {
        step: Some(step),
        ..any()
    };
    let later = TimeRange {
        from: Some(before.after(std::time::Duration::from_secs(1))),
        before: None,
    };
    let cases = [
        (at(StepKind::RunModel), &["late", "runs"][..]),
        (at(StepKind::AwaitToolApproval), &["asks"]),
        (at(StepKind::CallSingleAttemptTool), &["acts"]),
        (at(StepKind::CallTool), &[]),
        (
            SessionFilter {
                metadata: [("plan".to_owned(), "gold".to_owned())].into(),
                ..any()
            },
            &["asks"],
        ),
        (
            SessionFilter {
                created: later,
                ..any()
            },
            &["late"],
        ),
        (
            SessionFilter {
                updated: later,
                ..any()
            },
            &["late"],
        ),
    ];
    for (filter, expected) in cases {
        let page = client.list_sessions(&filter, 10).await.unwrap();
        let found = page.rows.iter().map(|it| it.session.as_str());
        assert_eq!(found.collect::<Vec<_>>(), expected, "{filter:?}");
    }
}

/// N35, N50: the inbox says until when somebody may decide, and holds nothing that is past its end.
#[tokio::test(start_paused = true)]
async fn an_inbox_tells_deadlines() {
    let mut place = Place::new(Scripted::open());
    let deadline = std::time::Duration::from_secs(3600);
    place.flow_options = SessionOptions::default().with_interrupt_deadline(deadline);
    let engine = place.engine().await;
    let client = engine.client();
    park(&client, start("a", "call write:c1")).await;
    let rows = inbox(&client, InterruptFilter::default()).await;
    let end = rows[0].interrupt.requested_at.after(deadline);
    assert_eq!(rows[0].interrupt.expires_at, Some(end));
    let by = |end: Timestamp| InterruptFilter {
        expires_by: Some(end),
        ..InterruptFilter::default()
    };
    assert_eq!(inbox(&client, by(end)).await, rows);
    assert_eq!(inbox(&client, by(Timestamp(end.0 - 1))).await, []);
    tokio::time::advance(deadline).await;
    Log::of(&client, &session("a")).await.turns_over(1).await;
    assert_eq!(inbox(&client, InterruptFilter::default()).await, []);
}
