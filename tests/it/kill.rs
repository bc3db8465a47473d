//! Kills everywhere on the live path (design.md 4): each reference turn is run once undisturbed, and
//! then again for each line and each commit of it, at which its worker, its CLI or both die. The
//! machinery is that of [`crash_points`](crate::crash_points).
//!
//! With and without a mirror that lags: the worker alone dies at lines without and beside commits
//! with it, the CLI alone the other way round, both die with it.

mod many;
mod reference;

use abide::record::CallStatus;
use abide::testing::faults::CrashPoint;
use abide::testing::launcher::Launch;
use abide::testing::script::{ScriptCommand, parse};
use abide::transport::CliExit;

use crate::crash_points::case::{Case, Fate, Outcome, Setting};
use crate::crash_points::check::differences;
use crate::crash_points::cli_deaths::{killed, with_fates};
use crate::crash_points::point::{Point, lines_of, lines_that_matter};
use crate::crash_points::reference::Reference;
use crate::crash_points::{Report, commit_points, crashed, undisturbed};

use reference::{
    AT_LINES, BESIDE_COMMITS_ONLY, FOUR_NEWEST_FIRST, FREE_BASH, PARKED, TWO_REPLIES, WARM,
};

/// What a run in which the worker died once differs in from the undisturbed one.
fn worker_died(reference: &Reference, plain: &Outcome, run: Outcome) -> Vec<String> {
    let is_right = run.deaths == 1;
    let mut found = unexplained(reference, plain, run);
    if !is_right {
        found.push("the point was not reached".to_owned());
    }
    found
}

/// As [`worker_died`], where the CLI was killed. Between two turns that costs no attempt.
fn cli_died(reference: &Reference, plain: &Outcome, mut run: Outcome) -> Vec<String> {
    let killed = |it: &&Launch| it.exit == Some(CliExit::Signalled(9));
    let killed = run.launches.iter().filter(killed).count();
    let lost = std::mem::replace(&mut run.deaths, 1);
    let mut found = unexplained(reference, plain, run);
    if killed != 1 || lost > 1 {
        found.push(format!(
            "{killed} processes were killed, {lost} attempts failed"
        ));
    }
    found
}

/// What a run differs in from the undisturbed one without an explanation by its kills.
fn unexplained(reference: &Reference, plain: &Outcome, mut run: Outcome) -> Vec<String> {
    skip_behind_losses(reference, &mut run);
    differences(plain, &run)
}

/// Behind a write of the same reply that is unknown or did not run, no other write may run.
fn skip_behind_losses(reference: &Reference, run: &mut Outcome) {
    let script = parse(reference.messages[0]).expect("a script");
    let together = match script.command {
        ScriptCommand::Call(calls) => calls.iter().filter(|it| it.tool != "lookup").count(),
        _ => 0,
    };
    let mut is_lost = false;
    for call in run.calls.iter().take(together) {
        let id = &call.record.tool_call_id;
        let fate = run.fates.get(id).copied();
        if is_lost && call.record.status != CallStatus::Rejected {
            run.fates.insert(id.clone(), Fate::Skipped);
        }
        is_lost |= matches!(fate, Some(Fate::Unknown | Fate::NotRun));
    }
}

fn commits_of(plain: &Outcome) -> Vec<CrashPoint> {
    let points = commit_points(plain.commits[0]);
    let at = points.filter_map(|it| match it {
        Point::Commit(at) => Some(at),
        Point::Handler(..) | Point::Bash | Point::Line(_) | Point::LineOfBoth(_) => None,
    });
    at.collect()
}

/// Lets the CLI die beside a commit, and its worker live; `None` when no CLI runs then.
async fn cli_killed(reference: &Reference, setting: Setting, at: CrashPoint) -> Option<Outcome> {
    let mut case = Case::start(reference, setting).await;
    if !case.kill_cli(at).await {
        return None;
    }
    Some(with_fates(case.finish().await))
}

/// G1, G3, G7: a worker that dies at any line of its CLI repeats one model call at most.
#[tokio::test(start_paused = true)]
async fn a_worker_that_dies_at_any_line_repeats_one_model_call_at_most() {
    let mut report = Report::default();
    let setting = Setting::LIVE;
    for reference in &AT_LINES {
        let plain = undisturbed(reference, setting).await;
        for at in lines_that_matter(&plain.launches) {
            let point = Point::Line(at);
            let run = crashed(reference, setting, &[point]).await;
            report.add(reference, &[point], worker_died(reference, &plain, run));
        }
    }
    report.end_with("live: the worker at a line", 340);
}

/// G1, G3, G7: as above, and the CLI dies with it.
#[tokio::test(start_paused = true)]
async fn a_worker_and_its_cli_that_die_at_any_line_repeat_one_model_call_at_most() {
    let mut report = Report::default();
    let setting = Setting::LAGGING;
    for reference in &AT_LINES {
        let plain = undisturbed(reference, setting).await;
        for at in lines_that_matter(&plain.launches) {
            let point = Point::LineOfBoth(at);
            let run = crashed(reference, setting, &[point]).await;
            report.add(reference, &[point], worker_died(reference, &plain, run));
        }
    }
    report.end_with("live: the worker and the CLI at a line", 340);
}

