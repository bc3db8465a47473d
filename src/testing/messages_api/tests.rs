use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;

/// Bounds a wait that would otherwise hang a broken build; nothing waits for it to pass.
const PATIENCE: Duration = Duration::from_secs(20);

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what)
        .await
        .expect("what the test waits for comes")
}

/// One connection with one request, read as far as the test wants.
struct Exchange {
    stream: TcpStream,
    received: Vec<u8>,
}

#[derive(Debug, PartialEq)]
struct Answered {
    status: u16,
    head: String,
    body: String,
    /// Whether the body ended as it should.
    whole: bool,
}

impl Exchange {
    async fn send(api: &ScriptedMessagesApi, method: &str, path: &str, body: &str) -> Self {
        let mut stream = TcpStream::connect(api.address).await.unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: api\r\nX-Api-Key: dummy\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        Self {
            stream,
            received: Vec::new(),
        }
    }

    async fn post(api: &ScriptedMessagesApi, body: &Value) -> Self {
        Self::send(api, "POST", "/v1/messages?beta=true", &body.to_string()).await
    }

    /// Reads until the bytes so far hold `text`.
    async fn read_until(&mut self, text: &str) {
        while !String::from_utf8_lossy(&self.received).contains(text) {
            let read = within(self.stream.read_buf(&mut self.received)).await;
            assert_ne!(read.unwrap(), 0, "the connection ended without {text}");
        }
    }

    async fn end(mut self) -> Answered {
        // A cut connection may end by a reset.
        let _ = within(self.stream.read_to_end(&mut self.received)).await;
        self.answered()
    }

    fn answered(&self) -> Answered {
        let text = String::from_utf8(self.received.clone()).unwrap();
        let (head, raw) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).map_or(0, |it| it.parse().unwrap());
        let (body, whole) = if head.contains("transfer-encoding: chunked") {
            unchunked(raw)
        } else {
            (raw.to_owned(), true)
        };
        Answered {
            status,
            head: head.to_owned(),
            body,
            whole,
        }
    }
}

fn unchunked(mut raw: &str) -> (String, bool) {
    let mut body = String::new();
    while let Some((length, rest)) = raw.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        if length == 0 {
            return (body, true);
        }
        body.push_str(&rest[..length]);
        raw = &rest[length + 2..];
    }
    (body, false)
}

/// The events of a stream; each is named as its data's type.
fn events(body: &str) -> Vec<Value> {
    body.split_terminator("\n\n")
        .map(|event| {
            let (name, data) = event.split_once("\ndata: ").unwrap();
            let data: Value = serde_json::from_str(data).unwrap_or(Value::Null);
            if data != Value::Null {
                assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
            }
            data
        })
        .collect()
}

fn types(body: &str) -> Vec<String> {
    let name = |event: &Value| event["type"].as_str().unwrap_or("(malformed)").to_owned();
    events(body).iter().map(name).collect()
}

fn main_request(prompt: &str, stream: bool) -> Value {
    json!({
        "model": "claude-test", "stream": stream, "tools": [{ "name": "Bash" }],
        "messages": [{ "role": "user", "content": prompt }],
    })
}

async fn start(script: ModelScript) -> ScriptedMessagesApi {
    ScriptedMessagesApi::start(script).await.unwrap()
}

async fn reply_to(script: ModelScript, request: &Value) -> Answered {
    let api = start(script).await;
    Exchange::post(&api, request).await.end().await
}

