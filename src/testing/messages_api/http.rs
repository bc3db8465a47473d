//! The HTTP side: takes requests, records them, and sends what the script answers.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Instant;
use std::vec;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::yield_now;

use super::gate::Gates;
use super::model::{ModelScript, UnservedReason, UnservedRequest};
use super::reply::{Answer, Block, Failure, HoldPoint, Reply};
use super::request::{ApiRequest, RequestKind};
use super::sse::{SettledReply, Step};

/// The longest request body that is read: the real API's own limit is 32 MB.
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What the connections of one server share.
#[derive(Debug)]
pub(super) struct Server {
    script: ModelScript,
    started: Instant,
    ids: AtomicU64,
    requests: Mutex<Vec<ApiRequest>>,
    unserved: Mutex<Vec<UnservedRequest>>,
    pub(super) gates: Gates,
    pub(super) main_requests: watch::Sender<usize>,
    pub(super) closing: watch::Sender<bool>,
}

impl Server {
    pub(super) fn new(script: ModelScript) -> Self {
        Self {
            script,
            started: Instant::now(),
            ids: AtomicU64::new(1),
            requests: Mutex::default(),
            unserved: Mutex::default(),
            gates: Gates::default(),
            main_requests: watch::Sender::new(0),
            closing: watch::Sender::new(false),
        }
    }

    pub(super) fn requests(&self) -> Vec<ApiRequest> {
        let requests = self.requests.lock();
        requests.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn unserved(&self) -> Vec<UnservedRequest> {
        let unserved = self.unserved.lock();
        unserved.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns once the server is told to close.
    pub(super) async fn closed(&self) {
        // An error means that no sender is left, and `self` is one.
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }

    fn record(&self, request: ApiRequest) {
        let main = request.kind == RequestKind::Main;
        self.requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(request);
        if main {
            self.main_requests.send_modify(|count| *count += 1);
        }
    }

    fn refuse(&self, request: ApiRequest, reason: UnservedReason, status: StatusCode) -> Response {
        let text = reason.to_string();
        self.unserved
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(UnservedRequest { request, reason });
        error(status, "invalid_request_error", &text)
    }

    /// Returns the next id: a prefix, the seed and a counter, in the real ones' length.
    fn next_id(&self, prefix: &str) -> String {
        let seed = self.script.seed();
        let count = self.ids.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}_{seed:08}{count:016}")
    }
}

/// Serves one request.
pub(super) async fn serve(State(server): State<Arc<Server>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, BODY_BYTES_MAX).await.ok();
    let body = body.as_deref().map(serde_json::from_slice::<Value>);
    let parsed = matches!(body, Some(Ok(_)));
    let mut request = ApiRequest {
        kind: kind_of(&head.method, head.uri.path()),
        method: head.method.to_string(),
        path: head.uri.to_string(),
        headers: headers(&head.headers),
        body: body.and_then(Result::ok).unwrap_or_default(),
        received_after: server.started.elapsed(),
    };
    if request.kind == RequestKind::Main {
        request.kind = server.script.kind_of_model_call(&request);
    }
    server.record(request.clone());
    match request.kind {
        RequestKind::Probe => error(StatusCode::NOT_FOUND, "not_found_error", "nothing here"),
        RequestKind::Unknown => {
            let reason = UnservedReason::NoEndpoint;
            server.refuse(request, reason, StatusCode::NOT_FOUND)
        }
        RequestKind::CountTokens | RequestKind::Main | RequestKind::Auxiliary if !parsed => {
            let reason = UnservedReason::NotJson;
            server.refuse(request, reason, StatusCode::BAD_REQUEST)
        }
        RequestKind::CountTokens => json_response(StatusCode::OK, &json!({ "input_tokens": 10 })),
        RequestKind::Main | RequestKind::Auxiliary => match server.script.answer(&request) {
            Ok(Answer::Reply(reply)) => send(server, &request, &reply).await,
            Ok(Answer::Failure(failure)) => fail(&failure),
            Err(reason) => server.refuse(request, reason, StatusCode::BAD_REQUEST),
        },
    }
}

/// Tells what a request is for; each model call is `Main` here.
fn kind_of(method: &Method, path: &str) -> RequestKind {
    if method == Method::HEAD {
        RequestKind::Probe
    } else if method == Method::POST && path.ends_with("/v1/messages/count_tokens") {
        RequestKind::CountTokens
    } else if method == Method::POST && path.ends_with("/v1/messages") {
        RequestKind::Main
    } else {
        RequestKind::Unknown
    }
}

