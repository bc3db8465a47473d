//! A hundred thousand small events in one session: read in pages, replayed, followed, and left behind,
//! in little memory (G13).

use std::ops::Range;

use abide::client::{EventBuffer, EventStreamOptions, OverflowPolicy};
use abide::ids::Revision;
use abide::store::{Commit, EventRow, SqliteStateStore};
use serde_json::Value;

use super::*;
use crate::support::alone::{is_alone, peak_kilobytes};

const EVENTS: u64 = 100_000;

/// How many a commit has.
const PAGE: u64 = 500;

/// Writes a log as a worker's commits would.
struct Writer {
    place: Place,
    id: SessionId,
    revision: Revision,
    state: Value,
    written: u64,
}

impl Writer {
    async fn new(place: Place) -> Self {
        let (client, id) = (place.client(), session("s"));
        let flow_type = FlowType::new("Scripted").unwrap();
        let start = StartSession::new(id.clone(), flow_type);
        client.start_session(start).await.unwrap();
        let stored = place.store.load(&id).await.unwrap().unwrap();
        Self {
            place,
            id,
            revision: stored.revision,
            state: serde_json::from_slice(&stored.state).unwrap(),
            written: 1,
        }
    }

    /// Writes events until there are this many.
    async fn write_until(&mut self, count: u64) {
        while self.written < count {
            let last = count.min(self.written + PAGE);
            let events = (self.written + 1..=last).map(|cursor| {
                let (cursor, kind) = (EventCursor(cursor), EventKind::TurnSuspended);
                let event = SessionEvent::new(cursor, Timestamp(cursor.0), None, kind);
                let bytes = serde_json::to_vec(&event).unwrap();
                EventRow { cursor, bytes }
            });
            self.state["counters"]["cursor"] = last.into();
            let commit = Commit {
                state: serde_json::to_vec(&self.state).unwrap(),
                events: events.collect(),
                ..Commit::default()
            };
            let store = &self.place.store;
            let committed = store.commit(&self.id, self.revision, None, commit);
            self.revision = committed.await.unwrap();
            self.written = last;
        }
    }

    async fn reader(&self, after: u64, overflow: OverflowPolicy) -> Reader {
        let options = EventStreamOptions::default().with_overflow(overflow);
        let client = self.place.client();
        let stream = client.events_with(&self.id, EventCursor(after), options);
        Reader {
            stream: stream.await.unwrap(),
            seen: after,
        }
    }
}

/// A reader that checks that it misses and repeats nothing.
struct Reader {
    stream: EventStream,
    seen: u64,
}

impl Reader {
    async fn next(&mut self) -> Option<Observed> {
        let observed = self.stream.next().await.unwrap();
        if let Some(Observed::Event(event)) = &observed {
            assert_eq!(event.cursor.0, self.seen + 1, "G13");
            self.seen += 1;
        }
        observed
    }

    /// Reads so many events and nothing else.
    async fn read(&mut self, count: u64) {
        for _ in 0..count {
            let observed = self.next().await;
            let is_event = matches!(observed, Some(Observed::Event(_)));
            assert!(is_event, "behind {}: {observed:?}", self.seen);
        }
    }

    async fn is_caught_up(&mut self) {
        assert_eq!(self.next().await, Some(Observed::CaughtUp));
    }

    /// Reads what its buffer holds, and that it is this far behind.
    async fn is_behind(&mut self, missed: u64) {
        self.read(EventBuffer::default().events() as u64).await;
        let Some(Observed::Overflow(overflow)) = self.next().await else {
            panic!("it is behind");
        };
        assert_eq!(overflow.first_missed, EventCursor(self.seen + 1));
        assert_eq!(overflow.missed, missed);
    }
}

