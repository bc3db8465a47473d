//! Every call that changes a session, over a store that is full, locked, gone, or does not know what
//! became of a commit: at each of the calls that it makes of the store, once or until the store is
//! back. The error is true, and the same call again has its effect once (P03, P16).

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use abide::client::{ClientError, CloseMode, SteerMode};
use abide::ids::{MessageId, RequestId, TurnId};
use abide::settings::SessionSettings;
use abide::store::{RowKey, RowKind, SqliteStateStore, StoreError};
use abide::testing::faults::{FailingStore, StoreCall, StoreFault};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::stages::{At, prepare};
use super::*;

/// A call of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Start,
    Send,
    Edit,
    Delete,
    Steer(SteerMode),
    SteerQueued(SteerMode),
    Approve,
    ApproveOthers,
    Reject,
    Cancel,
    Close(CloseMode),
    Settings,
    Retry,
    Fork,
    DeleteSession,
}

/// All of them, each with what its session is at.
const CALLS: [(Call, At); 19] = [
    (Call::Start, At::Nothing),
    (Call::Send, At::Waiting),
    (Call::Edit, At::Waiting),
    (Call::Delete, At::Waiting),
    (Call::Steer(SteerMode::AtBoundary), At::Waiting),
    (Call::Steer(SteerMode::Now), At::Waiting),
    (Call::SteerQueued(SteerMode::AtBoundary), At::Waiting),
    (Call::SteerQueued(SteerMode::Now), At::Waiting),
    (Call::Approve, At::Waiting),
    (Call::ApproveOthers, At::Waiting),
    (Call::Reject, At::Waiting),
    (Call::Cancel, At::Waiting),
    (Call::Close(CloseMode::Cancel), At::Waiting),
    (Call::Close(CloseMode::Drain), At::Waiting),
    (Call::Close(CloseMode::Reject), At::Idle),
    (Call::Settings, At::Idle),
    (Call::Retry, At::Failed),
    (Call::Fork, At::Ended),
    (Call::DeleteSession, At::Ended),
];

const REQUEST: &str = "r1";

