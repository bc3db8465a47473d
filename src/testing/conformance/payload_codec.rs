//! The contract of [`PayloadCodec`].

use crate::commit::{RowKey, RowKind};
use crate::ids::{EventCursor, SessionId};
use crate::store::{CodecError, PayloadCodec, PayloadLabel, SessionCodec};

/// Runs the rules of the [`PayloadCodec`] contract on a codec, with the sessions `codec-a` and `codec-b`,
/// for which it has no keys yet.
///
/// # Panics
/// When the codec breaks a rule; the message says which one.
///
/// # Examples
/// ```
/// # use abide::testing::{codec::ScrambledCodec, conformance};
/// # #[tokio::main]
/// # async fn main() {
/// conformance::payload_codec(&ScrambledCodec::new("secret")).await;
/// # }
/// ```
pub async fn payload_codec(codec: &dyn PayloadCodec) {
    let (a, b) = (id("codec-a"), id("codec-b"));
    let made = must(codec.create(&a).await, "make a key");
    let other = must(codec.create(&b).await, "make another key");
    let label = PayloadLabel::event(&a, EventCursor(1));
    let text = b"what a person said, long enough that it does not come about by chance";
    let long: Vec<u8> = text.iter().copied().cycle().take(1 << 20).collect();
    let stored = must(made.encode(&label, text), "encode");

    for plain in [&b""[..], b"x", text, &long] {
        let stored = must(made.encode(&label, plain), "encode");
        let read = must(made.decode(&label, &stored), "decode");
        assert!(read == plain, "what was encoded does not come back");
        let shows = |it: &[u8]| it.windows(16).any(|it| text.windows(16).any(|at| at == it));
        assert!(!shows(&stored[..stored.len().min(4096)]), "it is readable");
    }

    let again = must(codec.create(&a).await, "make a key again");
    let read = must(again.decode(&label, &stored), "decode after another start");
    assert!(read == text, "a second start of a session replaced its key");
    let opened = must(codec.open(&a).await, "open a key");
    let read = must(opened.decode(&label, &stored), "decode later");
    assert!(read == text, "the key that is opened is another one");

    refused(
        &*other,
        &label,
        &stored,
        "it is read with another session's key",
    );
    let key = RowKey {
        kind: RowKind::Message,
        key: "1".to_owned(),
    };
    for elsewhere in [
        PayloadLabel::event(&a, EventCursor(2)),
        PayloadLabel::event(&b, EventCursor(1)),
        PayloadLabel::row(&a, &key),
        PayloadLabel::state(&a),
    ] {
        refused(&*made, &elsewhere, &stored, "it is read in another place");
    }
    for at in 0..stored.len() {
        let mut changed = stored.clone();
        changed[at] ^= 1;
        refused(&*made, &label, &changed, "a changed byte is not noticed");
        refused(&*made, &label, &stored[..at], "a cut is not noticed");
    }
    let longer = [&stored[..], b"x"].concat();
    refused(&*made, &label, &longer, "a byte more is not noticed");
}

#[track_caller]
fn refused(codec: &dyn SessionCodec, label: &PayloadLabel, stored: &[u8], otherwise: &str) {
    match codec.decode(label, stored) {
        Err(CodecError::Refused { .. }) => {}
        Err(error) => panic!("{otherwise}, or is refused as something else: {error:?}"),
        Ok(_) => panic!("{otherwise}"),
    }
}

#[track_caller]
fn must<T>(result: Result<T, CodecError>, what: &str) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("failed to {what}: {error:?}"),
    }
}

#[track_caller]
fn id(text: &str) -> SessionId {
    match SessionId::new(text) {
        Ok(id) => id,
        Err(error) => panic!("failed to make an id: {error}"),
    }
}
