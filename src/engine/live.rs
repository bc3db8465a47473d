//! Live text of running attempts: in memory, keyed by attempt, never logged (G13).

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::broadcast;

use crate::event::{LiveText, LiveTextKind};
use crate::ids::{SessionId, StepId, TurnId};

/// How many pieces a slow reader may be behind before it loses some.
const PIECES_MAX: usize = 1024;

/// The live text of all sessions that this engine runs.
#[derive(Debug, Clone, Default)]
pub(crate) struct LiveHub(Arc<Mutex<HashMap<SessionId, Room>>>);

/// The live text of one session, and its readers.
#[derive(Debug)]
struct Room {
    readers: broadcast::Sender<LiveText>,
    /// The running attempt's text so far, so that a late reader gets all of it.
    current: Vec<LiveText>,
}

/// What a reader gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LivePiece {
    /// A piece that continues the ones before.
    Text(LiveText),
    /// The reader was too slow: some pieces are left out, and the text that is still live begins anew.
    Restarted,
}

/// The one who writes the live text of an attempt. Dropping it ends the text.
#[derive(Debug)]
pub(super) struct LiveWriter {
    hub: LiveHub,
    session: SessionId,
    turn_id: TurnId,
    step_id: StepId,
    attempt: u32,
    offsets: HashMap<LiveTextKind, u64>,
}

/// One reader of a session's live text.
#[derive(Debug)]
pub(crate) struct LiveReader {
    hub: LiveHub,
    session: SessionId,
    /// How many pieces it may be behind.
    behind_max: usize,
    earlier: VecDeque<LiveText>,
    pieces: broadcast::Receiver<LiveText>,
}

impl LiveHub {
    /// Reads a session's live text, the running attempt's from its start. The reader may be this many
    /// pieces behind, and never more than [`PIECES_MAX`].
    pub(crate) fn subscribe(&self, session: &SessionId, behind_max: usize) -> LiveReader {
        self.with_room(session, |room| LiveReader {
            hub: self.clone(),
            session: session.clone(),
            behind_max,
            earlier: room.current.clone().into(),
            pieces: room.readers.subscribe(),
        })
    }

    pub(super) fn writer(
        &self,
        session: SessionId,
        turn_id: TurnId,
        step_id: StepId,
        attempt: u32,
    ) -> LiveWriter {
        LiveWriter {
            hub: self.clone(),
            session,
            turn_id,
            step_id,
            attempt,
            offsets: HashMap::new(),
        }
    }

    fn with_room<T>(&self, session: &SessionId, use_room: impl FnOnce(&mut Room) -> T) -> T {
        let mut rooms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = rooms.entry(session.clone()).or_insert_with(|| Room {
            readers: broadcast::Sender::new(PIECES_MAX),
            current: Vec::new(),
        });
        use_room(room)
    }
}

impl LiveWriter {
    pub(super) fn write(&mut self, kind: LiveTextKind, text: String) {
        let offset = self.offsets.entry(kind).or_default();
        let piece = LiveText {
            turn_id: self.turn_id,
            step_id: self.step_id,
            attempt: self.attempt,
            kind,
            offset: *offset,
            text,
        };
        *offset += piece.text.len() as u64;
        self.hub.with_room(&self.session, |room| {
            match room.current.last_mut() {
                Some(last) if last.kind == kind => last.text.push_str(&piece.text),
                Some(_) | None => room.current.push(piece.clone()),
            }
            // Nobody may be listening; the text is kept for whoever comes.
            let _ = room.readers.send(piece);
        });
    }
}

impl LiveWriter {
    /// Returns the answer as people see it now: what was written and is not part of a message.
    pub(super) fn text(&self) -> String {
        self.hub.with_room(&self.session, |room| {
            let answer = |it: &&LiveText| it.kind == LiveTextKind::Text;
            let pieces = room.current.iter().filter(answer);
            pieces.map(|it| it.text.as_str()).collect()
        })
    }

    /// What was written so far is part of a committed message, which supersedes it (G13).
    pub(super) fn committed(&self) {
        self.hub
            .with_room(&self.session, |room| room.current.clear());
    }
}

impl Drop for LiveWriter {
    fn drop(&mut self) {
        let mut rooms = self.hub.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(room) = rooms.get_mut(&self.session) {
            room.current.clear();
            if room.readers.receiver_count() == 0 {
                // G9: a session that is not running keeps nothing here.
                rooms.remove(&self.session);
            }
        }
    }
}

