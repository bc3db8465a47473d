//! How long the result of a custom call may be.

use std::borrow::Cow;

/// The longest text of a result that the model gets whole, in UTF-16 units. The CLI puts a longer one
/// into a file of its config directory, which is gone after the segment, and shows the model its
/// name (measured on CLI 2.1.316 and 2.1.332: 50,000 pass, 50,001 do not).
const RESULT_UNITS_MAX: usize = 50_000;

const CUT_MARKER: &str = "\n[the rest of this result was cut]";

/// Cuts a result at the limit, at a character, and says so.
pub(crate) fn cut_result(text: &str) -> Cow<'_, str> {
    // A text never has more UTF-16 units than bytes.
    if text.len() <= RESULT_UNITS_MAX || text.encode_utf16().count() <= RESULT_UNITS_MAX {
        return Cow::Borrowed(text);
    }
    let mut units = CUT_MARKER.len();
    let end = text.char_indices().find_map(|(position, it)| {
        units += it.len_utf16();
        (units > RESULT_UNITS_MAX).then_some(position)
    });
    let kept = &text[..end.unwrap_or(text.len())];
    Cow::Owned(format!("{kept}{CUT_MARKER}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit counts as the CLI does, and a cut text says so within it.
    #[test]
    fn a_result_is_cut_at_the_clis_own_limit() {
        for (text, is_cut) in [
            ("x".repeat(50_000), false),
            ("x".repeat(50_001), true),
            ("漢".repeat(50_000), false),
            ("\u{1f600}".repeat(25_000), false),
            ("\u{1f600}".repeat(25_001), true),
        ] {
            let result = cut_result(&text);
            assert_eq!(result.ends_with(CUT_MARKER), is_cut);
            let units = result.encode_utf16().count();
            assert!((49_999..=50_000).contains(&units), "{units}");
        }
    }
}
