//! An order desk whose agent looks things up by itself, asks before it cancels, and survives
//! Ctrl-C and `kill -9` at any moment: start it again and it goes on where it was.
//!
//! ```text
//! cargo run --example order_support              # offline: a scripted CLI, no model, no network
//! cargo run --example order_support -- --real    # the `claude` on your PATH, your credentials
//! ```

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

mod agent;
mod desk;

use std::error::Error;
use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use abide::client::{AgentSessionClient, Observed, ResolveInterrupt, StartSession};
use abide::engine::LocalEngine;
use abide::event::EventKind;
use abide::ids::{EventCursor, FlowType, SessionId};
use abide::record::MessageRole;
use abide::store::{SessionFilter, SessionStatus, SqliteStateStore};
use abide::testing::live_self_test::live_self_test;
use clap::{Parser, Subcommand};

use crate::agent::{Cli, FLOW_TYPE};
use crate::desk::OrderDesk;

#[derive(Parser)]
struct Arguments {
    /// Run the real Claude Code CLI: `claude`, or the program in ABIDE_CLAUDE_BIN; model from ABIDE_MODEL.
    #[arg(long)]
    real: bool,
    /// The directory for the state and the order book.
    #[arg(long, default_value = "target/order_support")]
    directory: PathBuf,
    /// What the customer says.
    #[arg(long)]
    message: Option<String>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Prove on a CLI binary what gated calls that wait with their process rest on, and print a
    /// table. No model is called.
    #[command(hide = true)]
    LiveSelfTest {
        /// The binary; the one of `--real` when absent.
        program: Option<PathBuf>,
    },
}

/// What the customer says to a real model, and what makes the scripted one do the same.
const MESSAGE: &str = "Please cancel order 7, I bought it twice.";
const SCRIPT: &str = r#"script: tell Let me see. ;; call look_up_order {"order_id":"7"} && call cancel_order {"order_id":"7","reason":"bought twice"}"#;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    if let Some(Command::LiveSelfTest { program }) = &arguments.command {
        return prove(program.as_deref()).await;
    }
    std::fs::create_dir_all(&arguments.directory)?;
    let directory = arguments.directory.canonicalize()?;
    let store = Arc::new(SqliteStateStore::open(directory.join("state.sqlite")).await?);
    let desk = OrderDesk::open(&directory.join("orders.log"));
    let cli = if arguments.real {
        Cli::Real
    } else {
        Cli::Scripted
    };

    let engine = LocalEngine::start(agent::registry(&desk, &cli, &directory)?, store).await?;
    let client = engine.client();
    let session = match unfinished_session(&client).await? {
        Some(session) => {
            println!("going on with {session}");
            session
        }
        None => start_session(&client, &arguments).await?,
    };
    follow_to_the_end(&client, &session).await?;

    for message in client.snapshot(&session).await?.messages {
        match message.role {
            MessageRole::Assistant if !message.text.is_empty() => {
                println!("agent: {}", message.text)
            }
            MessageRole::Note => println!("note: {}", message.text),
            _ => {}
        }
    }
    println!("the order book says: {}", desk.describe("7")?);
    engine.shutdown().await;
    // A terminal may still be read by a thread that nobody waits for.
    std::process::exit(0);
}

async fn prove(program: Option<&Path>) -> Result<(), Box<dyn Error>> {
    let named = agent::real_program();
    let report = live_self_test(program.unwrap_or_else(|| Path::new(&named))).await;
    println!("{report}");
    match report.is_live() {
        true => Ok(()),
        false => Err("this CLI is not for live segments".into()),
    }
}

async fn unfinished_session(
    client: &AgentSessionClient,
) -> Result<Option<SessionId>, Box<dyn Error>> {
    let filter = SessionFilter {
        flow_type: Some(FlowType::new(FLOW_TYPE)?),
        ..SessionFilter::default()
    };
    let page = client.list_sessions(&filter, 1_000).await?;
    let open = page
        .rows
        .into_iter()
        .find(|it| it.summary.status != SessionStatus::Idle);
    Ok(open.map(|it| it.session))
}

async fn start_session(
    client: &AgentSessionClient,
    arguments: &Arguments,
) -> Result<SessionId, Box<dyn Error>> {
    let session = SessionId::new(format!("order-support-{}", uuid::Uuid::new_v4()))?;
    let message = match &arguments.message {
        Some(message) => message,
        None if arguments.real => MESSAGE,
        None => SCRIPT,
    };
    println!(
        "customer: {}",
        if message == SCRIPT { MESSAGE } else { message }
    );
    let start =
        StartSession::new(session.clone(), FlowType::new(FLOW_TYPE)?).with_initial_message(message);
    client.start_session(start).await?;
    Ok(session)
}

/// Prints a line for each Step and answers interrupts until the turn is over.
async fn follow_to_the_end(
    client: &AgentSessionClient,
    session: &SessionId,
) -> Result<(), Box<dyn Error>> {
    let mut events = client.events(session, EventCursor(0)).await?;
    while let Some(observed) = events.next().await? {
        let Observed::Event(event) = observed else {
            continue;
        };
        match event.kind {
            EventKind::StepStarted { step_id, step, .. } => println!("  {step_id} {step}"),
            EventKind::ToolCallStarted { tool_name, .. } => println!("     {tool_name} starts"),
            EventKind::ToolCallFinished { status, .. } => println!("     … {status:?}"),
            EventKind::AttemptSuperseded { step_id, .. } => {
                println!("  {step_id} was lost with its worker")
            }
            EventKind::InterruptRequested { .. } => answer_open_interrupts(client, session).await?,
            EventKind::TurnCompleted => return Ok(()),
            EventKind::TurnFailed { class } => {
                let failure = client.snapshot(session).await?.last_failure;
                let detail = failure.map(|it| it.detail).unwrap_or_default();
                return Err(format!("the turn failed ({class}): {detail}").into());
            }
            _ => {}
        }
    }
    Ok(())
}

async fn answer_open_interrupts(
    client: &AgentSessionClient,
    session: &SessionId,
) -> Result<(), Box<dyn Error>> {
    for interrupt in client.snapshot(session).await?.pending_interrupts {
        println!(
            "     the agent wants to call {} with {}",
            interrupt.tool_name, interrupt.arguments
        );
        let answer = match ask_person().await? {
            Some(true) => ResolveInterrupt::approve(interrupt.interrupt_id),
            Some(false) => ResolveInterrupt::reject(
                interrupt.interrupt_id,
                Some("the operator said no".to_owned()),
            ),
            None => return Err("nobody answered; start me again to be asked again".into()),
        };
        client
            .resolve_interrupt(session, answer.for_digest(interrupt.digest))
            .await?;
    }
    Ok(())
}

/// Asks until the answer is y or n; `None` when the terminal was closed.
async fn ask_person() -> Result<Option<bool>, Box<dyn Error>> {
    if !std::io::stdin().is_terminal() {
        println!("     no terminal: approved");
        return Ok(Some(true));
    }
    loop {
        print!("     approve? [y/n] (or kill me and start me again) ");
        std::io::stdout().flush()?;
        let line = tokio::task::spawn_blocking(|| {
            let mut line = String::new();
            std::io::stdin()
                .lock()
                .read_line(&mut line)
                .map(|bytes| (bytes > 0).then_some(line))
        });
        let Some(line) = line.await?? else {
            println!();
            return Ok(None);
        };
        match line.trim().to_lowercase().as_str() {
            "y" | "yes" => return Ok(Some(true)),
            "n" | "no" => return Ok(Some(false)),
            _ => {}
        }
    }
}
