//! The port through which a host encrypts what is stored: a codec of payloads, with a key of each session.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;

use super::{BackendSource, Chunk, RowKey, StoreError};
use crate::ids::{EventCursor, InterruptId, SessionId};

/// Encodes and decodes what a [`CodedStateStore`](super::CodedStateStore) stores: where a host puts its
/// encryption. Each session may have a key of its own; once that is thrown away, nobody reads the session
/// any more, in backups neither. `testing::conformance::payload_codec` has the rules as code.
#[async_trait]
pub trait PayloadCodec: Send + Sync {
    /// Returns the codec of a session that exists. Asked once or more in each call of the store that reads
    /// or writes payloads: an implementation keeps what is slow to get, for as long as it wants a key to
    /// be used after it was thrown away.
    ///
    /// # Errors
    /// [`CodecError::Unavailable`] while the key cannot be had, [`CodecError::NoKey`] when there is none.
    ///
    /// # Cancel safety
    /// The call may be dropped at any time, and is made again.
    async fn open(&self, session: &SessionId) -> Result<Arc<dyn SessionCodec>, CodecError>;

    /// Returns the codec of a session that is about to be stored, and makes its key if there is none yet;
    /// a key that is there stays, since it may be another start of the same session that comes first. By
    /// default the same as [`PayloadCodec::open`], for keys that are derived and not made.
    ///
    /// # Errors
    /// As [`PayloadCodec::open`]; [`CodecError::NoKey`] when the id may not be used again.
    ///
    /// # Cancel safety
    /// The call may be dropped at any time, and is made again.
    async fn create(&self, session: &SessionId) -> Result<Arc<dyn SessionCodec>, CodecError> {
        self.open(session).await
    }
}

/// The codec of one session. Runs on the thread of whoever reads or writes; a page of a conversation is
/// some 64 KiB, or one chunk.
pub trait SessionCodec: Send + Sync {
    /// Returns the bytes to store. The label says what they are; it is not to be stored, and is to be
    /// authenticated together with them (as the associated data of an AEAD).
    ///
    /// # Errors
    /// [`CodecError`]; nothing is stored then.
    fn encode(&self, label: &PayloadLabel, plain: &[u8]) -> Result<Vec<u8>, CodecError>;

    /// Returns what was encoded.
    ///
    /// # Errors
    /// [`CodecError::Refused`] when it was encoded under another label or key, or was changed since.
    fn decode(&self, label: &PayloadLabel, stored: &[u8]) -> Result<Vec<u8>, CodecError>;
}

/// Why a payload was not encoded or decoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The key cannot be had now. The store answers [`StoreError::Busy`], and who asked tries again.
    #[error("the key service does not answer")]
    Unavailable {
        /// What the key service said; it is logged, and must hold no key.
        source: BackendSource,
    },
    /// The session has no key, or none any more. The store answers [`StoreError::NoKey`].
    #[error("there is no key")]
    NoKey,
    /// The payload does not authenticate, or cannot be encoded. The store answers
    /// [`StoreError::Corrupt`].
    #[error("{reason}")]
    Refused {
        /// Why, in a few words; it is logged, and must hold nothing of key or payload.
        reason: String,
    },
}

impl CodecError {
    /// Makes a [`CodecError::Refused`].
    #[must_use]
    pub fn refused(reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self::Refused { reason }
    }

    pub(super) fn of_session(self, session: &SessionId) -> StoreError {
        match self {
            Self::Unavailable { source } => StoreError::Busy { source },
            Self::NoKey => StoreError::NoKey {
                session: session.clone(),
            },
            Self::Refused { reason } => StoreError::Corrupt {
                what: format!("the codec of the session {session}: {reason}"),
            },
        }
    }

    pub(super) fn of_payload(self, session: &SessionId, label: &PayloadLabel) -> StoreError {
        match self {
            Self::Refused { reason } => StoreError::Corrupt {
                what: format!("{label}: {reason}"),
            },
            Self::Unavailable { .. } | Self::NoKey => self.of_session(session),
        }
    }
}

/// What a payload is and where it is stored, in a form that no two places share: session, kind, and name
/// within the session; of a chunk also its place in the chain, its packing and its length. A payload under
/// another label is another's, and a codec refuses it.
#[derive(Clone, PartialEq, Eq)]
pub struct PayloadLabel(String);

// The forms are stored formats: what was encoded under one is decoded under no other. A change needs the
// next number, here and in `coded::VERSION`.
impl PayloadLabel {
    pub(crate) fn state(session: &SessionId) -> Self {
        Self(json!(["abide", 1, session, "state"]).to_string())
    }

    pub(crate) fn row(session: &SessionId, key: &RowKey) -> Self {
        let RowKey { kind, key } = key;
        Self(json!(["abide", 1, session, "row", kind.name(), key]).to_string())
    }

    pub(crate) fn chunk(session: &SessionId, chunk: &Chunk) -> Self {
        let Chunk {
            id,
            parent,
            messages,
            codec,
            raw_bytes,
            bytes: _,
        } = chunk;
        let (parent, codec) = (parent.map(|it| it.0), codec.number());
        let header = json!([id.0, parent, messages, codec, raw_bytes]);
        Self(json!(["abide", 1, session, "chunk", header]).to_string())
    }

    pub(crate) fn event(session: &SessionId, cursor: EventCursor) -> Self {
        Self(json!(["abide", 1, session, "event", cursor.0]).to_string())
    }

    pub(crate) fn interrupt(session: &SessionId, interrupt: &InterruptId) -> Self {
        Self(json!(["abide", 1, session, "interrupt", interrupt.as_str()]).to_string())
    }

    /// Returns the bytes to authenticate.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Display for PayloadLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PayloadLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PayloadLabel({self})")
    }
}