/// A stream has the real API's events, in its order, with settled ids.
#[tokio::test]
async fn a_streamed_reply_has_the_events_of_the_real_api() {
    let reply = Reply::blocks([
        Block::thinking("hmm?", "c2ln"),
        Block::text("ab"),
        Block::tool_use("Bash", json!({"a":1})),
        Block::tool_use_as("toolu_mine", "Bash", json!({})),
    ]);
    let script = ModelScript::new()
        .id_seed(7)
        .rule(Rule::prompt("go", reply.deltas_per_block(1)));
    let answered = reply_to(script, &main_request("go", true)).await;
    assert_eq!((answered.status, answered.whole), (200, true));
    let expected = json!([
        { "type": "message_start", "message": {
            "id": "msg_000000070000000000000002", "type": "message", "role": "assistant",
            "model": "claude-test", "content": [], "stop_reason": null, "stop_sequence": null,
            "usage": { "input_tokens": 11, "output_tokens": 1,
                "cache_creation_input_tokens": 3, "cache_read_input_tokens": 2 },
        } },
        { "type": "content_block_start", "index": 0,
            "content_block": { "type": "thinking", "thinking": "", "signature": "" } },
        { "type": "ping" },
        { "type": "content_block_delta", "index": 0,
            "delta": { "type": "thinking_delta", "thinking": "hmm?" } },
        { "type": "content_block_delta", "index": 0,
            "delta": { "type": "signature_delta", "signature": "c2ln" } },
        { "type": "content_block_stop", "index": 0 },
        { "type": "content_block_start", "index": 1,
            "content_block": { "type": "text", "text": "" } },
        { "type": "content_block_delta", "index": 1,
            "delta": { "type": "text_delta", "text": "ab" } },
        { "type": "content_block_stop", "index": 1 },
        { "type": "content_block_start", "index": 2, "content_block": {
            "type": "tool_use", "id": "toolu_000000070000000000000001", "name": "Bash",
            "input": {} } },
        { "type": "content_block_delta", "index": 2,
            "delta": { "type": "input_json_delta", "partial_json": "{\"a\":1}" } },
        { "type": "content_block_stop", "index": 2 },
        { "type": "content_block_start", "index": 3, "content_block": {
            "type": "tool_use", "id": "toolu_mine", "name": "Bash", "input": {} } },
        { "type": "content_block_delta", "index": 3,
            "delta": { "type": "input_json_delta", "partial_json": "{}" } },
        { "type": "content_block_stop", "index": 3 },
        { "type": "message_delta",
            "delta": { "stop_reason": "tool_use", "stop_sequence": null },
            "usage": { "input_tokens": 11, "output_tokens": 7,
                "cache_creation_input_tokens": 3, "cache_read_input_tokens": 2 } },
        { "type": "message_stop" },
    ]);
    assert_eq!(Value::Array(events(&answered.body)), expected);
}

/// A client that does not stream gets the same reply as one message.
#[tokio::test]
async fn a_reply_that_is_not_streamed_is_one_message() {
    let reply = Reply::text("ab")
        .stop_reason(StopReason::MaxTokens)
        .model("claude-dated");
    let script = ModelScript::new().rule(Rule::prompt("go", reply));
    let answered = reply_to(script, &main_request("go", false)).await;
    let body: Value = serde_json::from_str(&answered.body).unwrap();
    let expected = json!({
        "id": "msg_000000000000000000000001", "type": "message", "role": "assistant",
        "model": "claude-dated", "content": [{ "type": "text", "text": "ab" }],
        "stop_reason": "max_tokens", "stop_sequence": null,
        "usage": { "input_tokens": 11, "output_tokens": 7,
            "cache_creation_input_tokens": 3, "cache_read_input_tokens": 2 },
    });
    assert_eq!((answered.status, body), (200, expected));
}

