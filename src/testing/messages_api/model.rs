//! The scripted model: which request gets which answer.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use super::commands;
use super::reply::{Answer, Reply};
use super::request::{ApiRequest, RequestKind};
use crate::testing::script::ScriptError;

type Condition = Box<dyn Fn(&ApiRequest) -> bool + Send + Sync>;
type Answering = Box<dyn Fn(&ApiRequest) -> Option<Answer> + Send + Sync>;

/// What a [`ScriptedMessagesApi`](super::ScriptedMessagesApi) answers. Created by test code.
///
/// The first of these that serves a request answers it: the rules in their order, the router, the
/// script language, the canned answer of auxiliary requests. A request that none serves is
/// unserved.
pub struct ModelScript {
    rules: Vec<Rule>,
    router: Option<Answering>,
    commands: bool,
    auxiliary: Option<Reply>,
    session_marker: Option<String>,
    id_seed: u32,
}

impl ModelScript {
    /// Makes a script that serves no main request.
    #[must_use]
    pub fn new() -> Self {
        Self {
            rules: Vec::new(),
            router: None,
            commands: false,
            auxiliary: Some(Reply::text("auxiliary")),
            session_marker: None,
            id_seed: 0,
        }
    }

    /// Makes a script that serves prompts in the [script language](crate::testing::script).
    #[must_use]
    pub fn commands() -> Self {
        Self {
            commands: true,
            ..Self::new()
        }
    }

    /// Adds a rule after the ones before it.
    #[must_use]
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Sets the router: it is asked about each model call that no rule serves, auxiliary ones
    /// included, and `None` passes it on.
    #[must_use]
    pub fn route(
        mut self,
        router: impl Fn(&ApiRequest) -> Option<Answer> + Send + Sync + 'static,
    ) -> Self {
        self.router = Some(Box::new(router));
        self
    }

    /// Leaves auxiliary requests without the canned answer: one that nothing else serves is then
    /// unserved.
    #[must_use]
    pub fn without_auxiliary_answer(mut self) -> Self {
        self.auxiliary = None;
        self
    }

    /// Makes every model call whose system prompt holds this text a main one, even if it offers
    /// no tools.
    #[must_use]
    pub fn session_marker(mut self, marker: impl Into<String>) -> Self {
        self.session_marker = Some(marker.into());
        self
    }

    /// Sets what this server's ids begin with; two servers with different seeds never give out
    /// the same tool use id.
    #[must_use]
    pub fn id_seed(mut self, seed: u32) -> Self {
        self.id_seed = seed;
        self
    }

    pub(super) fn seed(&self) -> u32 {
        self.id_seed
    }

    /// Tells a main model call from an auxiliary one.
    pub(super) fn kind_of_model_call(&self, request: &ApiRequest) -> RequestKind {
        let marked = self.session_marker.as_deref().is_some_and(|marker| {
            request
                .system_texts()
                .iter()
                .any(|text| text.contains(marker))
        });
        if marked || !request.tools().is_empty() {
            RequestKind::Main
        } else {
            RequestKind::Auxiliary
        }
    }

    /// Chooses the answer to a model call.
    pub(super) fn answer(&self, request: &ApiRequest) -> Result<Answer, UnservedReason> {
        let answer = self.choose(request)?;
        if let Answer::Reply(reply) = &answer
            && let Some(block) = reply.missing_block()
        {
            return Err(UnservedReason::NoSuchBlock { block });
        }
        Ok(answer)
    }

    fn choose(&self, request: &ApiRequest) -> Result<Answer, UnservedReason> {
        if let Some(rule) = self.rules.iter().find(|rule| rule.takes(request)) {
            return Ok(rule.answer.clone());
        }
        if let Some(answer) = self.router.as_ref().and_then(|router| router(request)) {
            return Ok(answer);
        }
        let auxiliary = self.auxiliary.as_ref();
        match (request.kind, auxiliary) {
            (RequestKind::Main, _) if self.commands => Self::play(request),
            (RequestKind::Auxiliary, Some(reply)) => Ok(Answer::Reply(reply.clone())),
            (
                RequestKind::Main
                | RequestKind::Auxiliary
                | RequestKind::CountTokens
                | RequestKind::Probe
                | RequestKind::Unknown,
                _,
            ) => Err(UnservedReason::NoRule),
        }
    }

    fn play(request: &ApiRequest) -> Result<Answer, UnservedReason> {
        commands::play(request)
            .ok_or(UnservedReason::NoRule)?
            .map_err(|source| UnservedReason::Script { source })
    }
}

impl Default for ModelScript {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ModelScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelScript")
            .field("rules", &self.rules)
            .field("router", &self.router.is_some())
            .field("commands", &self.commands)
            .field("auxiliary", &self.auxiliary)
            .field("session_marker", &self.session_marker)
            .field("id_seed", &self.id_seed)
            .finish()
    }
}

/// One rule of a [`ModelScript`]: which requests it serves, with what, how often.
pub struct Rule {
    serves: Condition,
    answer: Answer,
    /// How often the rule may still serve; `None` is without end.
    left: Mutex<Option<usize>>,
}

impl Rule {
    /// Serves the first main request of a turn with this prompt.
    #[must_use]
    pub fn prompt(prompt: impl Into<String>, answer: impl Into<Answer>) -> Self {
        Self::results(prompt, 0, answer)
    }

    /// Serves the main request that brings the `results`-th tool result since this prompt.
    #[must_use]
    pub fn results(prompt: impl Into<String>, results: usize, answer: impl Into<Answer>) -> Self {
        let prompt = prompt.into();
        let serves = move |request: &ApiRequest| {
            request.kind == RequestKind::Main
                && request.turn().is_some_and(|turn| {
                    turn.prompt.trim() == prompt.trim() && turn.results.len() == results
                })
        };
        Self::when(serves, answer)
    }

    /// Serves the model calls, auxiliary ones included, of which the condition holds.
    #[must_use]
    pub fn when(
        condition: impl Fn(&ApiRequest) -> bool + Send + Sync + 'static,
        answer: impl Into<Answer>,
    ) -> Self {
        Self {
            serves: Box::new(condition),
            answer: answer.into(),
            left: Mutex::new(None),
        }
    }

    /// Limits the rule to so many requests; later ones go on to the next rule.
    #[must_use]
    pub fn times(self, times: usize) -> Self {
        Self {
            left: Mutex::new(Some(times)),
            ..self
        }
    }

    /// Returns whether the rule serves the request, and counts it if so.
    fn takes(&self, request: &ApiRequest) -> bool {
        if !(self.serves)(request) {
            return false;
        }
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *left {
            None => true,
            Some(0) => false,
            Some(times) => {
                *times -= 1;
                true
            }
        }
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("answer", &self.answer)
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

/// A request that the script did not serve: a test that has one has failed.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct UnservedRequest {
    /// The request.
    pub request: ApiRequest,
    /// Why nothing served it.
    pub reason: UnservedReason,
}

/// Why a request was not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnservedReason {
    /// The API has no such endpoint here.
    #[error("no such endpoint")]
    NoEndpoint,
    /// The body is not JSON, or too long.
    #[error("the body is not JSON of an acceptable length")]
    NotJson,
    /// No part of the script serves it.
    #[error("no rule of the script serves this request")]
    NoRule,
    /// The prompt's script cannot be read.
    #[error("the prompt's script cannot be read")]
    Script {
        /// What is wrong with it.
        source: ScriptError,
    },
    /// The chosen reply holds or breaks at a block that it does not have.
    #[error("the reply has no block {block}, but holds or breaks there")]
    NoSuchBlock {
        /// The block's index.
        block: usize,
    },
}
