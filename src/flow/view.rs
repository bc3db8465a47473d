//! What people are shown of a call's arguments (the ApprovalView of spec/relvo.md 10).

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde_json::{Map, Value};

/// What is shown of a call whose view is not to be had.
const NOTHING: &str = "null";

/// The longest view, in bytes: as long as arguments may be.
const VIEW_BYTES_MAX: usize = 256 * 1024;

type View = dyn Fn(&str, &Map<String, Value>) -> Value + Send + Sync;

/// The application's view of arguments.
#[derive(Clone)]
pub(crate) struct ApprovalView(Arc<View>);

impl ApprovalView {
    pub(super) fn new(
        view: impl Fn(&str, &Map<String, Value>) -> Value + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(view))
    }

    /// Returns what is shown of these arguments, as JSON text. In doubt it is nothing: the call waits
    /// all the same.
    pub(crate) fn of(&self, tool_name: &str, arguments: &str) -> String {
        let nothing = |reason| {
            tracing::warn!(
                tool = tool_name,
                reason,
                "nothing is shown of a call's arguments"
            );
            NOTHING.to_owned()
        };
        let Ok(arguments) = serde_json::from_str(arguments) else {
            return nothing("they cannot be read");
        };
        match catch_unwind(AssertUnwindSafe(|| (self.0)(tool_name, &arguments))) {
            Ok(shown) => Some(shown.to_string())
                .filter(|it| it.len() <= VIEW_BYTES_MAX)
                .unwrap_or_else(|| nothing("the view is over 256 KiB")),
            Err(_) => nothing("the view panicked"),
        }
    }
}

impl fmt::Debug for ApprovalView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApprovalView")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// G10: whatever becomes of the view, arguments are never shown in its place.
    #[test]
    fn in_doubt_nothing_is_shown() {
        let view = ApprovalView::new(|tool, arguments| match arguments["order"].as_u64() {
            Some(1) => json!({"tool": tool, "order": 1}),
            Some(2) => Value::from("x".repeat(VIEW_BYTES_MAX)),
            _ => panic!("on purpose"),
        });
        for (arguments, shown) in [
            (
                r#"{"order":1,"card":"4111"}"#,
                r#"{"order":1,"tool":"pay"}"#,
            ),
            (r#"{"order":2}"#, NOTHING),
            (r#"{"order":3}"#, NOTHING),
            ("{}", NOTHING),
            ("7", NOTHING),
            (r#"{"order":1"#, NOTHING),
            (r#"{"order":1,"card":"\ud83d"}"#, NOTHING),
        ] {
            assert_eq!(view.of("pay", arguments), shown, "{arguments}");
        }
    }
}