impl Drop for LiveReader {
    fn drop(&mut self) {
        let mut rooms = self.hub.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_last = |room: &Room| room.readers.receiver_count() <= 1 && room.current.is_empty();
        if rooms.get(&self.session).is_some_and(is_last) {
            // G9: who only looked at a session leaves nothing here.
            rooms.remove(&self.session);
        }
    }
}

impl LiveReader {
    /// Waits for the next piece. Cancel safe.
    pub(crate) async fn next(&mut self) -> LivePiece {
        if let Some(piece) = self.try_next() {
            return piece;
        }
        match self.pieces.recv().await {
            Ok(piece) => LivePiece::Text(piece),
            Err(broadcast::error::RecvError::Lagged(_)) => self.restart(),
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }

    /// Returns the next piece if there is one already.
    pub(crate) fn try_next(&mut self) -> Option<LivePiece> {
        if let Some(piece) = self.earlier.pop_front() {
            return Some(LivePiece::Text(piece));
        }
        if self.pieces.len() > self.behind_max {
            return Some(self.restart());
        }
        match self.pieces.try_recv() {
            Ok(piece) => Some(LivePiece::Text(piece)),
            Err(broadcast::error::TryRecvError::Lagged(_)) => Some(self.restart()),
            Err(broadcast::error::TryRecvError::Empty | broadcast::error::TryRecvError::Closed) => {
                None
            }
        }
    }

    /// Goes on from the start of what is live now, instead of in the middle of it.
    fn restart(&mut self) -> LivePiece {
        let Self {
            hub,
            session,
            earlier,
            pieces,
            ..
        } = self;
        hub.with_room(session, |room| {
            *earlier = room.current.clone().into();
            *pieces = room.readers.subscribe();
        });
        LivePiece::Restarted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// G13: who is too far behind is told so and gets what is live from its start; never a gap.
    #[tokio::test]
    async fn a_slow_reader_of_live_text_begins_anew() {
        let hub = LiveHub::default();
        let session = SessionId::new("s").unwrap();
        let mut writer = hub.writer(session.clone(), TurnId::new(1), StepId::new(1), 1);
        for behind_max in [8, PIECES_MAX, usize::MAX] {
            writer.committed();
            let mut reader = hub.subscribe(&session, behind_max);
            let allowed = behind_max.min(PIECES_MAX);
            let start = writer.offsets.values().sum::<u64>();
            for _ in 0..allowed {
                writer.write(LiveTextKind::Text, "x".to_owned());
            }
            for offset in start..start + allowed as u64 {
                let LivePiece::Text(piece) = reader.next().await else {
                    panic!("left out {offset}");
                };
                assert_eq!((piece.offset, piece.text.as_str()), (offset, "x"));
            }
            for _ in 0..=allowed {
                writer.write(LiveTextKind::Text, "y".to_owned());
            }
            assert_eq!(reader.next().await, LivePiece::Restarted);
            let Some(LivePiece::Text(all)) = reader.try_next() else {
                panic!("no text");
            };
            let expected = "x".repeat(allowed) + &"y".repeat(allowed + 1);
            assert_eq!((all.offset, all.text), (start, expected));
            assert_eq!(reader.try_next(), None);
        }
    }

    /// G9: neither readers nor attempts that are gone leave anything behind, in whatever order they go.
    #[tokio::test]
    async fn a_room_goes_with_its_last_user() {
        let hub = LiveHub::default();
        let session = SessionId::new("s").unwrap();
        let rooms = || hub.0.lock().unwrap().len();
        drop(hub.subscribe(&session, PIECES_MAX));
        assert_eq!(rooms(), 0);
        for reader_goes_first in [true, false] {
            let mut writer = hub.writer(session.clone(), TurnId::new(1), StepId::new(1), 1);
            writer.write(LiveTextKind::Text, "x".to_owned());
            let mut reader = hub.subscribe(&session, PIECES_MAX);
            let piece = reader.next().await;
            assert!(matches!(piece, LivePiece::Text(it) if it.text == "x"));
            if reader_goes_first {
                drop(reader);
                let piece = hub.subscribe(&session, PIECES_MAX).next().await;
                assert!(matches!(piece, LivePiece::Text(it) if it.text == "x"));
                drop(writer);
            } else {
                drop(writer);
                drop(reader);
            }
            assert_eq!(rooms(), 0);
        }
    }
}