/// A test can hold a stream at a point that both sides have reached, for as long as it likes.
#[tokio::test]
async fn a_held_stream_goes_on_when_its_gate_opens() {
    let reply = Reply::text("abcd").hold(HoldPoint::InBlock(0), "middle");
    let api = start(ModelScript::new().rule(Rule::prompt("go", reply))).await;
    let gate = api.gate("middle");
    let mut exchange = Exchange::post(&api, &main_request("go", true)).await;
    within(gate.wait_until_reached(1)).await;
    exchange.read_until("\"text_delta\"").await;
    let before = types(&exchange.answered().body);
    let until = [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
    ];
    assert_eq!(before, until);
    gate.open();
    let after = [
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    let answered = exchange.end().await;
    assert_eq!(types(&answered.body), [&until[..], &after[..]].concat());
    assert!(answered.whole);
}

/// `;; pause` holds before the response head, and the gate counts who came.
#[tokio::test]
async fn a_paused_script_answers_when_its_gate_opens() {
    let api = start(ModelScript::commands()).await;
    let request = main_request("script: say hi ;; pause door", false);
    let exchange = Exchange::post(&api, &request).await;
    let gate = api.gate("door");
    within(gate.wait_until_reached(1)).await;
    assert_eq!(exchange.answered().head, "");
    gate.open();
    let body: Value = serde_json::from_str(&exchange.end().await.body).unwrap();
    assert_eq!(
        body["content"],
        json!([{ "type": "text", "text": "said: hi" }])
    );
    assert_eq!(gate.times_reached(), 1);
}

/// Each fault breaks the stream where it says, and nowhere else.
#[tokio::test]
async fn a_fault_breaks_the_stream_where_it_says() {
    let start = "message_start content_block_start ping";
    let delta = "content_block_delta";
    let stop = "content_block_stop";
    let second = format!("content_block_start {delta} {delta} {stop}");
    let end = "message_delta message_stop";
    let error = StreamFault::ErrorEvent {
        kind: "overloaded_error".to_owned(),
    };
    let cases = [
        (
            StreamFault::CutInBlock(0),
            format!("{start} {delta}"),
            false,
        ),
        (
            StreamFault::CutAfterBlock(0),
            format!("{start} {delta} {delta} {stop}"),
            false,
        ),
        (
            StreamFault::NoMessageStop,
            format!("{start} {delta} {delta} {stop} {second}"),
            true,
        ),
        (
            StreamFault::MalformedEventInBlock(0),
            format!("{start} {delta} {delta} (malformed) {stop} {second} {end}"),
            true,
        ),
        (error, "message_start error".to_owned(), true),
    ];
    for (fault, expected, whole) in cases {
        let reply = Reply::text("abcd")
            .and(Block::text("efgh"))
            .fault(fault.clone());
        let script = ModelScript::new().rule(Rule::prompt("go", reply));
        let answered = reply_to(script, &main_request("go", true)).await;
        assert_eq!(
            (types(&answered.body).join(" "), answered.whole),
            (expected, whole),
            "{fault:?}"
        );
    }
}

/// Rules serve by content and in order; one that is used up lets the next one serve.
#[tokio::test]
async fn rules_serve_by_content_and_only_so_often() {
    let overloaded = Failure::new(529, "overloaded_error").retry_after_seconds(3);
    let script = ModelScript::new()
        .rule(Rule::prompt("go", overloaded).times(1))
        .rule(Rule::results("go", 1, Reply::text("done")))
        .rule(Rule::prompt("go", Reply::text("going")))
        .route(|request| (request.model() == "other").then(|| Reply::text("routed").into()));
    let api = start(script).await;
    let mut with_result = main_request("go", false);
    with_result["messages"] = json!([
        { "role": "user", "content": "go" },
        { "role": "assistant", "content": [
            { "type": "tool_use", "id": "t1", "name": "Bash", "input": {} }] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "t1", "content": "ok" },
            { "type": "text", "text": "Continue from where you left off." }] },
        { "role": "system", "content": "a reminder" },
    ]);
    let mut other = main_request("something else", false);
    other["model"] = json!("other");
    let text_of = async |request: &Value| {
        let answered = Exchange::post(&api, request).await.end().await;
        let body: Value = serde_json::from_str(&answered.body).unwrap();
        body["content"][0]["text"].as_str().map(str::to_owned)
    };

    let refused = Exchange::post(&api, &main_request("go", false))
        .await
        .end()
        .await;
    assert_eq!(refused.status, 529);
    assert!(refused.head.lines().any(|line| line == "retry-after: 3"));
    assert_eq!(text_of(&with_result).await.as_deref(), Some("done"));
    assert_eq!(
        text_of(&main_request("go", false)).await.as_deref(),
        Some("going")
    );
    assert_eq!(text_of(&other).await.as_deref(), Some("routed"));
    api.assert_all_served();
    let seen = SeenResult {
        tool_use_id: "t1".to_owned(),
        text: "ok".to_owned(),
        is_error: false,
    };
    assert_eq!(api.main_requests()[1].tool_results(), [seen]);
}

