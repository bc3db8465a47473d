//! Keys are planted and looked for: in a worker process of its own, with the real CLI underneath,
//! while it runs and after it has ended (G10).

mod log;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::mpsc;

use abide::client::{ResolveInterrupt, StartSession};
use abide::engine::LocalEngine;
use abide::event::EventKind;
use abide::flow::{AgentSessionFlow, FlowRegistry, SessionOptions};
use abide::ids::{FlowType, SessionId};
use abide::runner::{ClaudeAgentOptions, ClaudeAgentRunner, CliEnvironment, McpServer};
use abide::store::SqliteStateStore;
use abide::testing::messages_api::{ModelScript, ScriptedMessagesApi};
use abide::testing::real_cli::isolated_environment;
use abide::tool::{CustomTool, ToolContext, ToolOutput};
use abide::transport::{CliLauncher as _, SubprocessLauncher};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::support::{ends_turn, real_cli, wait_for_event};

const CLI: &str = "2.1.316";
const THIS_TEST: &str = "canary::keys_are_found_nowhere";
const WORKER_KEY: &str = "ABIDE_TEST_WORKER_KEY";
const GATE: &str = "held";

/// What the worker is told; it comes through a pipe, as a vault would hand it out.
#[derive(Serialize, Deserialize)]
struct Orders {
    program: PathBuf,
    directory: PathBuf,
    api: String,
    option_key: String,
    header_key: String,
    server: String,
}

