//! The turns that are crashed everywhere.

/// A conversation that is run once undisturbed and then with crashes.
#[derive(Debug)]
pub(crate) struct Reference {
    pub(crate) name: &'static str,
    /// What the person says, one turn each.
    pub(crate) messages: &'static [&'static str],
    /// Whether the person waits for an answer before the next message.
    pub(crate) waits: bool,
    /// How the person answers each interrupt.
    pub(crate) answer: Answer,
    /// Which of several open interrupts is answered first.
    pub(crate) first: First,
    /// Whether the person answers only when no process waits any more.
    pub(crate) parks: bool,
    /// Tools that need no person although they run once.
    pub(crate) free_tools: &'static [&'static str],
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Answer {
    Approve,
    Reject(&'static str),
    /// Rejects the call about this order, and approves the others.
    RejectOrder(&'static str, &'static str),
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum First {
    Oldest,
    Newest,
    Middle,
}

/// A turn without a message, in which the person approves whatever comes, in order.
pub(crate) const APPROVED: Reference = Reference {
    name: "",
    messages: &[],
    waits: true,
    answer: Answer::Approve,
    first: First::Oldest,
    parks: false,
    free_tools: &[],
};

/// What is said after the enumerated turns: the answer shows each prompt as often as the model
/// sees it.
pub(crate) const EPILOGUE: &str = "script: recall";

/// The gate at which the command of [`GATED_BASH`] waits.
pub(crate) const BASH_GATE: &str = "hold";

/// A Bash call that waits at a gate once its effect has happened.
pub(crate) const GATED_BASH: Reference = Reference {
    name: "a bash that waits",
    messages: &[r#"script: call Bash {"command":"touch gate:hold"}"#],
    ..APPROVED
};

pub(crate) const ALL: [Reference; 14] = [
    PLAIN,
    INLINE_READ,
    APPROVED_WRITE,
    Reference {
        name: "a rejected write",
        messages: &[r#"script: call refund {"order_id":"7"}"#],
        answer: Answer::Reject("not today"),
        ..APPROVED
    },
    IDEMPOTENT_WRITE,
    Reference {
        name: "a flaky write",
        messages: &[r#"script: call retry {"order_id":"7"}"#],
        ..APPROVED
    },
    READ_AND_WRITE,
    Reference {
        name: "two writes",
        messages: &[r#"script: call refund {"order_id":"1"} && call refund {"order_id":"2"}"#],
        ..APPROVED
    },
    APPROVED_BASH,
    Reference {
        name: "a rejected bash",
        messages: &[r#"script: call Bash {"command":"echo ran >> marker"}"#],
        answer: Answer::Reject("no shell"),
        ..APPROVED
    },
    Reference {
        name: "a failing tool",
        messages: &[r#"script: call refuse {"order_id":"7"}"#],
        ..APPROVED
    },
    Reference {
        name: "two turns",
        messages: &["script: say one", "script: recall"],
        ..APPROVED
    },
    Reference {
        name: "two messages at once",
        messages: &["script: say one", "script: recall"],
        waits: false,
        ..APPROVED
    },
    Reference {
        name: "a write and a turn after it",
        messages: &[r#"script: call refund {"order_id":"7"}"#, "script: recall"],
        ..APPROVED
    },
];

const PLAIN: Reference = Reference {
    name: "a plain turn",
    messages: &["script: say hello"],
    ..APPROVED
};

const INLINE_READ: Reference = Reference {
    name: "an inline read",
    messages: &[r#"script: call lookup {"order_id":"7"}"#],
    ..APPROVED
};

pub(crate) const APPROVED_WRITE: Reference = Reference {
    name: "an approved write",
    messages: &[r#"script: call refund {"order_id":"7"}"#],
    ..APPROVED
};

pub(crate) const IDEMPOTENT_WRITE: Reference = Reference {
    name: "an idempotent write",
    messages: &[r#"script: call set_status {"order_id":"7"}"#],
    ..APPROVED
};

pub(crate) const READ_AND_WRITE: Reference = Reference {
    name: "a read and a write",
    messages: &[r#"script: call lookup {"order_id":"7"} && call refund {"order_id":"7"}"#],
    ..APPROVED
};

pub(crate) const APPROVED_BASH: Reference = Reference {
    name: "an approved bash",
    messages: &[r#"script: call Bash {"command":"echo ran >> marker"}"#],
    ..APPROVED
};