/// Makes the call, always the same one; true when it had been taken before.
async fn make(
    client: &AgentSessionClient,
    id: &SessionId,
    call: Call,
) -> Result<bool, ClientError> {
    let request = || RequestId::new(REQUEST).unwrap();
    let decided = async |answer: ResolveInterrupt| {
        let answer = answer.with_request_id(request());
        Ok(!client.resolve_interrupt(id, answer).await?)
    };
    let (some, two) = (Some(request()), MessageId::new(2));
    match call {
        Call::Start => Ok(!client.start_session(start(id.as_str(), "hello")).await?),
        Call::Send => Ok(client.send_user_message(id, "four", some).await?.duplicate),
        Call::Edit => {
            let edited = client.edit_queued_message(id, two, "better", some);
            Ok(edited.await?.duplicate)
        }
        Call::Delete => Ok(client.delete_queued_message(id, two, some).await?.duplicate),
        Call::Steer(mode) => {
            let steered = client.steer_user_message(id, "over there", mode, some);
            Ok(steered.await?.duplicate)
        }
        Call::SteerQueued(mode) => {
            let steered = client.steer_queued_message(id, two, mode, some);
            Ok(steered.await?.duplicate)
        }
        Call::Approve => decided(approve("t1/c1")).await,
        Call::ApproveOthers => {
            decided(approve("t1/c1").with_changed_arguments(r#"{"for":"others"}"#)).await
        }
        Call::Reject => decided(reject("t1/c1", "no")).await,
        Call::Cancel => Ok(client.cancel_turn(id, None, None, some).await?.duplicate),
        Call::Close(mode) => Ok(client.close_session(id, mode, some).await?.duplicate),
        Call::Settings => {
            let settings = SessionSettings {
                model: Some("other".to_owned()),
                ..SessionSettings::default()
            };
            let updated = client.update_settings(id, 0, settings, some);
            Ok(updated.await?.duplicate)
        }
        Call::Retry => {
            let tried = client.retry_turn(id, TurnId::new(1), some);
            Ok(tried.await?.duplicate)
        }
        Call::Fork => {
            let into = start(fork_of(id).as_str(), "another way");
            Ok(!client.fork_session(id, TurnId::new(1), into).await?)
        }
        Call::DeleteSession => match client.delete_session(id).await {
            Ok(()) => Ok(false),
            Err(ClientError::NoSession { .. }) => Ok(true),
            Err(error) => Err(error),
        },
    }
}

fn fork_of(id: &SessionId) -> SessionId {
    session(&format!("{id}-fork"))
}

/// Everything that can be seen of a session and of its fork, but for times and what follows from the
/// session's name.
async fn left(place: &Place, id: &SessionId) -> Value {
    let client = place.client();
    let mut all = Vec::new();
    let name = id.as_str();
    for id in [id.clone(), fork_of(id)] {
        let snapshot = match client.snapshot(&id).await {
            Ok(snapshot) => snapshot,
            Err(ClientError::NoSession { .. }) => {
                all.push(Value::Null);
                continue;
            }
            Err(error) => panic!("{id}: {error}"),
        };
        let log = client.read_events(&id, EventCursor(0), 1_000).await;
        let kinds: Vec<_> = log.unwrap().events.into_iter().map(|it| it.kind).collect();
        let key = RowKey {
            kind: RowKind::Receipt,
            key: REQUEST.to_owned(),
        };
        let receipt = place.store.read_rows(&id, &[key]).await.unwrap().pop();
        let mut snapshot = serde_json::to_value(snapshot).unwrap();
        leave_out_times(&mut snapshot);
        let has_receipt = receipt.unwrap().is_some();
        let kinds = format!("{kinds:?}").replace(name, "it");
        all.push(json!([snapshot, kinds, has_receipt]));
    }
    Value::Array(all)
}

fn leave_out_times(value: &mut Value) {
    const NAMES: [&str; 9] = [
        "session_id",
        "created_at",
        "started_at",
        "requested_at",
        "decided_at",
        "sent_at",
        "digest",
        "session_bytes",
        "state_bytes",
    ];
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !NAMES.contains(&name.as_str()));
            fields.values_mut().for_each(leave_out_times);
        }
        Value::Array(items) => items.iter_mut().for_each(leave_out_times),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// One way for one call to meet a failing store.
#[derive(Debug, Clone, Copy)]
struct Trial {
    call: Call,
    /// The call of the store that fails first, counted from 0.
    at: usize,
    fault: StoreFault,
    /// Whether those after it fail too.
    lasts: bool,
}

impl Trial {
    /// Returns what the store answers to its call with this number.
    fn fault(self, asked: StoreCall, number: usize) -> Option<StoreFault> {
        let is_failing = number == self.at || (self.lasts && number > self.at);
        let fault = match (asked, self.fault) {
            (StoreCall::FreeCommit, fault) => Some(fault),
            // Who can only write no more can still be read.
            (_, StoreFault::Full) => None,
            (_, StoreFault::Gone) => Some(StoreFault::Gone),
            (_, StoreFault::Busy | StoreFault::AmbiguousDone | StoreFault::AmbiguousNotDone) => {
                Some(StoreFault::Busy)
            }
        };
        fault.filter(|_| is_failing)
    }

    fn is_told_by(self, error: &ClientError) -> bool {
        let ClientError::Store(error) = error else {
            return false;
        };
        match self.fault {
            StoreFault::Full => matches!(error, StoreError::Full { .. }),
            StoreFault::Busy => matches!(error, StoreError::Busy { .. }),
            StoreFault::Gone => matches!(error, StoreError::Backend { .. }),
            StoreFault::AmbiguousDone | StoreFault::AmbiguousNotDone => {
                matches!(error, StoreError::Ambiguous { .. })
            }
        }
    }

    const fn is_ambiguous(self) -> bool {
        matches!(
            self.fault,
            StoreFault::AmbiguousDone | StoreFault::AmbiguousNotDone
        )
    }

    /// Returns every way for a call that makes these calls of the store.
    fn all_of(call: Call, calls: &[StoreCall]) -> Vec<Self> {
        use StoreFault::{AmbiguousDone, AmbiguousNotDone, Busy, Full, Gone};
        let mut trials = Vec::new();
        for (at, asked) in calls.iter().enumerate() {
            let faults: &[StoreFault] = match asked {
                StoreCall::Read => &[Busy, Gone],
                StoreCall::FreeCommit => &[Full, Busy, Gone, AmbiguousDone, AmbiguousNotDone],
                StoreCall::FencedCommit | StoreCall::Lease => panic!("no client asks {asked:?}"),
            };
            for fault in faults {
                trials.extend([false, true].map(|lasts| Self {
                    call,
                    at,
                    fault: *fault,
                    lasts,
                }));
            }
        }
        trials
    }
}

/// Makes a call over a store that works, and returns what it asked of the store and what it left.
async fn undisturbed(place: &Place, id: &SessionId, call: Call) -> (Vec<StoreCall>, Value) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&asked);
    let plan = move |call, _| {
        list.lock().unwrap().push(call);
        None
    };
    let store = FailingStore::new(Arc::clone(&place.store), plan);
    let client = AgentSessionClient::new(Arc::new(store));
    assert!(!make(&client, id, call).await.unwrap(), "{call:?}");
    let asked = asked.lock().unwrap().clone();
    let done = left(place, id).await;
    assert!(make(&client, id, call).await.unwrap(), "{call:?}: a repeat");
    assert_eq!(left(place, id).await, done, "{call:?}: a repeat");
    (asked, done)
}