/// G10, A13, R05: of a key in the worker's environment, of one in the options' environment and of
/// one in the headers of a tool server, nothing is found in the store, the directories, the log at
/// trace level, any argument, the environment of any process but the CLI, or what is shown of
/// options, snapshots and failures. The one place is a file of mode 0600, while the CLI runs.
#[tokio::test(flavor = "multi_thread")]
async fn keys_are_found_nowhere() {
    if std::env::var_os(WORKER_KEY).is_some() {
        work().await;
        return;
    }
    let Some(cli) = real_cli(CLI) else {
        return;
    };
    let api = ScriptedMessagesApi::start(ModelScript::commands())
        .await
        .expect("the API starts");
    let directory = TempDir::new().expect("a directory");
    for name in ["home", "work", "runs", "state", "log"] {
        std::fs::create_dir(directory.path().join(name)).expect("a directory");
    }
    let (server, heard) = listen();
    let worker_key = key();
    let orders = Orders {
        program: cli.program().to_owned(),
        directory: directory.path().to_owned(),
        api: api.base_url(),
        option_key: key(),
        header_key: key(),
        server,
    };
    let keys = [&worker_key, &orders.option_key, &orders.header_key].map(String::as_str);

    let mut worker = Command::new(std::env::current_exe().expect("this program"))
        .args([THIS_TEST, "--exact", "--nocapture"])
        .env_clear()
        .envs([("PATH", "/usr/bin:/bin"), (WORKER_KEY, &worker_key)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the worker starts");
    let text = serde_json::to_vec(&orders).expect("orders are JSON");
    let mut input = worker.stdin.take().expect("a pipe");
    input.write_all(&text).await.expect("the worker reads");
    drop(input);
    let ends = worker.wait_with_output();
    tokio::pin!(ends);

    let gate = api.gate(GATE);
    tokio::select! {
        () = gate.wait_until_reached(1) => {}
        output = &mut ends => panic!("the worker ended too early: {output:?}"),
    }
    // The key is used, or it could not leak.
    assert_eq!(heard.try_recv().as_ref(), Ok(&orders.header_key));
    let mut allowed = false;
    for path in files(directory.path()) {
        let found = keys_in(&std::fs::read(&path).unwrap_or_default(), &keys);
        if path.file_name().is_some_and(|it| it == "mcp-config.json") {
            let mode = std::fs::metadata(&path)
                .expect("the file")
                .permissions()
                .mode();
            assert_eq!((mode & 0o777, found), (0o600, vec![2]));
            allowed = true;
        } else {
            assert_eq!(found, [0; 0], "{}", path.display());
        }
    }
    assert!(allowed);
    let seen = processes(&keys, &orders.program);
    assert_eq!(
        seen,
        BTreeSet::from([
            // Where they are expected: the worker has its key, the CLI that of the options.
            ("worker", vec![0]),
            ("cli", vec![1]),
        ])
    );
    gate.open();

    let output = ends.await.expect("the worker ends");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(keys_in(&output.stdout, &keys), [0; 0]);
    assert_eq!(keys_in(&output.stderr, &keys), [0; 0]);
    // A worker that ends may leave the last directory to the next one's start.
    let next =
        SubprocessLauncher::new(&orders.program).with_work_root(directory.path().join("runs"));
    next.sweep_leftovers().await.expect("a sweep");
    assert_eq!(files(&directory.path().join("runs")), Vec::<PathBuf>::new());
    let all = files(directory.path());
    for path in &all {
        let bytes = std::fs::read(path).expect("the file");
        assert_eq!(keys_in(&bytes, &keys), [0; 0], "{}", path.display());
    }
    let is_there = |name: &str| all.iter().any(|it| it.ends_with(name));
    assert!(is_there("state/sessions.sqlite") && is_there("log/shown"));
    let log = std::fs::read_to_string(directory.path().join("log/trace")).expect("a log");
    assert!(log.contains("TRACE"), "the log is at trace level");
    for request in api.requests() {
        assert_eq!(request.headers["x-api-key"], orders.option_key);
        assert_eq!(keys_in(request.body.to_string().as_bytes(), &keys), [0; 0]);
    }
}

#[derive(Deserialize, schemars::JsonSchema)]
struct Order {
    order_id: String,
}

/// The worker: one session with an approved write, a held answer and a failed turn; everything that
/// can be shown is shown.
async fn work() {
    let orders: Orders = {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).expect("orders");
        serde_json::from_str(&text).expect("orders")
    };
    let place = |name: &str| orders.directory.join(name);
    log::write_to(&place("log/trace"));
    let mut environment = CliEnvironment::empty();
    for (name, value) in isolated_environment(&orders.api, &place("home")) {
        environment = environment.set(name, value);
    }
    environment = environment.set("ANTHROPIC_API_KEY", &orders.option_key);
    let server = McpServer::Http {
        url: orders.server.clone(),
        headers: BTreeMap::from([("x-canary".to_owned(), orders.header_key.clone())]),
    };
    let options = ClaudeAgentOptions::new(place("work"))
        .with_model("claude-sonnet-5")
        .with_environment(environment)
        .with_mcp_server("web", server);
    let mut shown = vec![format!("{options:?}")];
    let refund = CustomTool::new("refund", "Refunds", async |order: Order, _: ToolContext| {
        Ok(ToolOutput::text(format!("refunded {}", order.order_id)))
    });
    let launcher = SubprocessLauncher::new(&orders.program).with_work_root(place("runs"));
    let runner = ClaudeAgentRunner::builder(options)
        .custom_tool(refund)
        .launcher(Arc::new(launcher))
        .build()
        .expect("a runner");
    shown.push(format!("{runner:?}"));
    let store = SqliteStateStore::open(place("state/sessions.sqlite"))
        .await
        .expect("a store");
    let flow = AgentSessionFlow::new("Canary", runner, SessionOptions::default()).expect("a flow");
    let registry = FlowRegistry::new().register(flow).expect("a registry");
    let engine = LocalEngine::start(registry, Arc::new(store))
        .await
        .expect("an engine");
    let client = engine.client();
    let session = SessionId::new("canary").expect("an id");
    let start = StartSession::new(session.clone(), FlowType::new("Canary").expect("a type"));
    let message = r#"script: call refund {"order_id":"7"}"#;
    client
        .start_session(start.with_initial_message(message))
        .await
        .expect("a session");
    wait_for_event(&client, &session, |it| {
        matches!(it.kind, EventKind::InterruptRequested { .. })
    })
    .await;
    let open = client.snapshot(&session).await.expect("a snapshot");
    let approval = ResolveInterrupt::approve(open.pending_interrupts[0].interrupt_id.clone());
    client
        .resolve_interrupt(&session, approval)
        .await
        .expect("it is approved");
    for (turns, text) in [
        (1, Some("script: say x ;; pause held")),
        (2, Some("script: fail")),
        (3, None),
    ] {
        let mut over = 0;
        wait_for_event(&client, &session, |it| {
            shown.push(format!("{it:?}"));
            over += usize::from(ends_turn(&it.kind));
            over == turns
        })
        .await;
        if let Some(text) = text {
            client
                .send_user_message(&session, text, None)
                .await
                .expect("it is accepted");
        }
    }
    let snapshot = client.snapshot(&session).await.expect("a snapshot");
    shown.push(format!("{snapshot:?}{engine:?}"));
    std::fs::write(place("log/shown"), shown.concat()).expect("a file");
    engine.shutdown().await;
}

/// A key that nothing else holds.
fn key() -> String {
    format!("sk-canary-{}", uuid::Uuid::new_v4().simple())
}

/// Which keys are in these bytes; the end of one counts, because the CLI cuts keys it notes.
fn keys_in(bytes: &[u8], keys: &[&str]) -> Vec<usize> {
    let is_in = |key: &str| {
        let end = &key.as_bytes()[key.len() - 16..];
        bytes.windows(end.len()).any(|it| it == end)
    };
    (0..keys.len()).filter(|it| is_in(keys[*it])).collect()
}

/// Every file below a directory; what vanishes meanwhile is left out.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(it) if it.is_dir() => found.extend(files(&entry.path())),
            Ok(it) if it.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
    found
}

