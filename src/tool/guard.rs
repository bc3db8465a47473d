//! Runs a handler so that nothing it does can hurt the worker: deadline, panic, cancellation.

use tokio::task::JoinSet;
use tracing::Instrument as _;

use super::{CustomTool, ToolContext, ToolError, ToolOutput};

/// How one start of a handler ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum ToolEnd {
    /// It gave an output.
    Output(ToolOutput),
    /// The arguments do not fit the schema; the handler never ran.
    InvalidArguments(String),
    /// It failed for good, with this text for the model.
    Failed(String),
    /// This attempt failed.
    AttemptFailed(Box<dyn std::error::Error + Send + Sync>),
    /// It panicked.
    Panicked,
    /// It did not end before its deadline and was cancelled.
    DeadlineExceeded,
}

/// Runs the tool's handler once, in a task of its own.
///
/// # Cancel safety
/// Dropping the call cancels the handler at its next await; what it did until then stays done.
pub async fn run_guarded(tool: &CustomTool, arguments: &str, context: ToolContext) -> ToolEnd {
    let (own, arguments, deadline) = (tool.clone(), arguments.to_owned(), tool.deadline());
    // A set of one: it aborts the task when it is dropped, and reports a panic as an error. The
    // application's closure runs inside it too, for a panic before its first await.
    let mut running = JoinSet::new();
    let run = async move {
        match own.prepare(&arguments, context) {
            Ok(handler) => Ok(handler.await),
            Err(error) => Err(error),
        }
    };
    running.spawn(run.in_current_span());
    match tokio::time::timeout(deadline, running.join_next()).await {
        Err(_) => ToolEnd::DeadlineExceeded,
        Ok(Some(Ok(Ok(Ok(output))))) => ToolEnd::Output(output),
        Ok(Some(Ok(Ok(Err(ToolError::Failed { message }))))) => ToolEnd::Failed(message),
        Ok(Some(Ok(Ok(Err(ToolError::Attempt { source }))))) => ToolEnd::AttemptFailed(source),
        Ok(Some(Ok(Err(error)))) => {
            ToolEnd::InvalidArguments(format!("invalid arguments: {error}"))
        }
        // The runtime is going down, or the task panicked: either way it did not finish.
        Ok(Some(Err(_)) | None) => ToolEnd::Panicked,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use schemars::JsonSchema;
    use serde::Deserialize;

    use super::*;
    use crate::ids::{SessionId, ToolCallId, TurnId};

    #[derive(Deserialize, JsonSchema)]
    struct Order {
        order_id: u32,
    }

    fn context() -> ToolContext {
        ToolContext::inline(
            SessionId::new("s").unwrap(),
            TurnId::new(1),
            ToolCallId::new("c").unwrap(),
        )
    }

    /// E15: arguments that do not fit never reach the handler.
    #[tokio::test]
    async fn arguments_are_checked_before_the_handler_runs() {
        let runs = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&runs);
        let tool = CustomTool::new("look_up", "", move |order: Order, _| {
            seen.fetch_add(1, Ordering::SeqCst);
            async move { Ok(ToolOutput::text(order.order_id.to_string())) }
        });
        for bad in [r#"{"order_id":"7"}"#, "{}", "nonsense"] {
            assert!(matches!(
                run_guarded(&tool, bad, context()).await,
                ToolEnd::InvalidArguments(_)
            ));
        }
        assert_eq!(runs.load(Ordering::SeqCst), 0);
        let end = run_guarded(&tool, r#"{"order_id":7}"#, context()).await;
        assert!(matches!(end, ToolEnd::Output(output) if output == ToolOutput::text("7")));
    }

    #[tokio::test]
    async fn a_panic_is_an_end_like_any_other() {
        let tool = CustomTool::new("boom", "", |order: Order, _| async move {
            assert!(order.order_id > 100, "boom");
            Ok(ToolOutput::text(""))
        });
        let end = run_guarded(&tool, r#"{"order_id":7}"#, context()).await;
        assert!(matches!(end, ToolEnd::Panicked));
    }

    /// A closure may panic before it returns its future; nobody would answer the call then.
    #[tokio::test]
    async fn a_panic_before_the_first_await_is_an_end_too() {
        let tool = CustomTool::new("boom", "", |order: Order, _| {
            assert!(order.order_id > 100, "boom");
            async { Ok(ToolOutput::text("")) }
        });
        let end = run_guarded(&tool, r#"{"order_id":7}"#, context()).await;
        assert!(matches!(end, ToolEnd::Panicked));
    }

    #[tokio::test(start_paused = true)]
    async fn a_handler_that_never_ends_meets_its_deadline() {
        let tool = CustomTool::new("stall", "", |_: Order, _| std::future::pending())
            .with_deadline(Duration::from_secs(60));
        let end = run_guarded(&tool, r#"{"order_id":7}"#, context()).await;
        assert!(matches!(end, ToolEnd::DeadlineExceeded));
    }
}