async fn check(place: &Place, id: &SessionId, trial: Trial, done: &Value) {
    let what = format!("{trial:?}");
    let before = left(place, id).await;
    let (number, is_back) = (AtomicUsize::new(0), Arc::new(AtomicBool::new(false)));
    let back = Arc::clone(&is_back);
    let plan = move |asked, _| {
        let number = number.fetch_add(1, Ordering::SeqCst);
        let fault = trial.fault(asked, number);
        fault.filter(|_| !back.load(Ordering::SeqCst))
    };
    let store = Arc::new(FailingStore::new(Arc::clone(&place.store), plan));
    let client = AgentSessionClient::new(Arc::clone(&store) as _);
    let first = make(&client, id, trial.call).await;
    assert!(*store.faults().borrow() > 0, "{what}: it met no fault");
    is_back.store(true, Ordering::SeqCst);
    let now = left(place, id).await;
    let holds = now != before;
    match &first {
        // It could find out by itself, or do without what it wanted to read.
        Ok(was_there) => {
            assert!(holds, "{what}");
            assert!(!was_there || trial.is_ambiguous(), "{what}");
        }
        Err(error) => {
            assert!(trial.is_told_by(error), "{what}: {error:?}");
            let is_gone = trial.fault == StoreFault::Gone;
            assert_eq!(error.is_retryable(), !is_gone, "{what}: {error:?}");
            let may_hold = error.may_have_happened();
            assert_eq!(may_hold, trial.is_ambiguous(), "{what}: {error:?}");
            assert!(
                may_hold || !holds,
                "{what}: it holds, in spite of {error:?}"
            );
        }
    }
    if holds {
        assert_eq!(now, *done, "{what}: what holds is the whole");
    }
    let again = make(&client, id, trial.call).await;
    assert_eq!(again.unwrap(), holds, "{what}: again");
    assert_eq!(left(place, id).await, *done, "{what}: again");
    assert!(make(&client, id, trial.call).await.unwrap(), "{what}");
    assert_eq!(left(place, id).await, *done, "{what}: once more");
}

async fn every_call_tells_the_truth(place: &Place) {
    let named = |number: usize, (_, at): &(Call, At)| (format!("plain-{number}"), *at);
    let plain: Vec<_> = (CALLS.iter().enumerate())
        .map(|(number, it)| named(number, it))
        .collect();
    prepare(place, &plain).await;
    let (mut trials, mut sessions) = (Vec::new(), Vec::new());
    for ((call, at), (name, _)) in CALLS.iter().zip(&plain) {
        let (asked, done) = undisturbed(place, &session(name), *call).await;
        assert!(asked.contains(&StoreCall::FreeCommit), "{call:?}");
        for trial in Trial::all_of(*call, &asked) {
            sessions.push((format!("trial-{}", trials.len()), *at));
            trials.push((trial, done.clone()));
        }
    }
    assert!(trials.len() > 300, "{}", trials.len());
    prepare(place, &sessions).await;
    for ((trial, done), (name, _)) in trials.iter().zip(&sessions) {
        check(place, &session(name), *trial, done).await;
    }
}