/// G1, G3, G7: the death of the CLI alone costs one attempt, and no more than one model call.
#[tokio::test(start_paused = true)]
async fn a_cli_that_dies_at_any_line_repeats_one_model_call_at_most() {
    let mut report = Report::default();
    let setting = Setting::LAGGING;
    for reference in &AT_LINES {
        let plain = undisturbed(reference, setting).await;
        for at in lines_of(&plain.launches) {
            let run = killed(reference, setting, at).await;
            report.add(reference, &[at], cli_died(reference, &plain, run));
        }
    }
    report.end_with("live: the CLI at a line", 440);
}

/// G1, G3, G7: a worker that dies beside a commit of a live segment changes nothing but what the
/// model is told about a call whose start mark has no end.
#[tokio::test(start_paused = true)]
async fn a_worker_that_dies_beside_a_live_commit_repeats_one_model_call_at_most() {
    let mut report = Report::default();
    let setting = Setting::LAGGING;
    for reference in AT_LINES.iter().chain(&BESIDE_COMMITS_ONLY) {
        let plain = undisturbed(reference, setting).await;
        for at in commits_of(&plain) {
            let point = Point::Commit(at);
            let run = crashed(reference, setting, &[point]).await;
            let found = worker_died(reference, &plain, run);
            report.add(reference, &[point], found);
        }
    }
    report.end_with("live: the worker beside a commit", 190);
}

/// G1, G3, G7: a CLI that dies beside a commit of its worker costs one attempt.
#[tokio::test(start_paused = true)]
async fn a_cli_that_dies_beside_a_commit_repeats_one_model_call_at_most() {
    let mut report = Report::default();
    let setting = Setting::LIVE;
    for reference in &AT_LINES {
        let plain = undisturbed(reference, setting).await;
        for at in commits_of(&plain) {
            if let Some(run) = cli_killed(reference, setting, at).await {
                let found = cli_died(reference, &plain, run);
                report.add(reference, &[Point::Commit(at)], found);
            }
        }
    }
    report.end_with("live: the CLI beside a commit", 90);
}

/// G1, G7: a second death in the recovery from the first changes no more than one does. Each first
/// point has one second point, each time a later one.
#[tokio::test(start_paused = true)]
async fn a_second_death_in_the_recovery_repeats_one_more_model_call_at_most() {
    let mut report = Report::default();
    let setting = Setting::LAGGING;
    for reference in [&FOUR_NEWEST_FIRST, &TWO_REPLIES] {
        let plain = undisturbed(reference, setting).await;
        for (index, first) in commit_points(plain.commits[0]).enumerate() {
            let once = crashed(reference, setting, &[first]).await;
            let seconds: Vec<Point> = commit_points(once.commits[1]).collect();
            let Some(second) = seconds.get(index % seconds.len().max(1)) else {
                // It died behind its last commit: nothing is left to recover.
                continue;
            };
            let points = [first, *second];
            let run = crashed(reference, setting, &points).await;
            let is_right = run.deaths == 2;
            let mut found = unexplained(reference, &plain, run);
            if !is_right {
                found.push("the second point was not reached".to_owned());
            }
            report.add(reference, &points, found);
        }
    }
    report.end_with("live: in the recovery", 35);
}

/// G7: what the reference turns cost without a kill: processes, and requests to the model.
#[tokio::test(start_paused = true)]
async fn an_undisturbed_live_turn_costs_one_process_and_no_further_model_call() {
    let four_calls = BESIDE_COMMITS_ONLY.iter().chain([&FOUR_NEWEST_FIRST]);
    let four_calls = four_calls.filter(|it| it.messages == FOUR_NEWEST_FIRST.messages);
    let costs = four_calls.map(|it| (it, (1, 2)));
    let others = [(&PARKED, (2, 2)), (&TWO_REPLIES, (1, 3)), (&WARM, (1, 3))];
    for (reference, cost) in costs.chain(others) {
        for setting in [Setting::LIVE, Setting::LAGGING] {
            let plain = undisturbed(reference, setting).await;
            let is = (plain.launches.len(), plain.model_requests);
            assert_eq!(is, cost, "{}", reference.name);
        }
    }
}

/// G1, G8: a worker that stands still beside a commit while its CLI waits, and goes on after another
/// one took over, stores nothing more.
#[tokio::test(start_paused = true)]
async fn a_live_worker_that_wakes_up_too_late_changes_nothing() {
    let mut report = Report::default();
    let setting = Setting::LIVE;
    for reference in [&FOUR_NEWEST_FIRST, &PARKED, &WARM, &FREE_BASH] {
        let plain = undisturbed(reference, setting).await;
        for at in commits_of(&plain) {
            let mut case = Case::start(reference, setting).await;
            case.stall(at).await;
            let run = case.finish().await;
            let found = worker_died(reference, &plain, run);
            report.add(reference, &[Point::Commit(at)], found);
        }
    }
    report.end_with("live: asleep beside a commit", 60);
}
