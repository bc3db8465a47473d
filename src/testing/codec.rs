//! A payload codec for tests: it scrambles and notices every change, and keeps nobody out.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use sha2::{Digest as _, Sha256};

use crate::ids::SessionId;
use crate::store::{CodecError, PayloadCodec, PayloadLabel, SessionCodec};

/// Behaves as an encryption with a key of each session does, and **is none**: its keys follow from one
/// secret, its numbers repeat in another process, and nobody ever judged its construction.
///
/// Clones share what was thrown away and whether the keys can be had.
#[derive(Clone)]
pub struct ScrambledCodec {
    shared: Arc<Shared>,
}

struct Shared {
    secret: String,
    forgotten: Mutex<HashSet<SessionId>>,
    is_away: AtomicBool,
}

impl fmt::Debug for ScrambledCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScrambledCodec").finish_non_exhaustive()
    }
}

impl ScrambledCodec {
    /// Makes the codec of this secret: the same in every process.
    #[must_use]
    pub fn new(secret: impl Into<String>) -> Self {
        Self {
            shared: Arc::new(Shared {
                secret: secret.into(),
                forgotten: Mutex::default(),
                is_away: AtomicBool::new(false),
            }),
        }
    }

    /// Throws the key of a session away, for good: [`CodecError::NoKey`] from now on.
    pub fn forget(&self, session: &SessionId) {
        self.forgotten().insert(session.clone());
    }

    /// Says whether the keys cannot be had: [`CodecError::Unavailable`] as long as they are away.
    pub fn set_away(&self, is_away: bool) {
        self.shared.is_away.store(is_away, Ordering::SeqCst);
    }

    fn forgotten(&self) -> MutexGuard<'_, HashSet<SessionId>> {
        let forgotten = self.shared.forgotten.lock();
        forgotten.unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl PayloadCodec for ScrambledCodec {
    async fn open(&self, session: &SessionId) -> Result<Arc<dyn SessionCodec>, CodecError> {
        if self.shared.is_away.load(Ordering::SeqCst) {
            let source = "as the test asked".into();
            return Err(CodecError::Unavailable { source });
        }
        if self.forgotten().contains(session) {
            return Err(CodecError::NoKey);
        }
        let key = hash(&[self.shared.secret.as_bytes(), session.as_str().as_bytes()]);
        Ok(Arc::new(Scrambled { key }))
    }
}

struct Scrambled {
    key: [u8; HASH_BYTES],
}

impl Scrambled {
    fn scramble(&self, number: &[u8], bytes: &[u8]) -> Vec<u8> {
        let blocks = bytes.chunks(HASH_BYTES).zip(0_u64..);
        let scrambled = blocks.flat_map(|(block, at)| {
            let noise = hash(&[&self.key, number, &at.to_be_bytes()]);
            let both: Vec<u8> = block.iter().zip(noise).map(|(it, by)| it ^ by).collect();
            both
        });
        scrambled.collect()
    }

    fn seal(&self, number: &[u8], label: &PayloadLabel, scrambled: &[u8]) -> [u8; HASH_BYTES] {
        hash(&[&self.key, b"seal", number, label.as_bytes(), scrambled])
    }
}

impl SessionCodec for Scrambled {
    fn encode(&self, label: &PayloadLabel, plain: &[u8]) -> Result<Vec<u8>, CodecError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let scrambled = self.scramble(&number, plain);
        let seal = self.seal(&number, label, &scrambled);
        Ok([&number[..], &seal, &scrambled].concat())
    }

    fn decode(&self, label: &PayloadLabel, stored: &[u8]) -> Result<Vec<u8>, CodecError> {
        let too_short = || CodecError::refused("it is too short");
        let (number, rest) = stored
            .split_first_chunk::<NUMBER_BYTES>()
            .ok_or_else(too_short)?;
        let (seal, scrambled) = rest
            .split_first_chunk::<HASH_BYTES>()
            .ok_or_else(too_short)?;
        if *seal != self.seal(number, label, scrambled) {
            let reason = "another key or place, or it was changed";
            return Err(CodecError::refused(reason));
        }
        Ok(self.scramble(number, scrambled))
    }
}

/// Each part is preceded by its length, so that no two lists of parts are the same bytes.
fn hash(parts: &[&[u8]]) -> [u8; HASH_BYTES] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

const HASH_BYTES: usize = 32;
const NUMBER_BYTES: usize = 8;
