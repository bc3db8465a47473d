//! How much a session may hold, over each store (spec/core.md 22).

use std::path::Path;

use abide::client::ClientError;
use abide::event::{DiagnosticCode, EndReason};
use abide::failure::FailureClass;
use abide::session::Refusal;
use abide::store::SqliteStateStore;

use super::*;

const MIB: usize = 1024 * 1024;

/// A place whose sessions may hold 2 MiB.
fn narrow(store: Arc<dyn StateStore>, runner: Scripted) -> Place {
    let mut place = Place::new(runner);
    place.store = store;
    let limit = Some(2 * MIB as u64);
    place.flow_options = SessionOptions::default().with_session_bytes_max(limit);
    place
}

async fn stores(directory: &Path) -> [Arc<dyn StateStore>; 2] {
    let file = SqliteStateStore::open(directory.join("db")).await.unwrap();
    [Arc::new(MemoryStateStore::new()), Arc::new(file)]
}

/// Text that packs badly, so that what is stored is about as long.
fn noise(bytes: usize, seed: u64) -> String {
    let mut state = seed | 1;
    let letters = (0..bytes).map(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        char::from(b'!' + ((state >> 33) % 90) as u8)
    });
    letters.collect()
}

const PARAGRAPH: usize = 300 * 1024;

/// Has one more message answered, and waits until what its turn wrote is measured: the worker does that
/// before it lets go of the session.
async fn fill_by_one(place: &Place, log: &mut Log, id: &SessionId, turn: u64) {
    let text = noise(PARAGRAPH, turn);
    let client = place.client();
    client.send_user_message(id, &text, None).await.unwrap();
    log.turns_over(turn as usize).await;
    place.until_not_leased(id).await;
}

/// spec/core.md 22, G6: each share of the limit is told once; a full session has answered what it took,
/// and takes nothing more.
#[tokio::test]
async fn a_session_tells_how_full_it_is_and_ends_when_it_is() {
    let directory = tempfile::tempdir().unwrap();
    for store in stores(directory.path()).await {
        let place = narrow(store, Scripted::open());
        let engine = place.engine().await;
        let (client, id) = (engine.client(), session("s"));
        let empty = StartSession::new(id.clone(), FlowType::new("Scripted").unwrap());
        client.start_session(empty).await.unwrap();
        let mut log = Log::of(&client, &id).await;
        let mut turns = 0;
        let reason = EndReason::StateLimit;
        let snapshot = loop {
            turns += 1;
            fill_by_one(&place, &mut log, &id, turns).await;
            let snapshot = client.snapshot(&id).await.unwrap();
            let stored = client.session_size(&id).await.unwrap().stored_bytes;
            let shown = snapshot.session_bytes.unwrap();
            // Counted before packing, and so no less; the state may have grown a little since.
            assert!(shown + 1_000 > stored, "{shown} of {stored}");
            if snapshot.end_reason.is_some() {
                break snapshot;
            }
            assert!(stored < 2 * MIB as u64, "{stored}");
        };
        assert_eq!(snapshot.status, SessionStatus::Ended);
        assert_eq!(snapshot.end_reason, Some(reason));
        assert_eq!(snapshot.session_bytes_max, Some(2 * MIB as u64));
        assert!(snapshot.state_bytes > 100 && snapshot.state_bytes < 4_000);
        assert!(turns > 2, "each turn is about a fifth: {turns}");
        log.until(1, |it| *it == EventKind::SessionEnded { reason })
            .await;
        let codes = log.seen.iter().filter_map(|it| match it.kind {
            EventKind::Diagnostic { code } => Some(code),
            _ => None,
        });
        assert_eq!(
            codes.collect::<Vec<_>>(),
            [
                DiagnosticCode::SessionBytes50,
                DiagnosticCode::SessionBytes80,
                DiagnosticCode::SessionBytes95
            ]
        );
        let last = format!("re: {}", noise(PARAGRAPH, turns));
        assert_eq!(
            log.count(|it| *it == EventKind::TurnCompleted) as u64,
            turns
        );
        assert_eq!(texts(&client, &id).await.pop(), Some(last));
        let refused = client.send_user_message(&id, "more", None).await;
        let Err(ClientError::Refused(refusal)) = refused else {
            panic!("a full session took a message: {refused:?}");
        };
        assert_eq!(refusal, Refusal::SessionEnded { reason });
        engine.shutdown().await;
    }
}

