//! A Flow: the registered definition that sessions run.

mod view;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

pub(crate) use self::view::ApprovalView;
use crate::definition::DefinitionError;
use crate::ids::FlowType;
use crate::runner::AgentFrameworkRunner;
use crate::spend::SpendLimit;
use crate::turn::LIVE_WINDOW_DEFAULT;

/// How sessions of a Flow are run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionOptions {
    /// How long one segment may run. Default: 15 minutes (L15).
    pub run_model_limit: Duration,
    /// How long a process waits with open interrupts before the turn goes on waiting without one.
    /// Time in which calls run does not count. Zero never lets a process wait. Default: 60 s.
    pub live_window: Duration,
    /// How long a person has to decide about a call whose policy says nothing about it; then the call
    /// is rejected, and the turn goes on. Counted from the request. Default: without end (N35).
    pub interrupt_deadline: Option<Duration>,
    /// How much may be stored of a session, in bytes as stored, packed. At 50, 80 and 95 % an event
    /// says so, once each. A session that reached it finishes its turn and ends; a turn that goes on
    /// beyond a quarter more fails. `None` for no limit. Default: 256 MiB (spec/core.md 22).
    pub session_bytes_max: Option<u64>,
}

/// The least [`SessionOptions::session_bytes_max`]: a state of full size and a long message fit.
pub const SESSION_BYTES_MAX_LEAST: u64 = 2 * 1024 * 1024;

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            run_model_limit: Duration::from_secs(15 * 60),
            live_window: LIVE_WINDOW_DEFAULT,
            interrupt_deadline: None,
            session_bytes_max: Some(256 * 1024 * 1024),
        }
    }
}

impl SessionOptions {
    /// Sets how long one segment may run; a longer one fails its attempt.
    #[must_use]
    pub const fn with_run_model_limit(mut self, limit: Duration) -> Self {
        self.run_model_limit = limit;
        self
    }

    /// Sets how long a process waits with open interrupts.
    #[must_use]
    pub const fn with_live_window(mut self, window: Duration) -> Self {
        self.live_window = window;
        self
    }

    /// Sets how long a person has to decide about a call.
    #[must_use]
    pub const fn with_interrupt_deadline(mut self, deadline: Duration) -> Self {
        self.interrupt_deadline = Some(deadline);
        self
    }

    /// Sets how much may be stored of a session, in bytes; `None` for no limit.
    #[must_use]
    pub const fn with_session_bytes_max(mut self, bytes_max: Option<u64>) -> Self {
        self.session_bytes_max = bytes_max;
        self
    }
}

/// The definition that sessions of one Flow type run: a runner and options.
///
/// Register the same Flow, under the same type, in every process that runs its sessions.
#[derive(Debug, Clone)]
pub struct AgentSessionFlow {
    flow_type: FlowType,
    runner: Arc<dyn AgentFrameworkRunner>,
    options: SessionOptions,
    spend_limit: Option<Arc<dyn SpendLimit>>,
    approval_view: Option<ApprovalView>,
}

impl AgentSessionFlow {
    /// Defines a Flow.
    ///
    /// # Errors
    /// [`DefinitionError::FlowType`] when the name is no identifier, [`DefinitionError::Option`]
    /// when an option makes no sense.
    pub fn new(
        flow_type: &str,
        runner: impl AgentFrameworkRunner + 'static,
        options: SessionOptions,
    ) -> Result<Self, DefinitionError> {
        let flow_type =
            FlowType::new(flow_type).map_err(|source| DefinitionError::FlowType { source })?;
        if options.run_model_limit.is_zero() {
            return Err(DefinitionError::Option {
                option: "run_model_limit",
                reason: "must be longer than zero",
            });
        }
        if options.interrupt_deadline.is_some_and(|it| it.is_zero()) {
            return Err(DefinitionError::Option {
                option: "interrupt_deadline",
                reason: "must be longer than zero",
            });
        }
        if (options.session_bytes_max).is_some_and(|it| it < SESSION_BYTES_MAX_LEAST) {
            return Err(DefinitionError::Option {
                option: "session_bytes_max",
                reason: "must be 2 MiB or more",
            });
        }
        Ok(Self {
            flow_type,
            runner: Arc::new(runner),
            options,
            spend_limit: None,
            approval_view: None,
        })
    }

    /// Sets what decides whether turns may go on, before each segment and at each checkpoint
    /// of a live one (N42).
    #[must_use]
    pub fn with_spend_limit(mut self, limit: impl SpendLimit + 'static) -> Self {
        self.spend_limit = Some(Arc::new(limit));
        self
    }

    /// Sets what is shown of the arguments of gated calls: `view` gets the policy name of the tool and
    /// its final input, and what it returns is what inbox and snapshot show in the place of the input,
    /// and what the note about a turn without an answer quotes. It is made once, when the call is
    /// recorded, by the worker that runs the segment.
    ///
    /// The call itself is as before: its whole input is stored, because it has to run, and digest and
    /// length are those of the whole input; whoever can guess a short input can find it out from its
    /// digest. Arguments that a person puts in its place are not shown at all. A view that panics or is
    /// over 256 KiB shows `null`, and the call waits all the same. To keep the stored input from who
    /// reads the store, put a [`PayloadCodec`](crate::store::PayloadCodec) in front of it.
    ///
    /// What the model says about its calls, and what tools answer, is not looked at.
    #[must_use]
    pub fn with_approval_view(
        mut self,
        view: impl Fn(&str, &Map<String, Value>) -> Value + Send + Sync + 'static,
    ) -> Self {
        self.approval_view = Some(ApprovalView::new(view));
        self
    }

    /// Returns the name that sessions are started under.
    #[must_use]
    pub const fn flow_type(&self) -> &FlowType {
        &self.flow_type
    }

    /// Returns the options.
    #[must_use]
    pub const fn options(&self) -> &SessionOptions {
        &self.options
    }

    pub(crate) fn spend_limit(&self) -> Option<Arc<dyn SpendLimit>> {
        self.spend_limit.clone()
    }

    pub(crate) const fn approval_view(&self) -> Option<&ApprovalView> {
        self.approval_view.as_ref()
    }

    pub(crate) fn runner(&self) -> Arc<dyn AgentFrameworkRunner> {
        Arc::clone(&self.runner)
    }
}

/// The Flows that a process runs.
#[derive(Debug, Clone, Default)]
pub struct FlowRegistry {
    flows: BTreeMap<FlowType, AgentSessionFlow>,
}

impl FlowRegistry {
    /// Makes an empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a Flow.
    ///
    /// # Errors
    /// [`DefinitionError::DuplicateFlowType`] when its type is taken.
    pub fn register(mut self, flow: AgentSessionFlow) -> Result<Self, DefinitionError> {
        let flow_type = flow.flow_type.clone();
        if self.flows.contains_key(&flow_type) {
            return Err(DefinitionError::DuplicateFlowType { flow_type });
        }
        self.flows.insert(flow_type, flow);
        Ok(self)
    }

    /// Returns the Flow of this type.
    #[must_use]
    pub fn flow(&self, flow_type: &FlowType) -> Option<&AgentSessionFlow> {
        self.flows.get(flow_type)
    }

    /// Returns all Flows.
    pub fn flows(&self) -> impl Iterator<Item = &AgentSessionFlow> {
        self.flows.values()
    }
}
