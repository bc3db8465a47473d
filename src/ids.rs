//! Identifiers: newtypes with one constructor each, so that no two kinds are mixed up.
//!
//! Ids chosen by the application (session, request, tenant) may hold `[A-Za-z0-9._:/-]`, at most
//! 200 bytes (spec/core.md 2). Ids that come from the CLI or the model are only bounded and free
//! of control characters, because their alphabet is not ours to choose.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The longest identifier that is accepted, in bytes.
pub const ID_BYTES_MAX: usize = 200;

/// An identifier that is empty, too long or holds a character that is not allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidId {
    /// The text is empty.
    #[error("a {kind} must not be empty")]
    Empty {
        /// Which identifier was to be made.
        kind: &'static str,
    },
    /// The text is longer than [`ID_BYTES_MAX`].
    #[error("a {kind} holds at most {ID_BYTES_MAX} bytes, got {bytes}")]
    TooLong {
        /// Which identifier was to be made.
        kind: &'static str,
        /// The length that was given, in bytes.
        bytes: usize,
    },
    /// The text holds a character that is not allowed.
    #[error("a {kind} may not hold the character at byte {position}")]
    Character {
        /// Which identifier was to be made.
        kind: &'static str,
        /// Where the first such character stands, in bytes.
        position: usize,
    },
}

fn check(kind: &'static str, text: &str, allowed: fn(char) -> bool) -> Result<(), InvalidId> {
    if text.is_empty() {
        return Err(InvalidId::Empty { kind });
    }
    if text.len() > ID_BYTES_MAX {
        return Err(InvalidId::TooLong {
            kind,
            bytes: text.len(),
        });
    }
    match text.char_indices().find(|(_, it)| !allowed(*it)) {
        Some((position, _)) => Err(InvalidId::Character { kind, position }),
        None => Ok(()),
    }
}

fn is_ours(it: char) -> bool {
    it.is_ascii_alphanumeric() || matches!(it, '.' | '_' | ':' | '/' | '-')
}

fn is_printable(it: char) -> bool {
    !it.is_control()
}

// One definition for all text ids: the same impls eight times would hide the few lines that differ.
macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $allowed:path) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Checks the text and makes the identifier.
            ///
            /// # Errors
            /// [`InvalidId`] when the text is empty, too long or holds a character that is not allowed.
            pub fn new(text: impl Into<String>) -> Result<Self, InvalidId> {
                let text = text.into();
                check($kind, &text, $allowed)?;
                Ok(Self(text))
            }

            /// Returns the text of the identifier.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                Self::new(text)
            }
        }

        impl TryFrom<&str> for $name {
            type Error = InvalidId;
            fn try_from(text: &str) -> Result<Self, InvalidId> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id!(
    /// One durable session, chosen by the server side of the application.
    SessionId, "session id", is_ours
);
text_id!(
    /// The registered name of a Flow, such as `SupportAgent`.
    FlowType, "flow type", is_ours
);
text_id!(
    /// Whose session it is; sessions are listed by it.
    Tenant, "tenant", is_ours
);
text_id!(
    /// A client's own name for one request, so that a repeat of it counts once.
    RequestId, "request id", is_ours
);
text_id!(
    /// One call: the tool use id that the model gave it (`tool_use.id` on the wire).
    ToolCallId, "tool call id", is_printable
);
text_id!(
    /// The CLI's own session, whose transcript a segment resumes.
    ClaudeSessionId, "claude session id", is_printable
);
text_id!(
    /// A random text that names one try of a step; the same nonce gets the same grant again (G8).
    Nonce, "nonce", is_ours
);

// As above, for ids that are counted from 1 within their session.
macro_rules! counted_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(u64);

        impl $name {
            /// Makes the identifier with this number, counted from 1 within its session.
            #[must_use]
            pub const fn new(number: u64) -> Self {
                Self(number)
            }

            /// Returns the number.
            #[must_use]
            pub const fn number(self) -> u64 {
                self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                text.strip_prefix($prefix)
                    .and_then(|it| it.parse().ok())
                    .map(Self)
                    .ok_or(InvalidId::Character { kind: stringify!($name), position: 0 })
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.to_string()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

counted_id!(
    /// One turn of a session: `t1`, `t2`, …
    TurnId, "t"
);
counted_id!(
    /// One Step execution of a session: `s1`, `s2`, …
    StepId, "s"
);
counted_id!(
    /// One accepted user message of a session: `m1`, `m2`, …
    MessageId, "m"
);

/// An open question to a person: `<turn id>/<tool call id>`, so that it can be derived from the call.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InterruptId(String);

impl InterruptId {
    /// Names the interrupt of one call.
    #[must_use]
    pub fn of_call(turn: TurnId, call: &ToolCallId) -> Self {
        Self(format!("{turn}/{call}"))
    }

    /// Takes an interrupt id that a client sent; one that was never given out is simply unknown.
    #[must_use]
    pub fn from_client(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the text of the identifier.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InterruptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The key under which every attempt of an idempotent call runs (G2):
/// `<session id>/<turn id>/<tool call id>`, each part percent-encoded.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// Builds the key of one call.
    #[must_use]
    pub fn of_call(session: &SessionId, turn: TurnId, call: &ToolCallId) -> Self {
        Self(format!(
            "{}/{}/{}",
            percent_encode(session.as_str()),
            percent_encode(&turn.to_string()),
            percent_encode(call.as_str())
        ))
    }

    /// Returns the text of the key.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn percent_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(HEX[usize::from(byte >> 4)]));
            out.push(char::from(HEX[usize::from(byte & 0xf)]));
        }
    }
    out
}

const HEX: [u8; 16] = *b"0123456789ABCDEF";

/// Counts the commits of a session; a commit names the revision it builds on. Zero: not yet created.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
#[expect(
    clippy::exhaustive_structs,
    reason = "a plain number that stores and clients build"
)]
pub struct Revision(pub u64);