/// What the script does not foresee is refused and kept, so that a suite fails on it.
#[tokio::test]
async fn a_request_that_the_script_does_not_serve_is_refused_and_kept() {
    let beyond = Reply::text("short").fault(StreamFault::CutAfterBlock(1));
    let script = ModelScript::new().rule(Rule::prompt("beyond", beyond));
    let api = start(script).await;
    let body = main_request("unforeseen", true).to_string();
    let beyond = main_request("beyond", true).to_string();
    let cases = [
        ("POST", "/v1/messages", &*body, 400, UnservedReason::NoRule),
        ("POST", "/v1/messages", "{", 400, UnservedReason::NotJson),
        (
            "POST",
            "/v1/messages",
            &*beyond,
            400,
            UnservedReason::NoSuchBlock { block: 1 },
        ),
        (
            "POST",
            "/v1/complete",
            &*body,
            404,
            UnservedReason::NoEndpoint,
        ),
        ("GET", "/v1/models", "", 404, UnservedReason::NoEndpoint),
    ];
    let mut expected = Vec::new();
    for (method, path, body, status, reason) in cases {
        let answered = Exchange::send(&api, method, path, body).await.end().await;
        assert_eq!(answered.status, status, "{method} {path}");
        expected.push((path.to_owned(), reason));
    }
    let unserved = api.unserved().into_iter();
    let unserved: Vec<_> = unserved.map(|it| (it.request.path, it.reason)).collect();
    assert_eq!(unserved, expected);
}

/// What clients do around a conversation is served and kept apart from its model calls.
#[tokio::test]
async fn auxiliary_requests_and_probes_are_not_main_requests() {
    let api = start(ModelScript::new().session_marker("MARKED")).await;
    let title = json!({ "model": "m", "messages": [{ "role": "user", "content": "go" }] });
    let mut marked = title.clone();
    marked["system"] = json!([{ "type": "text", "text": "MARKED prompt" }]);
    let title = title.to_string();
    let marked = marked.to_string();
    let cases = [
        ("HEAD", "/", "", RequestKind::Probe, 404),
        (
            "POST",
            "/v1/messages/count_tokens",
            &*title,
            RequestKind::CountTokens,
            200,
        ),
        ("POST", "/v1/messages", &*title, RequestKind::Auxiliary, 200),
        ("POST", "/v1/messages", &*marked, RequestKind::Main, 400),
    ];
    let mut expected = Vec::new();
    for (method, path, body, kind, status) in cases {
        let answered = Exchange::send(&api, method, path, body).await.end().await;
        assert_eq!(answered.status, status, "{method} {path}");
        expected.push(kind);
    }
    let requests = api.requests();
    let kinds: Vec<_> = requests.iter().map(|request| request.kind).collect();
    assert_eq!(kinds, expected);
    assert_eq!(requests[0].headers["x-api-key"], "dummy");
    assert_eq!(api.unserved().len(), 1);
}

/// No answer outlives its server: a held one is cut, and the port is closed.
#[tokio::test]
async fn shutdown_cuts_what_is_held_and_closes_the_port() {
    let reply = Reply::text("abcd").hold(HoldPoint::AfterMessageStart, "never");
    let api = start(ModelScript::new().rule(Rule::prompt("go", reply))).await;
    let address = api.address;
    let exchange = Exchange::post(&api, &main_request("go", true)).await;
    within(api.gate("never").wait_until_reached(1)).await;
    within(api.shutdown()).await;
    let answered = exchange.end().await;
    assert_eq!(types(&answered.body), ["message_start"]);
    assert!(!answered.whole);
    assert!(TcpStream::connect(address).await.is_err());
}

/// A test that forgets the shutdown leaves nothing held either.
#[tokio::test]
async fn dropping_the_server_cuts_what_is_held() {
    let reply = Reply::text("abcd").hold(HoldPoint::AfterMessageStart, "never");
    let api = start(ModelScript::new().rule(Rule::prompt("go", reply))).await;
    let exchange = Exchange::post(&api, &main_request("go", true)).await;
    within(api.wait_for_main_requests(1)).await;
    within(api.gate("never").wait_until_reached(1)).await;
    drop(api);
    assert!(!exchange.end().await.whole);
}
