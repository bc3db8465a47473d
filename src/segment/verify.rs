//! Checks a transcript before the CLI gets it: what does not hold would make the CLI drop history or
//! run a call again (spec/cli-protocol.md 0.1, 6, 12).

use std::collections::HashSet;

use super::runner;
use crate::failure::AttemptFailure;
use crate::record::TranscriptEntry;

/// Checks that the entries are compact JSON, have ids of their own, and form chains: each entry's
/// parent stands before it.
pub(super) fn verify(entries: &[TranscriptEntry]) -> Result<(), AttemptFailure> {
    let mut uuids = HashSet::with_capacity(entries.len());
    for entry in entries {
        if !is_compact(entry.as_str().as_bytes()) {
            return Err(runner("a transcript entry is not compact JSON"));
        }
        let Ok(head) = entry.head() else {
            continue;
        };
        if let Some(parent) = &head.parent_uuid
            && !uuids.contains(parent)
        {
            return Err(runner("a transcript entry follows one that is not there"));
        }
        if let Some(uuid) = head.uuid
            && !uuids.insert(uuid)
        {
            return Err(runner("two transcript entries have the same id"));
        }
    }
    Ok(())
}

/// True when there is no white space outside of texts.
fn is_compact(text: &[u8]) -> bool {
    let mut in_text = false;
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => in_text = !in_text,
            b'\\' if in_text => {
                bytes.next();
            }
            b' ' | b'\n' | b'\r' | b'\t' if !in_text => return false,
            _ => {}
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(texts: &[&str]) -> Vec<TranscriptEntry> {
        let entry = |it: &&str| TranscriptEntry::from_text((*it).to_owned()).unwrap();
        texts.iter().map(entry).collect()
    }

    /// design.md 4: a transcript that the CLI would misread is never given to it.
    #[test]
    fn only_compact_chains_with_ids_of_their_own_pass() {
        let root = r#"{"parentUuid":null,"uuid":"a","text":"x: y, \" : z"}"#;
        let child = r#"{"parentUuid":"a","uuid":"b"}"#;
        assert!(verify(&entries(&[root, child, r#"{"type":"mode"}"#])).is_ok());
        for (broken, what) in [
            (vec![root, r#"{"parentUuid": "a","uuid":"b"}"#], "blank"),
            (vec![root, r#"{"parentUuid":"a", "uuid":"b"}"#], "blank"),
            (vec![root, child, child], "twice"),
            (vec![child, root], "order"),
            (vec![root, r#"{"parentUuid":"c","uuid":"b"}"#], "no parent"),
        ] {
            assert!(verify(&entries(&broken)).is_err(), "{what}");
        }
    }
}
