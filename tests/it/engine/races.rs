//! Two client processes over one SQLite file race each other with every call that changes a session
//! (P03, P04): both decide over the same revision, then one commits before the other, or both at
//! once.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use abide::store::{RowKey, RowKind, SqliteStateStore};
use serde_json::{Value, json};

use super::stages::{At, prepare};
use super::*;

/// A client in a process of its own. Killed when it is dropped.
struct Caller {
    child: Child,
    hears: ChildStdin,
    says: BufReader<ChildStdout>,
}

impl Caller {
    fn new(store: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_crash-worker"))
            .arg("caller")
            .arg(store)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut it = Self {
            hears: child.stdin.take().unwrap(),
            says: BufReader::new(child.stdout.take().unwrap()),
            child,
        };
        assert_eq!(it.hear(), "started");
        it
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.hears, "{line}").unwrap();
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        let read = self.says.read_line(&mut line).unwrap();
        assert_ne!(read, 0, "the caller ended");
        line.trim_end().to_owned()
    }

    /// Brings a call to its commit.
    fn prepare(&mut self, request: &Value) {
        self.tell(&request.to_string());
        assert_eq!(self.hear(), "ready", "{request}");
    }

    fn go(&mut self) {
        self.tell("go");
    }

    fn answer(&mut self) -> Value {
        serde_json::from_str(&self.hear()).unwrap()
    }

    /// A whole call.
    fn make(&mut self, request: &Value) -> Value {
        self.tell(&request.to_string());
        let mut said = self.hear();
        if said == "ready" {
            self.go();
            said = self.hear();
        }
        serde_json::from_str(&said).unwrap()
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a call is told that comes second.
#[derive(Debug, Clone, Copy)]
enum Told {
    /// It counts as well.
    Taken,
    /// It has been taken: the first answer again.
    Repeat,
    /// It is refused, in these words among others.
    Refused(&'static str),
}

struct Race {
    at: At,
    /// Both calls, each with what it is told when it comes second.
    calls: [(Value, Told); 2],
}

/// Whose commit comes first.
#[derive(Debug, Clone, Copy)]
enum Order {
    Left,
    Right,
    AtOnce,
}

impl Race {
    fn new(at: At, left: Value, left_second: Told, right: Value, right_second: Told) -> Self {
        Self {
            at,
            calls: [(left, left_second), (right, right_second)],
        }
    }

    /// The same call, under two request ids: what the second one is told.
    fn of_two(at: At, call: &Value, second: Told) -> Self {
        Self::new(at, call.clone(), second, call.clone(), second)
    }
}

/// Calls that are not the same, or not under the same id.
fn contests() -> Vec<Race> {
    use At::{Ended, Failed, Idle, Nothing, Waiting};
    use Told::{Refused, Repeat, Taken};
    let approve = json!({"approve": ["t1/c1", "ann"]});
    let gone = Refused("UnknownMessage { message_id: MessageId(2) }");
    vec![
        Race::new(
            Waiting,
            approve.clone(),
            Refused(
                r#"AlreadyResolved { interrupt_id: InterruptId("t1/c1"), decision: Some(Reject { message: None }), decided_by: Some("bob") }"#,
            ),
            json!({"reject": ["t1/c1", "bob"]}),
            Refused(
                r#"AlreadyResolved { interrupt_id: InterruptId("t1/c1"), decision: Some(Approve), decided_by: Some("ann") }"#,
            ),
        ),
        Race::of_two(Waiting, &approve, Repeat),
        Race::new(
            Waiting,
            approve.clone(),
            Refused("decision: None"),
            json!({"cancel": "t1"}),
            Taken,
        ),
        Race::new(
            Waiting,
            approve,
            Refused("decision: None"),
            json!({"steer": "now"}),
            Taken,
        ),
        Race::of_two(Waiting, &json!({"send": "four"}), Taken),
        Race::of_two(
            Waiting,
            &json!({"cancel": "t1"}),
            Refused("TurnNotActive { active: None }"),
        ),
        Race::new(
            Waiting,
            json!({"cancel": "t1"}),
            Taken,
            json!({"steer": "now"}),
            Taken,
        ),
        Race::new(
            Waiting,
            json!({"edit": ["m2", "better"]}),
            gone,
            json!({"delete_queued": "m2"}),
            gone,
        ),
        Race::of_two(Waiting, &json!({"edit": ["m2", "better"]}), gone),
        Race::of_two(Waiting, &json!({"delete_queued": "m2"}), gone),
        Race::new(
            Waiting,
            json!({"steer_queued": "m2"}),
            gone,
            json!({"delete_queued": "m2"}),
            gone,
        ),
        Race::of_two(
            Idle,
            &json!({"settings": [0, "other"]}),
            Refused("SettingsChanged { revision: 1 }"),
        ),
        Race::of_two(Failed, &json!({"retry": "t1"}), Refused("SessionBusy")),
        Race::new(
            Failed,
            json!({"retry": "t1"}),
            Refused("SessionBusy"),
            json!({"send": "another"}),
            Taken,
        ),
        Race::new(
            Idle,
            json!("close_and_cancel"),
            Taken,
            json!({"send": "late"}),
            Refused("SessionEnded"),
        ),
        Race::new(
            Waiting,
            json!("close_and_drain"),
            Repeat,
            json!("close_and_cancel"),
            Taken,
        ),
        Race::of_two(Nothing, &json!({"start": "hello"}), Repeat),
        Race::new(
            Nothing,
            json!({"start": "hello"}),
            Refused("SessionExists"),
            json!({"start": "good day"}),
            Refused("SessionExists"),
        ),
        Race::of_two(Ended, &json!("delete_session"), Refused("NoSession")),
    ]
}

const WITH_REQUEST_ID: [(At, &str); 11] = [
    (At::Waiting, r#"{"approve": ["t1/c1", "ann"]}"#),
    (At::Waiting, r#"{"reject": ["t1/c1", "ann"]}"#),
    (At::Waiting, r#"{"send": "four"}"#),
    (At::Waiting, r#"{"cancel": "t1"}"#),
    (At::Waiting, r#"{"steer": "now"}"#),
    (At::Waiting, r#"{"steer_queued": "m2"}"#),
    (At::Waiting, r#"{"edit": ["m2", "better"]}"#),
    (At::Waiting, r#"{"delete_queued": "m2"}"#),
    (At::Failed, r#"{"retry": "t1"}"#),
    (At::Idle, r#"{"settings": [0, "other"]}"#),
    (At::Idle, r#""close_and_drain""#),
];

/// A file with sessions, and two processes over it.
struct Ring {
    place: Place,
    callers: [Caller; 2],
    _directory: tempfile::TempDir,
}

impl Ring {
    /// Brings sessions to where their races begin; no engine runs after that.
    async fn with(sessions: &[(String, At)]) -> Self {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("s.sqlite");
        let mut place = Place::new(Scripted::open());
        place.store = Arc::new(SqliteStateStore::open(&path).await.unwrap());
        prepare(&place, sessions).await;
        Self {
            place,
            callers: [Caller::new(&path), Caller::new(&path)],
            _directory: directory,
        }
    }

    /// Brings both calls to their commits, lets them go in this order, and returns their answers.
    fn race(&mut self, requests: &[Value; 2], order: Order) -> [Value; 2] {
        let [left, right] = &mut self.callers;
        left.prepare(&requests[0]);
        right.prepare(&requests[1]);
        match order {
            Order::Left => {
                left.go();
                let first = left.answer();
                right.go();
                [first, right.answer()]
            }
            Order::Right => {
                right.go();
                let first = right.answer();
                left.go();
                [left.answer(), first]
            }
            Order::AtOnce => {
                left.go();
                right.go();
                [left.answer(), right.answer()]
            }
        }
    }

    async fn revision(&self, id: &SessionId) -> Option<u64> {
        let stored = self.place.store.load(id).await.unwrap();
        stored.map(|it| it.revision.0)
    }

    async fn has_receipt(&self, id: &SessionId, request: &str) -> bool {
        let key = RowKey {
            kind: RowKind::Receipt,
            key: request.to_owned(),
        };
        let rows = self.place.store.read_rows(id, &[key]).await.unwrap();
        rows[0].is_some()
    }
}

fn is_taken(answer: &Value) -> bool {
    answer["is_repeat"] == false
}

fn check_told(answer: &Value, told: Told, what: &str) {
    match told {
        Told::Taken => assert!(is_taken(answer), "{what}: {answer}"),
        Told::Repeat => assert_eq!(answer["is_repeat"], true, "{what}: {answer}"),
        Told::Refused(words) => {
            let error = answer["error"].as_str().unwrap_or_default();
            assert!(error.contains(words), "{what}: {answer}");
        }
    }
}

/// G6: each message that was accepted is in a turn, or waits, or is said to be gone; nowhere twice.
async fn check_messages(client: &AgentSessionClient, id: &SessionId, what: &str) {
    let snapshot = client.snapshot(id).await.unwrap();
    let mut log = Log::of(client, id).await;
    let cursor = snapshot.event_cursor.0 as usize;
    log.until(cursor, |_| true).await;
    let waiting = snapshot.queued_messages.iter();
    let mut found: Vec<_> = (waiting.chain(&snapshot.steered_messages))
        .map(|it| it.message_id)
        .collect();
    let mut accepted = Vec::new();
    for (event, cursor) in log.seen.iter().zip(1..) {
        assert_eq!(event.cursor, EventCursor(cursor), "{what}: G13");
        match &event.kind {
            EventKind::MessageQueued { message_id } => accepted.push(*message_id),
            EventKind::MessageDeleted { message_id }
            | EventKind::MessageUndelivered { message_id }
            | EventKind::TurnStarted { message_id } => found.push(*message_id),
            _ => {}
        }
    }
    found.sort();
    assert_eq!(found, accepted, "{what}: G6");
}

/// P03: of two calls that exclude each other one counts, whichever process it is in, and the other
/// is told how it was decided; a refusal leaves no receipt; a repeat from the other process gets the
/// first answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_that_race_are_told_how_it_was_decided() {
    let orders = [Order::Left, Order::Right, Order::AtOnce];
    let named = |number: usize, order: Order| format!("s{number}-{order:?}");
    let races = contests();
    let mut sessions = Vec::new();
    for (number, race) in races.iter().enumerate() {
        sessions.extend(orders.map(|order| (named(number, order), race.at)));
    }
    let mut ring = Ring::with(&sessions).await;
    for (number, race) in races.iter().enumerate() {
        for order in orders {
            let id = session(&named(number, order));
            let requests = [0, 1].map(
                |side| json!({"session": id, "id": format!("r{side}"), "call": race.calls[side].0}),
            );
            let what = format!("{order:?} of {} and {}", requests[0], requests[1]);
            let before = ring.revision(&id).await.unwrap_or(0);
            let answers = ring.race(&requests, order);
            let counted = answers.iter().filter(|it| is_taken(it)).count();
            let second = match order {
                Order::Left => 1,
                Order::Right => 0,
                Order::AtOnce => {
                    let told_off = answers.iter().position(|it| !is_taken(it));
                    // Where both count, the second is one whose call holds behind the other's.
                    let holds = |it: &(Value, Told)| matches!(it.1, Told::Taken);
                    told_off
                        .or_else(|| race.calls.iter().position(holds))
                        .unwrap_or_else(|| panic!("{what}: both count"))
                }
            };
            check_told(&answers[1 - second], Told::Taken, &what);
            check_told(&answers[second], race.calls[second].1, &what);
            let Some(after) = ring.revision(&id).await else {
                assert_eq!(race.calls[0].0, "delete_session", "{what}");
                continue;
            };
            let is_start = race.at == At::Nothing;
            // A repeat under a request id of its own gets a receipt of its own.
            let leaves_receipt = |side: usize| !is_start && answers[side]["error"].is_null();
            let commits = if is_start {
                counted
            } else {
                usize::from(leaves_receipt(0)) + usize::from(leaves_receipt(1))
            };
            if !is_start {
                assert_eq!(after, before + commits as u64, "{what}: one commit each");
            }
            check_messages(&ring.place.client(), &id, &what).await;
            for side in [0, 1] {
                let request = format!("r{side}");
                let has = ring.has_receipt(&id, &request).await;
                assert_eq!(has, leaves_receipt(side), "{what}: receipt {side}");
                if has {
                    let again = ring.callers[1 - side].make(&requests[side]);
                    assert_eq!(again["is_repeat"], true, "{what}: {again}");
                    assert_eq!(again["value"], answers[side]["value"], "{what}");
                }
            }
            assert_eq!(ring.revision(&id).await, Some(after), "{what}: repeats");
        }
    }
}

/// P03, P04: the same request in both processes has one effect and one receipt, and both get one
/// answer; another request under that id is a conflict.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_request_id_in_two_processes_has_one_effect() {
    let sessions: Vec<_> = (WITH_REQUEST_ID.iter().enumerate())
        .map(|(number, (at, _))| (format!("s{number}"), *at))
        .collect();
    let mut ring = Ring::with(&sessions).await;
    for (number, (_, call)) in WITH_REQUEST_ID.iter().enumerate() {
        let id = session(&format!("s{number}"));
        let call: Value = serde_json::from_str(call).unwrap();
        let request = json!({"session": id, "id": "r", "call": call});
        let before = ring.revision(&id).await.unwrap();
        let answers = ring.race(&[request.clone(), request], Order::AtOnce);
        let counted = answers.iter().filter(|it| is_taken(it)).count();
        assert_eq!(counted, 1, "{call}: {answers:?}");
        let repeats = answers.iter().filter(|it| it["is_repeat"] == true).count();
        assert_eq!(repeats, 1, "{call}: {answers:?}");
        assert_eq!(answers[0]["value"], answers[1]["value"], "{call}");
        assert_eq!(ring.revision(&id).await, Some(before + 1), "{call}");
        assert!(ring.has_receipt(&id, "r").await, "{call}");
        check_messages(&ring.place.client(), &id, &call.to_string()).await;
        let other = json!({"session": id, "id": "r", "call": {"send": "something else"}});
        for caller in &mut ring.callers {
            let answer = caller.make(&other);
            check_told(&answer, Told::Refused("RequestConflict"), "another request");
        }
        assert_eq!(ring.revision(&id).await, Some(before + 1), "{call}");
    }
}

/// Two different requests under one id at the same time: one counts, the other is a conflict (P04).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_requests_under_one_id_are_a_conflict_in_whichever_process() {
    for order in [Order::Left, Order::Right, Order::AtOnce] {
        let mut ring = Ring::with(&[("s".to_owned(), At::Waiting)]).await;
        let id = session("s");
        let requests =
            ["four", "five"].map(|text| json!({"session": id, "id": "r", "call": {"send": text}}));
        let answers = ring.race(&requests, order);
        let counted = usize::from(is_taken(&answers[1]));
        check_told(&answers[counted], Told::Taken, "one counts");
        let conflict = Told::Refused("RequestConflict");
        check_told(&answers[1 - counted], conflict, "the other does not");
        let queued = ring.place.client().snapshot(&id).await.unwrap();
        assert_eq!(queued.queued_messages.len(), 3, "{order:?}");
    }
}

/// The same fork twice is one session, another one under its id is refused; and a fork that had read
/// its conversation is whole although the session that it comes from is removed first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forks_race_each_other_and_the_removal_of_where_they_come_from() {
    let orders = [Order::Left, Order::Right, Order::AtOnce];
    let sessions = orders.map(|it| (format!("{it:?}"), At::Ended));
    let mut ring = Ring::with(&sessions).await;
    for order in orders {
        let from = format!("{order:?}");
        let fork = |into: &str, text: &str| json!({"session": from, "call": {"fork": [format!("{into}-{from}"), "t1", text]}});
        let same = ring.race(&[fork("same", "two"), fork("same", "two")], order);
        assert_eq!(same.iter().filter(|it| is_taken(it)).count(), 1);
        assert_eq!(same.iter().filter(|it| it["is_repeat"] == true).count(), 1);

        let others = ring.race(&[fork("other", "two"), fork("other", "deux")], order);
        let counted = usize::from(is_taken(&others[1]));
        check_told(&others[counted], Told::Taken, "one fork counts");
        let exists = Told::Refused("SessionExists");
        check_told(&others[1 - counted], exists, "the other is refused");

        let delete = json!({"session": from, "call": "delete_session"});
        let answers = ring.race(&[fork("last", "two"), delete], order);
        check_told(&answers[0], Told::Taken, "the fork");
        check_told(&answers[1], Told::Taken, "the removal");
        assert_eq!(ring.revision(&session(&from)).await, None);
        let fork = session(&format!("last-{from}"));
        let texts = texts(&ring.place.client(), &fork).await;
        assert_eq!(texts, ["hello", "re: hello", "two"]);
        let late = ring.callers[0].make(&json!({
            "session": from, "call": {"fork": ["late", "t1", "two"]}
        }));
        check_told(&late, Told::Refused("NoSession"), "a late fork");
    }
}