/// The worker and its descendants that know a key by their environment; no argument may hold one.
fn processes(keys: &[&str], program: &Path) -> BTreeSet<(&'static str, Vec<usize>)> {
    let read = |pid: u32, file: &str| std::fs::read(format!("/proc/{pid}/{file}"));
    let children = |pid: u32| -> Vec<u32> {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter();
        let ids = tasks.flatten().flatten().filter_map(|task| {
            let text = std::fs::read_to_string(task.path().join("children")).ok()?;
            Some(
                text.split_whitespace()
                    .filter_map(|it| it.parse().ok())
                    .collect::<Vec<_>>(),
            )
        });
        ids.flatten().collect()
    };
    // Only what this test started: no other process can have got a key from it.
    let mut tree = vec![std::process::id()];
    let mut at = 0;
    while let Some(pid) = tree.get(at) {
        let below = children(*pid);
        tree.extend(below);
        at += 1;
    }
    let mut seen = BTreeSet::new();
    for pid in tree {
        let arguments = read(pid, "cmdline").unwrap_or_default();
        assert_eq!(keys_in(&arguments, keys), [0; 0]);
        let found = keys_in(&read(pid, "environ").unwrap_or_default(), keys);
        let is_cli = arguments.starts_with(program.as_os_str().as_encoded_bytes());
        if !found.is_empty() {
            seen.insert((if is_cli { "cli" } else { "worker" }, found));
        }
    }
    seen
}

/// A server that says which key came with the first request, and refuses everything.
fn listen() -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let (heard, hears) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let heard = heard.clone();
            std::thread::spawn(move || refuse(stream, &heard));
        }
    });
    (format!("http://{address}/mcp"), hears)
}

fn refuse(mut stream: TcpStream, heard: &mpsc::Sender<String>) {
    let mut head = vec![0; 65_536];
    let read = stream.read(&mut head).unwrap_or_default();
    let head = String::from_utf8_lossy(&head[..read]).into_owned();
    let mut lines = head.lines();
    if let Some(value) = lines.find_map(|it| it.strip_prefix("x-canary: ")) {
        // The test may have heard enough.
        let _ = heard.send(value.to_owned());
    }
    let refusal = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    // A client that left needs no answer.
    let _ = stream.write_all(refusal);
}
