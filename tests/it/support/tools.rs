//! Tools whose effects can be counted from outside.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use abide::policy::ToolEffect;
use abide::testing::faults::Side;
use abide::tool::{CustomTool, ToolContext, ToolError, ToolOutput};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::watch;

/// What happened in the world: one line for each effect, in order.
#[derive(Debug, Clone)]
pub(crate) struct Effects {
    lines: Arc<Mutex<Vec<String>>>,
    changed: watch::Sender<usize>,
    handlers: Arc<Mutex<Handlers>>,
    held: watch::Sender<Option<&'static str>>,
    pace: Arc<Mutex<Duration>>,
}

/// How often handlers were started, and which start never ends.
#[derive(Debug, Default)]
struct Handlers {
    starts: usize,
    hold: Option<(usize, Side)>,
}

impl Default for Effects {
    fn default() -> Self {
        Self {
            lines: Arc::default(),
            changed: watch::Sender::new(0),
            handlers: Arc::default(),
            held: watch::Sender::new(None),
            pace: Arc::default(),
        }
    }
}

impl Effects {
    pub(crate) fn add(&self, line: String) {
        let mut lines = self
            .lines
            .lock()
            .expect("no test panics while it adds a line");
        lines.push(line);
        self.changed.send_replace(lines.len());
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines
            .lock()
            .expect("no test panics while it adds a line")
            .clone()
    }

    /// Waits until there are so many effects.
    pub(crate) async fn wait_for(&self, count: usize) {
        let mut changed = self.changed.subscribe();
        let came = changed.wait_for(|it| *it >= count).await;
        came.expect("the sender is ours");
    }

    /// Stops the n-th start of a handler, counted from 1, for ever on this side of its effect.
    pub(crate) fn hold_at(&self, start: usize, side: Side) {
        self.held.send_replace(None);
        self.handlers().hold = Some((start, side));
    }

    /// Lets every handler take so long before its effect, and again after it.
    pub(crate) fn set_pace(&self, pace: Duration) {
        *self.pace.lock().expect("nobody panics while it is set") = pace;
    }

    async fn take_time(&self) {
        let pace = *self.pace.lock().expect("nobody panics while it is set");
        if !pace.is_zero() {
            // sleeps because this is what a slow tool does; the time is virtual
            tokio::time::sleep(pace).await;
        }
    }

    /// How often a handler was started.
    pub(crate) fn starts(&self) -> usize {
        self.handlers().starts
    }

    /// Waits until a handler has stopped where it was told to; returns its tool.
    pub(crate) async fn held(&self) -> &'static str {
        let mut held = self.held.subscribe();
        let held = held.wait_for(Option::is_some).await;
        held.expect("the sender is ours").expect("it is some")
    }

    /// One start of a handler: it has this effect, unless it is held before.
    async fn happen(&self, tool: &'static str, line: String) {
        let start = {
            let mut handlers = self.handlers();
            handlers.starts += 1;
            handlers.starts
        };
        self.take_time().await;
        self.stop_if_held(tool, start, Side::Before).await;
        self.add(line);
        self.stop_if_held(tool, start, Side::After).await;
        self.take_time().await;
    }

    async fn stop_if_held(&self, tool: &'static str, start: usize, side: Side) {
        let is_held = self.handlers().hold == Some((start, side));
        if is_held {
            self.held.send_replace(Some(tool));
            std::future::pending::<()>().await;
        }
    }

    fn handlers(&self) -> MutexGuard<'_, Handlers> {
        self.handlers
            .lock()
            .expect("no test panics while it looks at the handlers")
    }
}

#[derive(Deserialize, JsonSchema)]
struct Order {
    order_id: String,
}

pub(crate) fn all(effects: &Effects) -> Vec<CustomTool> {
    vec![
        recording("lookup", effects, "is fine").with_effect(ToolEffect::Read),
        // No annotation: unclassified, so it waits for a person and is started once.
        recording("refund", effects, "is refunded"),
        // As `refund`; a test gives it a policy.
        recording("note", effects, "has a note"),
        recording("set_status", effects, "has a status").with_effect(ToolEffect::IdempotentWrite),
        failing("refuse", effects),
        panicking("break", effects),
        hanging("hang", effects),
        flaky("retry", effects).with_effect(ToolEffect::IdempotentWrite),
    ]
}

fn recording(name: &'static str, effects: &Effects, says: &'static str) -> CustomTool {
    let effects = effects.clone();
    CustomTool::new(
        name,
        "does what it is called",
        move |order: Order, context: ToolContext| {
            let effects = effects.clone();
            async move {
                let key = context
                    .deferred_execution
                    .map(|it| format!(" under {}", it.idempotency_key));
                let line = format!("{name} {}{}", order.order_id, key.unwrap_or_default());
                effects.happen(name, line).await;
                Ok(ToolOutput::text(format!("order {} {says}", order.order_id)))
            }
        },
    )
}

/// Ends each call with an error for the model.
fn failing(name: &'static str, effects: &Effects) -> CustomTool {
    let effects = effects.clone();
    CustomTool::new(name, "always refuses", move |order: Order, _| {
        let effects = effects.clone();
        async move {
            effects
                .happen(name, format!("{name} {}", order.order_id))
                .await;
            Err(ToolError::failed("the desk is closed"))
        }
    })
}

fn panicking(name: &'static str, effects: &Effects) -> CustomTool {
    let effects = effects.clone();
    CustomTool::new(name, "always breaks", move |order: Order, _| {
        let effects = effects.clone();
        async move {
            effects.add(format!("{name} {}", order.order_id));
            assert!(order.order_id.is_empty(), "the tool breaks on purpose");
            Ok(ToolOutput::text("never said"))
        }
    })
}

/// Never ends; its deadline does.
fn hanging(name: &'static str, effects: &Effects) -> CustomTool {
    let effects = effects.clone();
    CustomTool::new(name, "never ends", move |order: Order, _| {
        let effects = effects.clone();
        async move {
            effects.add(format!("{name} {}", order.order_id));
            std::future::pending().await
        }
    })
    .with_deadline(Duration::from_millis(100))
}

/// Fails its first attempt after its effect.
fn flaky(name: &'static str, effects: &Effects) -> CustomTool {
    let effects = effects.clone();
    CustomTool::new(
        name,
        "works the second time",
        move |order: Order, context: ToolContext| {
            let effects = effects.clone();
            async move {
                let Some(execution) = context.deferred_execution else {
                    return Err(ToolError::failed("it has to run in its own step"));
                };
                let line = format!(
                    "{name} {} under {}",
                    order.order_id, execution.idempotency_key
                );
                effects.happen(name, line).await;
                if execution.attempt == 1 {
                    return Err(ToolError::attempt("the line went dead"));
                }
                Ok(ToolOutput::text(format!(
                    "order {} took two attempts",
                    order.order_id
                )))
            }
        },
    )
}
