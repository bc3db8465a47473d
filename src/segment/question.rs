//! A question of the CLI about a recorded call that waits for its answer.

use serde_json::value::RawValue;

use crate::protocol::{HookAnswer, HostFrame, PermissionAnswer};

/// What waits for an answer.
#[derive(Debug)]
pub(super) enum Question {
    Hook { request_id: String },
    Permission { request_id: String },
}

impl Question {
    pub(super) fn request_id(&self) -> &str {
        match self {
            Self::Hook { request_id } | Self::Permission { request_id } => request_id,
        }
    }

    /// The call runs with this input. Only a hook's answer has room for a note to the model; a
    /// permission question comes in its place where the CLI passed over our hook (L27).
    pub(super) fn allow(self, updated_input: Box<RawValue>, note: Option<String>) -> HostFrame {
        match self {
            Self::Hook { request_id } => HostFrame::Hook {
                request_id,
                answer: HookAnswer::Allow {
                    updated_input: Some(updated_input),
                    additional_context: note,
                },
            },
            Self::Permission { request_id } => HostFrame::Permission {
                request_id,
                answer: PermissionAnswer::Allow { updated_input },
            },
        }
    }

    /// The call does not run.
    pub(super) fn deny(self, reason: &str) -> HostFrame {
        match self {
            Self::Hook { request_id } => HostFrame::Hook {
                request_id,
                answer: HookAnswer::Deny {
                    reason: reason.to_owned(),
                },
            },
            Self::Permission { request_id } => HostFrame::Permission {
                request_id,
                answer: PermissionAnswer::Deny {
                    message: reason.to_owned(),
                },
            },
        }
    }
}