async fn many_events_are_followed(place: Place) {
    const THERE: u64 = EVENTS * 6 / 10;
    const LATER: u64 = EVENTS * 8 / 10;
    let buffer = EventBuffer::default().events() as u64;
    let mut writer = Writer::new(place).await;
    writer.write_until(THERE).await;

    // They come late, and the log grows while they replay it.
    let mut reader = writer.reader(0, OverflowPolicy::CatchUp).await;
    let mut leaver = writer.reader(THERE - 1, OverflowPolicy::Close).await;
    reader.read(THERE / 2).await;
    writer.write_until(LATER).await;
    reader.read(THERE - THERE / 2).await;
    reader.is_caught_up().await;
    reader.is_behind(LATER - THERE - buffer).await;
    reader.read(LATER - THERE - buffer).await;
    reader.is_caught_up().await;

    leaver.read(1).await;
    leaver.is_caught_up().await;
    leaver.is_behind(LATER - THERE - buffer).await;
    assert_eq!(leaver.next().await, None);
    let mut again = writer.reader(leaver.seen, OverflowPolicy::Close).await;
    again.read(LATER - THERE - buffer).await;
    again.is_caught_up().await;

    // As fast as it is written; of a buffer's length at most.
    while writer.written < EVENTS {
        let before = writer.written;
        writer.write_until(before + PAGE).await;
        for reader in [&mut reader, &mut again] {
            reader.read(writer.written - before).await;
        }
    }
    assert_eq!((reader.seen, again.seen), (EVENTS, EVENTS));
    in_pages(&writer, 0..EVENTS, 1_000).await;
}

/// Reads a part of the log page by page.
async fn in_pages(writer: &Writer, part: Range<u64>, limit: usize) {
    let client = writer.place.client();
    let mut seen = part.start;
    while seen < part.end {
        let page = client.read_events(&writer.id, EventCursor(seen), limit);
        let page = page.await.unwrap();
        for event in &page.events {
            assert_eq!(event.cursor.0, seen + 1, "G13");
            seen += 1;
        }
        assert_eq!(page.events.len(), limit);
        assert_eq!(page.next.0, seen);
        assert_eq!(page.has_more, seen < EVENTS);
        assert_eq!(page.revision, writer.revision);
    }
}

async fn in_a_file(directory: &tempfile::TempDir) -> Place {
    let mut place = Place::new(Scripted::open());
    let store = SqliteStateStore::open(directory.path().join("s.sqlite")).await;
    place.store = Arc::new(store.unwrap());
    place
}

/// G13, P08, P09: in memory.
#[tokio::test]
async fn a_hundred_thousand_events_are_followed_in_memory() {
    many_events_are_followed(Place::new(Scripted::open())).await;
}

/// G13, P08, P36: the same in a file.
#[tokio::test]
async fn a_hundred_thousand_events_are_followed_in_a_file() {
    let directory = tempfile::TempDir::new().unwrap();
    many_events_are_followed(in_a_file(&directory).await).await;
}

/// Whoever replays them all, or is behind by all of them, needs no more memory than a page and its
/// buffer: far less than the events take.
#[tokio::test]
async fn a_reader_of_a_hundred_thousand_events_keeps_a_page() {
    if !is_alone("engine::many_events::a_reader_of_a_hundred_thousand_events_keeps_a_page").await {
        return;
    }
    let directory = tempfile::TempDir::new().unwrap();
    let mut writer = Writer::new(in_a_file(&directory).await).await;
    let mut idle = writer.reader(1, OverflowPolicy::CatchUp).await;
    idle.is_caught_up().await;
    writer.write_until(EVENTS).await;
    let before = peak_kilobytes();
    let mut reader = writer.reader(0, OverflowPolicy::CatchUp).await;
    reader.read(EVENTS).await;
    reader.is_caught_up().await;
    let buffer = EventBuffer::default().events() as u64;
    idle.is_behind(EVENTS - 1 - buffer).await;
    idle.read(EVENTS - 1 - buffer).await;
    let more = peak_kilobytes() - before;
    let at_once = EVENTS * size_of::<SessionEvent>() as u64 / 1024;
    assert!(more < at_once / 2, "{more} kB, of {at_once} kB in all");
}
