//! What the CLI reports about the model calls of a segment, for its span (rows J03 to J09).

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Segment;
use crate::model_call::ModelCallMetadata;
use crate::protocol::{ReplyMark, ResultFrame};

/// The replies of a segment, told apart by the API's id. Texts of the CLI itself are none.
#[derive(Debug, Default)]
pub(super) struct Replies {
    ids: BTreeSet<String>,
    model: AnsweredBy,
    has_sub_agent: bool,
    changes: u64,
}

/// The models that the replies name.
#[derive(Debug, Default, PartialEq, Eq)]
enum AnsweredBy {
    #[default]
    Nobody,
    One(String),
    /// Different ones, or one that was not named.
    Unclear,
}

impl Replies {
    /// Notes a reply, or a part of one.
    pub(super) fn saw(&mut self, id: &str, model: Option<&str>, is_sub_agent: bool) {
        if !self.ids.contains(id) {
            self.ids.insert(id.to_owned());
            self.changes += 1;
        }
        self.has_sub_agent |= is_sub_agent;
        self.model = match (std::mem::take(&mut self.model), model) {
            (AnsweredBy::Nobody, Some(model)) => AnsweredBy::One(model.to_owned()),
            (AnsweredBy::One(known), Some(model)) if known == model => AnsweredBy::One(known),
            // A part of a known reply may still say this.
            (AnsweredBy::One(_), _) => {
                self.changes += 1;
                AnsweredBy::Unclear
            }
            (AnsweredBy::Nobody | AnsweredBy::Unclear, _) => AnsweredBy::Unclear,
        };
    }

    /// Returns how many there were.
    pub(super) fn count(&self) -> u64 {
        self.ids.len() as u64
    }

    fn only(&self) -> Option<&str> {
        match self.ids.len() {
            1 => self.ids.first().map(String::as_str),
            _ => None,
        }
    }
}

/// What else the CLI says about its model calls.
#[derive(Debug)]
pub(super) struct ModelCalls {
    /// The options' model until the CLI names its own.
    requested: Option<String>,
    providers: BTreeMap<String, String>,
    /// The streamed reply of the main conversation that comes in.
    streamed: Option<String>,
    /// Why the last streamed reply ended, by its id.
    stopped: Option<(String, String)>,
    changes: u64,
    /// How much had changed, here and in the replies, when it was last returned.
    returned: Option<(u64, u64)>,
}

#[derive(Deserialize)]
struct Served {
    #[serde(default)]
    provider: Option<String>,
}

impl ModelCalls {
    pub(super) const fn new(options_model: Option<String>) -> Self {
        Self {
            requested: options_model,
            providers: BTreeMap::new(),
            streamed: None,
            stopped: None,
            changes: 0,
            returned: None,
        }
    }

    /// The CLI says which model it asks, after it has resolved aliases and its default.
    pub(super) fn requests(&mut self, model: &str) {
        self.requested = Some(model.to_owned());
        self.changes += 1;
    }

    /// Notes where a reply begins, and why the model ended it. The result's own reason is not the
    /// model's: it may be `tool_deferred`.
    pub(super) fn note(&mut self, mark: &ReplyMark) {
        match mark {
            ReplyMark::Started { message_id, .. } => self.streamed = Some(message_id.clone()),
            ReplyMark::Used { stop_reason, .. } => {
                if let (Some(id), Some(reason)) = (&self.streamed, stop_reason) {
                    self.stopped = Some((id.clone(), reason.clone()));
                    self.changes += 1;
                }
            }
            ReplyMark::Ended { .. } => self.streamed = None,
        }
    }

    /// Notes who served the models. What cannot be read here is not reported, and ends no turn.
    pub(super) fn served(&mut self, result: &ResultFrame) {
        let served = result.model_usage.as_deref().map(RawValue::get);
        let served =
            served.and_then(|it| serde_json::from_str::<BTreeMap<String, Served>>(it).ok());
        let named = served.into_iter().flatten();
        self.providers
            .extend(named.filter_map(|(model, served)| Some((model, served.provider?))));
        self.changes += 1;
    }

    fn metadata(&self, replies: &Replies) -> ModelCallMetadata {
        let request_model = self
            .requested
            .as_ref()
            .filter(|_| !replies.has_sub_agent)
            .cloned();
        let provider = request_model
            .as_ref()
            .and_then(|it| self.providers.get(it))
            .and_then(|it| provider_name(it));
        let only = replies.only();
        let stopped = self.stopped.as_ref();
        ModelCallMetadata {
            model_calls: replies.count(),
            provider_name: provider.map(str::to_owned),
            request_model,
            response_model: match &replies.model {
                AnsweredBy::One(model) => Some(model.clone()),
                AnsweredBy::Nobody | AnsweredBy::Unclear => None,
            },
            response_id: only.map(str::to_owned),
            finish_reason: stopped
                .filter(|(id, _)| only == Some(id.as_str()))
                .map(|(_, reason)| reason.clone()),
        }
    }
}

/// Returns the conventions' name for a provider that the CLI reports. A gateway does not say whom it
/// asks; what has no well-known name keeps its own.
fn provider_name(reported: &str) -> Option<&str> {
    match reported {
        "firstParty" => Some("anthropic"),
        "bedrock" | "mantle" => Some("aws.bedrock"),
        "vertex" => Some("gcp.vertex_ai"),
        "gateway" => None,
        other => Some(other),
    }
}

impl Segment {
    /// Returns what is known of the model calls, when it may be more than was returned last.
    #[must_use]
    pub fn poll_model_calls(&mut self) -> Option<ModelCallMetadata> {
        let replies = self.transcript.replies();
        let changes = Some((self.model_calls.changes, replies.changes));
        if self.model_calls.returned == changes {
            return None;
        }
        self.model_calls.returned = changes;
        Some(self.model_calls.metadata(replies))
    }
}
