//! The CLI dies and its worker lives: at every line of two conversations, and while Bash runs.

use abide::event::EventKind;
use abide::record::{CallStatus, ToolOutcome};
use abide::testing::launcher::Launch;
use abide::transport::CliExit;
use abide::turn::CallPlace;

use super::case::{Case, Fate, LifeEnd, Outcome, Setting};
use super::check::{differences, not_run};
use super::point::{die_at, lines_of};
use super::reference::{APPROVED_BASH, BASH_GATE, GATED_BASH, READ_AND_WRITE, Reference};
use super::{Report, undisturbed};
use crate::support::counted::{Line, LineAt};

/// Lets a CLI process die at a line.
pub(crate) async fn killed(reference: &Reference, setting: Setting, at: LineAt) -> Outcome {
    let mut case = Case::start(reference, setting).await;
    die_at(&case.cli(), at);
    case.life(None).await;
    with_fates(case.finish().await)
}

/// What may become of the call that the process resumes, by what had passed between the two.
fn allowed(at: LineAt, launch: &Launch) -> &'static [Option<Fate>] {
    let sent = |has: &str| line_with(&launch.lines_sent, has);
    let (Some(asked), Some(allowed)) = (
        sent(r#""subtype":"hook_callback""#),
        line_with(&launch.lines_received, r#""permissionDecision":"allow""#),
    ) else {
        return &[None];
    };
    let (told, over) = (sent(r#""type":"tool_result""#), sent(r#""type":"result""#));
    let (told, over) = (told.expect("a result"), over.expect("an end"));
    match at.line {
        Line::Sent(line) if line < asked => &[None],
        Line::Sent(line) if line < told => &[Some(Fate::Unknown), Some(Fate::NotRun)],
        Line::Sent(line) if line < over => &[Some(Fate::Told)],
        Line::Sent(_) => &[None],
        Line::Received(line) if line < allowed => &[None],
        Line::Received(_) => &[Some(Fate::Unknown)],
    }
}

/// The number of the first line with this text, counted from 1.
fn line_with(lines: &[String], text: &str) -> Option<u64> {
    let index = lines.iter().position(|it| it.contains(text))?;
    Some(index as u64 + 1)
}

/// Reads from the log and the records what the failed attempts made of each call.
pub(crate) fn with_fates(mut run: Outcome) -> Outcome {
    let is_failure = |it: &EventKind| matches!(it, EventKind::AttemptFailed { .. });
    run.deaths += run.events.iter().filter(|it| is_failure(&it.kind)).count();
    for call in &run.calls {
        let record = &call.record;
        let id = &record.tool_call_id;
        let ends = |it: &EventKind| matches!(it, EventKind::ToolCallFinished { tool_call_id, .. } if tool_call_id == id);
        let after_end = run.events.iter().skip_while(|it| !ends(&it.kind));
        let was_lost = after_end.into_iter().any(|it| is_failure(&it.kind));
        let fate = match (&call.outcome, record.place) {
            // A call in a Step of its own has nothing to do with the CLI.
            (Some(ToolOutcome::OutcomeUnknown), CallPlace::Segment) => Fate::Unknown,
            (Some(outcome), CallPlace::Segment) if *outcome == not_run() => Fate::NotRun,
            (Some(ToolOutcome::Succeeded { .. }), CallPlace::Segment)
                if was_lost && !run.setting.is_live() =>
            {
                Fate::Told
            }
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
        let plain = undisturbed(reference, Setting::NATIVE).await;
        for death in lines_of(&plain.launches) {
            let run = killed(reference, Setting::NATIVE, death).await;
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
                CallPlace::Segment => allowed(death, &plain.launches[death.launch]),
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
    let plain = undisturbed(&GATED_BASH, Setting::NATIVE).await;
    let mut case = Case::start(&GATED_BASH, Setting::NATIVE).await;
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
