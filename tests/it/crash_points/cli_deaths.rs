//! The CLI dies and its worker lives: at every line of two conversations, and while Bash runs.

use std::fmt;

use abide::event::EventKind;
use abide::record::{CallStatus, ToolOutcome};
use abide::testing::fake_cli::Fault;
use abide::testing::launcher::Launch;
use abide::transport::CliExit;
use abide::turn::CallPlace;

use super::case::{Case, Fate, LifeEnd, Outcome};
use super::check::{differences, not_run};
use super::reference::{APPROVED_BASH, BASH_GATE, GATED_BASH, READ_AND_WRITE, Reference};
use super::{Report, undisturbed};

/// Where a CLI process dies.
#[derive(Debug, Clone, Copy)]
struct Death {
    /// Which process, counted from 0.
    launch: usize,
    at: Line,
}

#[derive(Debug, Clone, Copy)]
enum Line {
    Sent(u64),
    Received(u64),
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let process = self.launch + 1;
        match self.at {
            Line::Sent(line) => write!(f, "process {process} dies after it sent line {line}"),
            Line::Received(line) => write!(f, "process {process} dies after it got line {line}"),
        }
    }
}

impl Death {
    fn all(launches: &[Launch]) -> Vec<Self> {
        let mut deaths = Vec::new();
        for (launch, lines) in launches.iter().enumerate() {
            let (sent, received) = (lines.lines_sent.len(), lines.lines_received.len());
            let sent = (1..=sent as u64).map(Line::Sent);
            let received = (1..=received as u64).map(Line::Received);
            deaths.extend(sent.chain(received).map(|at| Self { launch, at }));
        }
        deaths
    }

    async fn run(self, reference: &Reference) -> Outcome {
        let mut case = Case::start(reference).await;
        let fault = match self.at {
            Line::Sent(line) => Fault::DieAfterSent(line),
            Line::Received(line) => Fault::DieAfterReceived(line),
        };
        for _ in 0..self.launch {
            case.cli().fault_next_launch(Vec::new());
        }
        case.cli().fault_next_launch(vec![fault]);
        case.life(None).await;
        with_fates(case.finish().await)
    }

    /// What may become of the call that the process resumes, by what had passed between the two.
    fn allowed(self, launch: &Launch) -> &'static [Option<Fate>] {
        let sent = |has: &str| line_with(&launch.lines_sent, has);
        let (Some(asked), Some(allowed)) = (
            sent(r#""subtype":"hook_callback""#),
            line_with(&launch.lines_received, r#""permissionDecision":"allow""#),
        ) else {
            return &[None];
        };
        let (told, over) = (sent(r#""type":"tool_result""#), sent(r#""type":"result""#));
        let (told, over) = (told.expect("a result"), over.expect("an end"));
        match self.at {
            Line::Sent(line) if line < asked => &[None],
            Line::Sent(line) if line < told => &[Some(Fate::Unknown), Some(Fate::NotRun)],
            Line::Sent(line) if line < over => &[Some(Fate::Told)],
            Line::Sent(_) => &[None],
            Line::Received(line) if line < allowed => &[None],
            Line::Received(_) => &[Some(Fate::Unknown)],
        }
    }
}

/// The number of the first line with this text, counted from 1.
fn line_with(lines: &[String], text: &str) -> Option<u64> {
    let index = lines.iter().position(|it| it.contains(text))?;
    Some(index as u64 + 1)
}

/// Reads from the log and the records what the failed attempts made of each call.
fn with_fates(mut run: Outcome) -> Outcome {
    let is_failure = |it: &EventKind| matches!(it, EventKind::AttemptFailed { .. });
    run.deaths += run.events.iter().filter(|it| is_failure(&it.kind)).count();
    for call in &run.calls {
        let record = &call.record;
        let id = &record.tool_call_id;
        let ends = |it: &EventKind| matches!(it, EventKind::ToolCallFinished { tool_call_id, .. } if tool_call_id == id);
        let after_end = run.events.iter().skip_while(|it| !ends(&it.kind));
        let was_lost = after_end.into_iter().any(|it| is_failure(&it.kind));
        let fate = match (&call.outcome, record.place) {
            (Some(ToolOutcome::OutcomeUnknown), _) => Fate::Unknown,
            (Some(outcome), _) if *outcome == not_run() => Fate::NotRun,
            (Some(ToolOutcome::Succeeded { .. }), CallPlace::Segment) if was_lost => Fate::Told,
            _ => continue,
        };
        run.fates.insert(id.clone(), fate);
    }
    run
}

/// G1, G3, G7: the death of the CLI at any line costs one attempt of its segment and nothing else;
/// a command that it may have run is never run again.
#[tokio::test(start_paused = true)]
async fn the_death_of_the_cli_at_any_line_repeats_nothing_that_counts() {
    let mut report = Report::default();
    for reference in [&READ_AND_WRITE, &APPROVED_BASH] {
        let plain = undisturbed(reference).await;
        for death in Death::all(&plain.launches) {
            let run = death.run(reference).await;
            let mut found = differences(&plain, &run);
            if run.deaths > 1 {
                found.push(format!("{} attempts failed", run.deaths));
            }
            let exit = run.launches[death.launch].exit;
            if exit != Some(CliExit::Signalled(9)) {
                found.push(format!("the process ended as {exit:?}"));
            }
            let fate = run.fates.values().next().copied();
            let allowed = match run.calls[0].record.place {
                CallPlace::Segment => death.allowed(&plain.launches[death.launch]),
                CallPlace::Step => &[None],
            };
            if !allowed.contains(&fate) {
                found.push(format!(
                    "the call's fate is {fate:?} instead of {allowed:?}"
                ));
            }
            report.add(reference, &[death], found);
        }
    }
    report.end("the CLI at a line");
}

/// G1: a command whose CLI is killed under it is not run again.
#[tokio::test(start_paused = true)]
async fn a_command_whose_cli_is_killed_has_an_unknown_outcome() {
    let plain = undisturbed(&GATED_BASH).await;
    let mut case = Case::start(&GATED_BASH).await;
    let cli = case.cli();
    let kill = async {
        cli.wait_until(|_| !cli.effects().is_empty()).await;
        cli.kill_running();
        cli.open_gate(BASH_GATE);
    };
    let ((), end) = tokio::join!(kill, case.life(None));
    assert_eq!(end, LifeEnd::Done);
    let run = with_fates(case.finish().await);
    assert_eq!(differences(&plain, &run), Vec::<String>::new());
    assert_eq!(run.calls[0].record.status, CallStatus::OutcomeUnknown);
    assert_eq!(run.bash.len(), 1);
}
