//! The turns that are crashed everywhere.

/// A conversation that is run once undisturbed and then with crashes.
#[derive(Debug)]
pub(super) struct Reference {
    pub(super) name: &'static str,
    /// What the person says, one turn each.
    pub(super) messages: &'static [&'static str],
    /// Whether the person waits for an answer before the next message.
    pub(super) waits: bool,
    /// How the person answers each interrupt.
    pub(super) answer: Answer,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Answer {
    Approve,
    Reject(&'static str),
}

/// What is said after the enumerated turns: the answer shows each prompt as often as the model
/// sees it.
pub(super) const EPILOGUE: &str = "script: recall";

/// The gate at which the command of [`GATED_BASH`] waits.
pub(super) const BASH_GATE: &str = "hold";

/// A Bash call that waits at a gate once its effect has happened.
pub(super) const GATED_BASH: Reference = Reference {
    name: "a bash that waits",
    messages: &[r#"script: call Bash {"command":"touch gate:hold"}"#],
    waits: true,
    answer: Answer::Approve,
};

pub(super) const ALL: [Reference; 14] = [
    PLAIN,
    INLINE_READ,
    APPROVED_WRITE,
    Reference {
        name: "a rejected write",
        messages: &[r#"script: call refund {"order_id":"7"}"#],
        waits: true,
        answer: Answer::Reject("not today"),
    },
    IDEMPOTENT_WRITE,
    Reference {
        name: "a flaky write",
        messages: &[r#"script: call retry {"order_id":"7"}"#],
        waits: true,
        answer: Answer::Approve,
    },
    READ_AND_WRITE,
    Reference {
        name: "two writes",
        messages: &[r#"script: call refund {"order_id":"1"} && call refund {"order_id":"2"}"#],
        waits: true,
        answer: Answer::Approve,
    },
    APPROVED_BASH,
    Reference {
        name: "a rejected bash",
        messages: &[r#"script: call Bash {"command":"echo ran >> marker"}"#],
        waits: true,
        answer: Answer::Reject("no shell"),
    },
    Reference {
        name: "a failing tool",
        messages: &[r#"script: call refuse {"order_id":"7"}"#],
        waits: true,
        answer: Answer::Approve,
    },
    Reference {
        name: "two turns",
        messages: &["script: say one", "script: recall"],
        waits: true,
        answer: Answer::Approve,
    },
    Reference {
        name: "two messages at once",
        messages: &["script: say one", "script: recall"],
        waits: false,
        answer: Answer::Approve,
    },
    Reference {
        name: "a write and a turn after it",
        messages: &[r#"script: call refund {"order_id":"7"}"#, "script: recall"],
        waits: true,
        answer: Answer::Approve,
    },
];

const PLAIN: Reference = Reference {
    name: "a plain turn",
    messages: &["script: say hello"],
    waits: true,
    answer: Answer::Approve,
};

const INLINE_READ: Reference = Reference {
    name: "an inline read",
    messages: &[r#"script: call lookup {"order_id":"7"}"#],
    waits: true,
    answer: Answer::Approve,
};

pub(super) const APPROVED_WRITE: Reference = Reference {
    name: "an approved write",
    messages: &[r#"script: call refund {"order_id":"7"}"#],
    waits: true,
    answer: Answer::Approve,
};

pub(super) const IDEMPOTENT_WRITE: Reference = Reference {
    name: "an idempotent write",
    messages: &[r#"script: call set_status {"order_id":"7"}"#],
    waits: true,
    answer: Answer::Approve,
};

pub(super) const READ_AND_WRITE: Reference = Reference {
    name: "a read and a write",
    messages: &[r#"script: call lookup {"order_id":"7"} && call refund {"order_id":"7"}"#],
    waits: true,
    answer: Answer::Approve,
};

pub(super) const APPROVED_BASH: Reference = Reference {
    name: "an approved bash",
    messages: &[r#"script: call Bash {"command":"echo ran >> marker"}"#],
    waits: true,
    answer: Answer::Approve,
};
