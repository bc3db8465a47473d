use std::sync::atomic::{AtomicU32, Ordering};

use schemars::JsonSchema;
use serde::Deserialize;

use super::*;
use crate::tool::ToolOutput;

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// A server with a tool that ends at once and one that never ends.
fn server(runs: &Arc<AtomicU32>) -> ToolServer {
    let seen = Arc::clone(runs);
    let quick = CustomTool::new("quick", "", move |_: Nothing, _| {
        seen.fetch_add(1, Ordering::SeqCst);
        async { Ok(ToolOutput::text("done")) }
    });
    let endless = CustomTool::new("endless", "", |_: Nothing, _| std::future::pending());
    ToolServer::start(
        ServedTools {
            server_name: "tools".to_owned(),
            tools: [quick, endless].map(|it| (it.name().to_owned(), it)).into(),
            replay_only: None,
            session_id: SessionId::new("s").unwrap(),
        },
        TurnId::new(1),
    )
}

fn call(id: u32, name: &str) -> Box<RawValue> {
    serde_json::value::to_raw_value(&json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
        "params": {"name": name, "arguments": {}}}))
    .unwrap()
}

fn run(name: &str) -> McpPermit {
    McpPermit::Run {
        tool_call_id: ToolCallId::new("toolu_1").unwrap(),
        tool_name: name.to_owned(),
        arguments: "{}".to_owned(),
    }
}

async fn reply(server: &mut ToolServer) -> (String, Value) {
    let reply = server.next_reply().await;
    let message = reply.message.unwrap();
    (
        reply.request_id,
        serde_json::from_str(message.get()).unwrap(),
    )
}

/// L20, I23: without a permit nothing runs, whatever the message says.
#[tokio::test]
async fn a_call_runs_only_with_its_permit() {
    let runs = Arc::new(AtomicU32::new(0));
    let mut server = server(&runs);
    for permit in [McpPermit::Refuse, McpPermit::Protocol] {
        server.serve("r".to_owned(), &call(1, "quick"), permit);
        let (_, message) = reply(&mut server).await;
        assert_eq!(message["result"]["isError"], true);
    }
    let replay = McpPermit::Replay {
        text: "recorded".to_owned(),
        is_error: false,
    };
    server.serve("r".to_owned(), &call(2, "quick"), replay);
    let (_, message) = reply(&mut server).await;
    assert_eq!(message["result"]["content"][0]["text"], "recorded");
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    server.serve("r".to_owned(), &call(3, "quick"), run("quick"));
    let (_, message) = reply(&mut server).await;
    assert_eq!(message["result"]["content"][0]["text"], "done");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

/// Every request of the CLI is answered, also where rmcp says nothing: a call that is cancelled, an
/// id that is used twice at once, a message that is none.
#[tokio::test]
async fn every_message_is_answered() {
    let mut server = server(&Arc::new(AtomicU32::new(0)));
    server.serve("first".to_owned(), &call(1, "endless"), run("endless"));
    server.serve("second".to_owned(), &call(1, "endless"), run("endless"));
    let (request, message) = reply(&mut server).await;
    assert_eq!(
        (request.as_str(), &message["error"]["code"]),
        ("second", &json!(-32600))
    );

    let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
        "params": {"requestId": 1, "reason": "stop"}});
    let cancelled = serde_json::value::to_raw_value(&cancelled).unwrap();
    server.serve("third".to_owned(), &cancelled, McpPermit::Protocol);
    let (request, message) = reply(&mut server).await;
    assert_eq!(
        (request.as_str(), &message["error"]["code"]),
        ("first", &json!(-32800))
    );
    let (request, _) = reply(&mut server).await;
    assert_eq!(request, "third");

    let nonsense = RawValue::from_string(r#"{"id":7,"x":1}"#.to_owned()).unwrap();
    server.serve("fourth".to_owned(), &nonsense, McpPermit::Refuse);
    let (request, message) = reply(&mut server).await;
    assert_eq!((request.as_str(), &message["id"]), ("fourth", &json!(7)));
}

/// A dropped request cancels its handler, and the next call under the same id is served.
#[tokio::test]
async fn a_dropped_request_is_forgotten() {
    let mut server = server(&Arc::new(AtomicU32::new(0)));
    server.serve("first".to_owned(), &call(1, "endless"), run("endless"));
    server.cancel("first");
    server.serve("second".to_owned(), &call(2, "quick"), run("quick"));
    let (request, message) = reply(&mut server).await;
    assert_eq!(request, "second");
    assert_eq!(message["result"]["isError"], false);
}

/// R39: a message that cannot be read because of half a surrogate pair is refused under its own id.
#[tokio::test]
async fn an_unreadable_message_is_refused_under_its_id() {
    let mut server = server(&Arc::default());
    let message = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"quick","arguments":{"a":"\ud83d"}}}"#;
    let message = RawValue::from_string(message.to_owned()).unwrap();
    server.serve("r".to_owned(), &message, McpPermit::Refuse);
    assert_eq!(
        reply(&mut server).await,
        (
            "r".to_owned(),
            json!({"jsonrpc": "2.0", "id": 7, "error": {
                "code": -32600, "message": "the message is no request of this protocol"}})
        )
    );
}