/// Counts the owners of a session; reports of an earlier owner are refused (G8).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
#[expect(
    clippy::exhaustive_structs,
    reason = "a plain number that stores and clients build"
)]
pub struct LeaseEpoch(pub u64);

/// The position of an event in its session's log, counted from 1 without gaps (G13).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
#[expect(
    clippy::exhaustive_structs,
    reason = "a plain number that stores and clients build"
)]
pub struct EventCursor(pub u64);

/// One immutable chunk of transcript items, counted from 1 within its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
#[expect(
    clippy::exhaustive_structs,
    reason = "a plain number that stores and clients build"
)]
pub struct ChunkId(pub u64);

/// Wall time in milliseconds since the Unix epoch.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
#[expect(
    clippy::exhaustive_structs,
    reason = "a plain number that stores and clients build"
)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Returns the time that lies this long after `self`, at most the end of the range.
    #[must_use]
    pub fn after(self, wait: std::time::Duration) -> Self {
        let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn application_ids_have_a_small_alphabet_and_a_length() {
        for good in ["a", "session-42", "a.b_c:d/e", &"x".repeat(200)] {
            assert_eq!(SessionId::new(good).unwrap().as_str(), good);
        }
        assert_eq!(
            SessionId::new(""),
            Err(InvalidId::Empty { kind: "session id" })
        );
        assert_eq!(
            SessionId::new("x".repeat(201)),
            Err(InvalidId::TooLong {
                kind: "session id",
                bytes: 201
            })
        );
        for bad in ["a b", "a\0", "ä", "a%2F"] {
            assert!(
                matches!(SessionId::new(bad), Err(InvalidId::Character { .. })),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn ids_from_the_model_may_hold_what_is_printable() {
        assert!(ToolCallId::new("toolu_01 ü%/").is_ok());
        assert!(matches!(
            ToolCallId::new("a\nb"),
            Err(InvalidId::Character { position: 1, .. })
        ));
    }

    #[test]
    fn counted_ids_print_and_parse() {
        assert_eq!(TurnId::new(3).to_string(), "t3");
        assert_eq!(serde_json::to_string(&StepId::new(7)).unwrap(), "\"s7\"");
        assert_eq!(
            serde_json::from_str::<StepId>("\"s7\"").unwrap(),
            StepId::new(7)
        );
        assert!(serde_json::from_str::<StepId>("\"t7\"").is_err());
    }

    /// G2: two sessions can never share a key, because the separator is encoded inside the parts.
    #[test]
    fn idempotency_keys_of_different_calls_differ() {
        let key = |session: &str, call: &str| {
            IdempotencyKey::of_call(
                &SessionId::new(session).unwrap(),
                TurnId::new(1),
                &ToolCallId::new(call).unwrap(),
            )
        };
        assert_eq!(key("a/t1", "b").as_str(), "a%2Ft1/t1/b");
        assert_ne!(key("a", "t1/b"), key("a/t1", "b"));
    }
}
