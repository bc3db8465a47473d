//! The turns that are killed everywhere on the live path.

use crate::crash_points::reference::{APPROVED, Answer, First, Reference};

/// Two calls that wait for a person, one that does not, and a tool of the CLI.
const FOUR_CALLS: &[&str] = &[
    r#"script: call refund {"order_id":"1"} && call set_status {"order_id":"2"} && call refund {"order_id":"3"} && call Bash {"command":"echo ran >> marker"}"#,
];

pub(super) const FOUR_NEWEST_FIRST: Reference = Reference {
    name: "four calls, the newest decided first",
    messages: FOUR_CALLS,
    first: First::Newest,
    ..APPROVED
};

pub(super) const PARKED: Reference = Reference {
    name: "decided after parking",
    messages: &[
        r#"script: call refund {"order_id":"1"} && call Bash {"command":"echo ran >> marker"}"#,
    ],
    first: First::Newest,
    parks: true,
    ..APPROVED
};

/// The second message finds the process warm.
pub(super) const WARM: Reference = Reference {
    name: "a second message on the warm process",
    messages: &[r#"script: call refund {"order_id":"7"}"#, "script: recall"],
    ..APPROVED
};

pub(super) const FREE_BASH: Reference = Reference {
    name: "a bash without approval",
    messages: &[r#"script: call Bash {"command":"echo ran >> marker"}"#],
    free_tools: &["Bash"],
    ..APPROVED
};

pub(super) const TWO_REPLIES: Reference = Reference {
    name: "two replies with calls",
    messages: &[
        r#"script: call lookup {"order_id":"1"} && call refund {"order_id":"2"} ;; then set_status {"order_id":"3"}"#,
    ],
    ..APPROVED
};

/// Worker, CLI and both are killed at each line, and each alone beside each commit.
pub(super) const AT_LINES: [Reference; 8] = [
    Reference {
        name: "a plain answer",
        messages: &["script: say hello"],
        ..APPROVED
    },
    Reference {
        name: "an inline read",
        messages: &[r#"script: call lookup {"order_id":"7"}"#],
        ..APPROVED
    },
    FOUR_NEWEST_FIRST,
    FREE_BASH,
    PARKED,
    TWO_REPLIES,
    Reference {
        name: "a failing write before two others",
        messages: &[
            r#"script: call refuse {"order_id":"1"} && call refund {"order_id":"2"} && call note {"order_id":"3"}"#,
        ],
        first: First::Newest,
        free_tools: &["note"],
        ..APPROVED
    },
    WARM,
];

/// The worker is killed beside each commit.
pub(super) const BESIDE_COMMITS_ONLY: [Reference; 5] = [
    Reference {
        name: "a rejected write before two others",
        messages: &[
            r#"script: call refund {"order_id":"1"} && call note {"order_id":"2"} && call refund {"order_id":"3"}"#,
        ],
        answer: Answer::RejectOrder("1", "not today"),
        free_tools: &["note"],
        ..APPROVED
    },
    Reference {
        name: "an approved write",
        messages: &[r#"script: call refund {"order_id":"7"}"#],
        ..APPROVED
    },
    Reference {
        name: "a write without approval",
        messages: &[r#"script: call note {"order_id":"7"}"#],
        free_tools: &["note"],
        ..APPROVED
    },
    Reference {
        name: "four calls, the oldest decided first",
        messages: FOUR_CALLS,
        ..APPROVED
    },
    Reference {
        name: "four calls, one in the middle decided first",
        messages: FOUR_CALLS,
        first: First::Middle,
        ..APPROVED
    },
];
