//! A scripted Messages API on loopback: the real CLI talks to it, and no model is called.
//!
//! A [`ModelScript`] says which request gets which [`Answer`]; it is chosen by what the request
//! says, never by its position among others. [`ScriptedMessagesApi::start`] serves it. Time is
//! made of [gates](Gate), not of delays: a reply holds at a named gate until the test opens it.
//!
//! A request that the script does not serve gets status 400 and is kept in
//! [`ScriptedMessagesApi::unserved`]; end a test with
//! [`ScriptedMessagesApi::assert_all_served`]. The CLI asks three times within milliseconds and
//! then ends the turn with the reason as its result (measured on 2.1.316 and 2.1.332).
//!
//! ```
//! use abide::testing::messages_api::{ModelScript, Reply, Rule, ScriptedMessagesApi};
//! use serde_json::json;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let script = ModelScript::commands()
//!     .rule(Rule::prompt("list", Reply::tool_use("Bash", json!({ "command": "ls" }))))
//!     .rule(Rule::results("list", 1, Reply::text("done")));
//! let api = ScriptedMessagesApi::start(script).await?;
//! // Start the CLI with `api.base_url()` as its `ANTHROPIC_BASE_URL`, and talk to it.
//! api.assert_all_served();
//! api.shutdown().await;
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread()
//! #     .enable_all()
//! #     .build()?
//! #     .block_on(example())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod commands;
mod gate;
mod http;
mod model;
mod reply;
mod request;
mod sse;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub use self::gate::Gate;
pub use self::model::{ModelScript, Rule, UnservedReason, UnservedRequest};
pub use self::reply::{
    Answer, Block, Failure, HoldPoint, Reply, StopReason, StreamFault, TokenUsage,
};
pub use self::request::{ApiRequest, RequestKind, SeenCall, SeenResult, SeenTurn};

/// A running scripted Messages API. Created by [`ScriptedMessagesApi::start`].
///
/// Dropping it cuts its connections and ends its task soon after;
/// [`ScriptedMessagesApi::shutdown`] waits for that.
#[derive(Debug)]
pub struct ScriptedMessagesApi {
    server: Arc<http::Server>,
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl ScriptedMessagesApi {
    /// Starts a server on a free port of 127.0.0.1. It serves when this returns.
    ///
    /// # Errors
    ///
    /// [`StartError::Bind`] when no port can be opened.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a cancelled start leaves nothing behind.
    pub async fn start(script: ModelScript) -> Result<Self, StartError> {
        let bind = |source| StartError::Bind { source };
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        let server = Arc::new(http::Server::new(script));
        let router = Router::new()
            .fallback(http::serve)
            .with_state(Arc::clone(&server));
        let closing = Arc::clone(&server);
        let task = tokio::spawn(async move {
            let listener = listener.tap_io(|connection| {
                // A connection that cannot be told so is slower, no more.
                let _ = connection.set_nodelay(true);
            });
            let serving = axum::serve(listener, router)
                .with_graceful_shutdown(async move { closing.closed().await });
            // It has no errors of its own: axum tries failed accepts again.
            let _ = serving.await;
        });
        Ok(Self {
            server,
            address,
            task,
        })
    }

    /// Returns the address for `ANTHROPIC_BASE_URL`.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns every request so far, in the order they came.
    #[must_use]
    pub fn requests(&self) -> Vec<ApiRequest> {
        self.server.requests()
    }

    /// Returns the main requests so far, in the order they came.
    #[must_use]
    pub fn main_requests(&self) -> Vec<ApiRequest> {
        let mut requests = self.requests();
        requests.retain(|request| request.kind == RequestKind::Main);
        requests
    }

    /// Waits until at least `count` main requests came, and returns all of them.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only watches.
    pub async fn wait_for_main_requests(&self, count: usize) -> Vec<ApiRequest> {
        let mut seen = self.server.main_requests.subscribe();
        // An error means that no sender is left, and the server holds one.
        let _ = seen.wait_for(|seen| *seen >= count).await;
        self.main_requests()
    }

    /// Returns the requests that the script did not serve.
    #[must_use]
    pub fn unserved(&self) -> Vec<UnservedRequest> {
        self.server.unserved()
    }

    /// Checks that the script served every request.
    ///
    /// # Panics
    ///
    /// If there is one that it did not: the test has failed.
    #[track_caller]
    pub fn assert_all_served(&self) {
        let unserved = self.unserved();
        assert!(unserved.is_empty(), "not served: {unserved:#?}");
    }

    /// Returns the gate of that name, closed unless it was opened before.
    #[must_use]
    pub fn gate(&self, name: &str) -> Gate {
        self.server.gates.named(name)
    }

    /// Cuts held answers, closes the port, and waits until every connection has ended.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe, but harmless: what is left then ends as it does on drop.
    pub async fn shutdown(mut self) {
        self.server.closing.send_replace(true);
        // An error means that the task was ended from outside, so it has ended.
        let _ = (&mut self.task).await;
    }
}

impl Drop for ScriptedMessagesApi {
    fn drop(&mut self) {
        self.server.closing.send_replace(true);
        self.task.abort();
    }
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// No port of 127.0.0.1 can be opened.
    #[error("no loopback port can be opened")]
    Bind {
        /// What the system says.
        source: io::Error,
    },
}