/// A turn that alone may have reached a step is measured before its worker lets go of the session, and
/// not at the next message, which would be one too many.
#[tokio::test]
async fn a_turn_is_measured_before_its_worker_lets_go() {
    let directory = tempfile::tempdir().unwrap();
    for store in stores(directory.path()).await {
        let place = narrow(store, Scripted::closed());
        let engine = place.engine().await;
        let (client, id) = (engine.client(), session("s"));
        // As a transcript has each text twice, the message alone is below half of the limit, and with
        // its answer it is above.
        let text = format!("wait {}", noise(480 * 1024, 1));
        client.start_session(start("s", &text)).await.unwrap();
        place.runner.waiting(1).await;
        let bytes_max = async || client.snapshot(&id).await.unwrap().session_bytes_max;
        assert_eq!(bytes_max().await, None);
        place.runner.open_gate();
        Log::of(&client, &id).await.turns_over(1).await;
        place.until_not_leased(&id).await;
        assert_eq!(bytes_max().await, Some(2 * MIB as u64));
        engine.shutdown().await;
    }
}

/// G1, G3: a turn that goes on far beyond the limit is stopped before its next segment; what it had
/// started runs to its end, and its record and note are written.
#[tokio::test]
async fn a_turn_far_beyond_the_limit_is_stopped() {
    let directory = tempfile::tempdir().unwrap();
    for store in stores(directory.path()).await {
        let mut place = narrow(store, Scripted::open());
        let narrow = std::mem::take(&mut place.flow_options);
        place.flow_options = SessionOptions::default().with_session_bytes_max(None);
        let engine = place.engine().await;
        let (client, id) = (place.client(), session("s"));
        let empty = StartSession::new(id.clone(), FlowType::new("Scripted").unwrap());
        client.start_session(empty).await.unwrap();
        let mut log = Log::of(&client, &id).await;
        let mut turns = 0;
        while client.session_size(&id).await.unwrap().stored_bytes < 3 * MIB as u64 {
            turns += 1;
            fill_by_one(&place, &mut log, &id, turns).await;
        }
        client
            .send_user_message(&id, "call write:c1", None)
            .await
            .unwrap();
        log.suspended().await;
        engine.shutdown().await;
        assert_eq!(
            log.count(|it| matches!(it, EventKind::Diagnostic { .. })),
            0
        );
        let segments = place.runner.segments().len();

        place.flow_options = narrow;
        let engine = place.engine().await;
        client
            .resolve_interrupt(&id, approve(&format!("t{}/c1", turns + 1)))
            .await
            .unwrap();
        let reason = EndReason::StateLimit;
        log.until(1, |it| *it == EventKind::SessionEnded { reason })
            .await;
        let class = FailureClass::SessionFull;
        assert_eq!(log.count(|it| *it == EventKind::TurnFailed { class }), 1);
        assert_eq!(place.runner.tools(), [("c1".to_owned(), 1)]);
        assert_eq!(place.runner.segments().len(), segments);
        let snapshot = client.snapshot(&id).await.unwrap();
        assert_eq!(snapshot.last_failure.unwrap().class, class);
        let note = snapshot.messages.last().unwrap();
        assert_eq!(note.role, MessageRole::Note);
        let told = "- write({\"for\":\"c1\"}): succeeded; do not repeat it";
        assert_eq!(note.text.lines().last(), Some(told));
        engine.shutdown().await;
    }
}