/// Axum keeps header names in lower case.
fn headers(headers: &HeaderMap) -> BTreeMap<String, String> {
    headers
        .iter()
        .map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (name.as_str().to_owned(), value)
        })
        .collect()
}

async fn send(server: Arc<Server>, request: &ApiRequest, reply: &Reply) -> Response {
    let tool_use_ids: Vec<Option<String>> = reply
        .blocks
        .iter()
        .map(|block| match block {
            Block::ToolUse { id, .. } => {
                Some(id.clone().unwrap_or_else(|| server.next_id("toolu")))
            }
            Block::Text { .. } | Block::Thinking { .. } | Block::RedactedThinking { .. } => None,
        })
        .collect();
    let message_id = server.next_id("msg");
    let settled = SettledReply {
        reply,
        message_id: &message_id,
        model: reply.model.as_deref().unwrap_or_else(|| request.model()),
        tool_use_ids: &tool_use_ids,
    };
    let stream = request.wants_stream();
    for (point, gate) in &reply.holds {
        if (*point == HoldPoint::BeforeAnswer || !stream) && !pass(&server, gate).await {
            return error(
                StatusCode::SERVICE_UNAVAILABLE,
                "api_error",
                "server closed",
            );
        }
    }
    let (content_type, steps) = if stream {
        ("text/event-stream", settled.steps())
    } else {
        let mut message = settled.message().to_string();
        let cut = reply.fault.is_some();
        if cut {
            message = message.chars().take(message.chars().count() / 2).collect();
        }
        let mut steps = vec![Step::Send(message)];
        steps.extend(cut.then_some(Step::Cut));
        ("application/json", steps)
    };
    let headers = [
        (header::CONTENT_TYPE, content_type.to_owned()),
        (
            header::HeaderName::from_static("request-id"),
            server.next_id("req"),
        ),
    ];
    (headers, Body::from_stream(ScriptedBody::new(server, steps))).into_response()
}

/// Waits at a gate; returns whether it opened before the server closed.
async fn pass(server: &Server, gate: &str) -> bool {
    let gate = server.gates.named(gate);
    tokio::select! {
        () = gate.pass() => true,
        () = server.closed() => false,
    }
}

fn fail(failure: &Failure) -> Response {
    let status = StatusCode::from_u16(failure.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = error(status, &failure.kind, &failure.message);
    if let Some(seconds) = failure.retry_after_seconds {
        let headers = response.headers_mut();
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

fn error(status: StatusCode, kind: &str, message: &str) -> Response {
    let error = json!({ "type": kind, "message": message });
    json_response(status, &json!({ "type": "error", "error": error }))
}

fn json_response(status: StatusCode, body: &Value) -> Response {
    let content_type = [(header::CONTENT_TYPE, "application/json")];
    (status, content_type, body.to_string()).into_response()
}

/// A scripted cut of the connection, or the server's end.
#[derive(Debug, thiserror::Error)]
#[error("the script cuts the connection here")]
struct Cut;

/// A response body that plays its steps while the connection reads it, and ends with it.
struct ScriptedBody {
    server: Arc<Server>,
    steps: vec::IntoIter<Step>,
    /// Resolves to whether the answer goes on.
    waiting: Option<Pin<Box<dyn Future<Output = bool> + Send>>>,
}

impl ScriptedBody {
    fn new(server: Arc<Server>, steps: Vec<Step>) -> Self {
        Self {
            server,
            steps: steps.into_iter(),
            waiting: None,
        }
    }
}

impl Stream for ScriptedBody {
    type Item = Result<Bytes, Cut>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(waiting) = &mut self.waiting {
                let goes_on = ready!(waiting.as_mut().poll(context));
                self.waiting = None;
                if !goes_on {
                    self.steps = Vec::new().into_iter();
                    return Poll::Ready(Some(Err(Cut)));
                }
            }
            // The connection writes out what it has only when the body has nothing ready, and
            // drops it when the body fails; so a hold and a cut first have nothing ready, once.
            self.waiting = Some(match self.steps.next() {
                None => return Poll::Ready(None),
                Some(Step::Send(text)) => return Poll::Ready(Some(Ok(Bytes::from(text)))),
                Some(Step::Hold(gate)) => {
                    let server = Arc::clone(&self.server);
                    Box::pin(async move {
                        yield_now().await;
                        pass(&server, &gate).await
                    })
                }
                Some(Step::Cut) => Box::pin(async {
                    yield_now().await;
                    false
                }),
            });
        }
    }
}