/// P03, P16: in memory.
#[tokio::test(start_paused = true)]
async fn every_call_tells_the_truth_of_a_failing_store_in_memory() {
    every_call_tells_the_truth(&Place::new(Scripted::open())).await;
}

async fn in_a_file(directory: &tempfile::TempDir) -> Place {
    let mut place = Place::new(Scripted::open());
    let store = SqliteStateStore::open(directory.path().join("s.sqlite")).await;
    place.store = Arc::new(store.unwrap());
    place
}

/// P03, P16: the same in a file.
#[tokio::test]
async fn every_call_tells_the_truth_of_a_failing_store_in_a_file() {
    let directory = tempfile::TempDir::new().unwrap();
    every_call_tells_the_truth(&in_a_file(&directory).await).await;
}

/// P16: a file whose write lock another process keeps: every call is told that it is busy and has
/// changed nothing, and has its effect once the lock is given back.
#[tokio::test]
async fn every_call_is_told_of_a_locked_file() {
    let directory = tempfile::TempDir::new().unwrap();
    let place = in_a_file(&directory).await;
    let sessions: Vec<_> = (CALLS.iter().enumerate())
        .map(|(number, (_, at))| (format!("s{number}"), *at))
        .collect();
    prepare(&place, &sessions).await;
    let ids = sessions.iter().map(|(name, _)| session(name));
    let ids: Vec<_> = ids.zip(CALLS.map(|(call, _)| call)).collect();
    let mut before = Vec::new();
    for (id, _) in &ids {
        before.push(left(&place, id).await);
    }
    let other = rusqlite::Connection::open(directory.path().join("s.sqlite")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    // All at once, because each waits for the lock.
    let mut calls = JoinSet::new();
    for (id, call) in ids.clone() {
        let client = place.client();
        calls.spawn(async move { (call, make(&client, &id, call).await) });
    }
    while let Some(answer) = calls.join_next().await {
        let (call, answer) = answer.unwrap();
        let error = answer.unwrap_err();
        let is_busy = matches!(&error, ClientError::Store(StoreError::Busy { .. }));
        assert!(is_busy, "{call:?}: {error:?}");
        assert!(error.is_retryable() && !error.may_have_happened());
    }
    other.execute_batch("COMMIT").unwrap();
    for ((id, call), before) in ids.iter().zip(before) {
        assert_eq!(left(&place, id).await, before, "{call:?}: nothing holds");
        let again = make(&place.client(), id, *call).await;
        assert!(!again.unwrap(), "{call:?}: again");
        assert_ne!(left(&place, id).await, before, "{call:?}: again");
    }
}

/// P16: a directory that is moved away while its file is open, and back: what was answered meanwhile is
/// there for whoever opens it then, and who opens it meanwhile is told.
#[tokio::test]
async fn a_directory_that_is_moved_away_and_back_loses_nothing() {
    let directory = tempfile::TempDir::new().unwrap();
    let [here, away] = ["here", "away"].map(|it| directory.path().join(it));
    std::fs::create_dir(&here).unwrap();
    let mut place = Place::new(Scripted::open());
    let file = here.join("s.sqlite");
    place.store = Arc::new(SqliteStateStore::open(&file).await.unwrap());
    prepare(&place, &[("s".to_owned(), At::Waiting)]).await;
    let id = session("s");
    std::fs::rename(&here, &away).unwrap();
    assert!(!make(&place.client(), &id, Call::Approve).await.unwrap());
    let missing = SqliteStateStore::open(&file).await;
    let is_told = matches!(missing, Err(StoreError::Unusable { .. }));
    assert!(is_told, "{missing:?}");
    std::fs::rename(&away, &here).unwrap();
    let done = left(&place, &id).await;
    place.store = Arc::new(SqliteStateStore::open(&file).await.unwrap());
    assert_eq!(left(&place, &id).await, done);
    assert!(make(&place.client(), &id, Call::Approve).await.unwrap());
}
