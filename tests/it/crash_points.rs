//! Crashes everywhere: each reference conversation is run once undisturbed and counted, then again
//! for each point of it with a worker that dies there and another one that takes over. Only what
//! the point itself explains may differ at the end.

pub(crate) mod case;
pub(crate) mod check;
pub(crate) mod cli_deaths;
pub(crate) mod point;
pub(crate) mod reference;
mod transcript;

use abide::testing::faults::{CrashPoint, Side};

use case::{Case, Fate, LifeEnd, Outcome, Setting};
use check::differences;
use point::{Point, die_at};
use reference::{BASH_GATE, GATED_BASH, Reference};

pub(crate) const SIDES: [Side; 2] = [Side::Before, Side::After];

pub(crate) async fn undisturbed(reference: &Reference, setting: Setting) -> Outcome {
    let mut case = Case::start(reference, setting).await;
    case.world.open_gate(BASH_GATE);
    assert_eq!(case.life(None).await, LifeEnd::Done);
    let outcome = case.finish().await;
    assert_eq!(
        differences(&outcome, &outcome),
        Vec::<String>::new(),
        "{}",
        reference.name
    );
    outcome
}

/// Lets a worker die at each of these points in turn; the last one finishes.
pub(crate) async fn crashed(reference: &Reference, setting: Setting, points: &[Point]) -> Outcome {
    let mut case = Case::start(reference, setting).await;
    for point in points {
        if let Point::LineOfBoth(at) = point {
            die_at(&case.cli(), *at);
        }
        if case.life(Some(*point)).await == LifeEnd::Done {
            return case.finish().await;
        }
    }
    case.world.open_gate(BASH_GATE);
    case.life(None).await;
    case.finish().await
}

/// The points of which something was expected that did not hold.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) points: usize,
    pub(crate) failed: Vec<String>,
}

impl Report {
    pub(crate) fn add(
        &mut self,
        reference: &Reference,
        points: &[impl ToString],
        found: Vec<String>,
    ) {
        self.points += 1;
        let at: Vec<String> = points.iter().map(ToString::to_string).collect();
        let name = format!("{}, {}", reference.name, at.join(", then "));
        self.failed
            .extend(found.into_iter().map(|it| format!("{name}: {it}")));
    }

    pub(crate) fn end(self, what: &str) {
        self.end_with(what, 1);
    }

    /// As [`Report::end`], and checks that there were at least so many points.
    #[expect(
        clippy::print_stdout,
        reason = "the number of points is for the reader"
    )]
    pub(crate) fn end_with(self, what: &str, points_min: usize) {
        println!("{what}: {} points", self.points);
        assert_eq!(self.failed, Vec::<String>::new());
        assert!(self.points >= points_min, "fewer than {points_min} points");
    }
}

pub(crate) fn commit_points(commits: u64) -> impl Iterator<Item = Point> {
    let at = |commit| SIDES.map(|side| Point::Commit(CrashPoint { commit, side }));
    (1..=commits).flat_map(at)
}

/// G1, G2, G3, G6, G7, G9, G13: a worker that dies beside any of its commits changes nothing but
/// what the model is told about a call whose start mark has no end.
#[tokio::test(start_paused = true)]
async fn a_crash_beside_any_commit_changes_nothing_that_was_recorded() {
    let mut report = Report::default();
    for reference in &reference::ALL {
        let plain = undisturbed(reference, Setting::NATIVE).await;
        let mut unknown = 0;
        for point in commit_points(plain.commits[0]) {
            let run = crashed(reference, Setting::NATIVE, &[point]).await;
            let mut found = differences(&plain, &run);
            if run.deaths != 1 {
                found.push("the point was not reached".to_owned());
            }
            unknown += run
                .fates
                .values()
                .filter(|it| **it == Fate::Unknown)
                .count();
            report.add(reference, &[point], found);
        }
        // A single-attempt call is open between two commits, and nowhere else.
        let is_once = |it: &&case::GatedCall| it.record.policy.effect.is_single_attempt();
        let started = plain
            .calls
            .iter()
            .filter(is_once)
            .map(|it| it.record.starts);
        let expected = 2 * started.sum::<u32>() as usize;
        if unknown != expected {
            let name = reference.name;
            report.failed.push(format!(
                "{name}: {unknown} points leave an outcome unknown instead of {expected}"
            ));
        }
    }
    report.end("beside a commit");
}

/// G1, G2: a worker that dies inside a handler leaves its effect as it is; only an idempotent call
/// is made again.
#[tokio::test(start_paused = true)]
async fn a_crash_around_any_effect_never_repeats_it() {
    let mut report = Report::default();
    for reference in &reference::ALL {
        let plain = undisturbed(reference, Setting::NATIVE).await;
        for start in 1..=plain.handler_starts {
            for side in SIDES {
                let point = Point::Handler(start, side);
                let run = crashed(reference, Setting::NATIVE, &[point]).await;
                let mut found = differences(&plain, &run);
                if run.deaths != 1 {
                    found.push("the point was not reached".to_owned());
                }
                report.add(reference, &[point], found);
            }
        }
    }
    let plain = undisturbed(&GATED_BASH, Setting::NATIVE).await;
    let run = crashed(&GATED_BASH, Setting::NATIVE, &[Point::Bash]).await;
    let mut found = differences(&plain, &run);
    if run.bash.len() != 1 || run.fates.is_empty() {
        found.push("the command did not run once under its mark".to_owned());
    }
    report.add(&GATED_BASH, &[Point::Bash], found);
    report.end("around an effect");
}

/// G2: the third start of an idempotent call is its last, and all have one key.
#[tokio::test(start_paused = true)]
async fn an_idempotent_call_is_lost_three_times_at_most() {
    let mut report = Report::default();
    let reference = &reference::IDEMPOTENT_WRITE;
    let plain = undisturbed(reference, Setting::NATIVE).await;
    for deaths in 1..=3 {
        for side in SIDES {
            let points: Vec<Point> = (1..=deaths).map(|it| Point::Handler(it, side)).collect();
            let mut run = crashed(reference, Setting::NATIVE, &points).await;
            let record = &run.calls[0].record;
            let starts = record.starts;
            if deaths == 3 {
                run.fates.insert(record.tool_call_id.clone(), Fate::Unknown);
            }
            let mut found = differences(&plain, &run);
            // The start after the last death is not held.
            let lost_effects = if side == Side::After { deaths } else { 0 };
            let expected = (lost_effects + usize::from(deaths < 3), 3.min(deaths + 1));
            if (run.effects.len(), starts as usize) != expected {
                found.push(format!("{:?} in {starts} starts", run.effects));
            }
            report.add(reference, &points, found);
        }
    }
    report.end("idempotent");
}

/// G1, G8: a worker that stands still beside a commit and goes on after another one took over
/// stores nothing more, and its process ends.
#[tokio::test(start_paused = true)]
async fn a_worker_that_wakes_up_too_late_changes_nothing() {
    let mut report = Report::default();
    for reference in &reference::ALL {
        let plain = undisturbed(reference, Setting::NATIVE).await;
        for point in commit_points(plain.commits[0]) {
            let Point::Commit(at) = point else { continue };
            let mut case = Case::start(reference, Setting::NATIVE).await;
            case.stall(at).await;
            let run = case.finish().await;
            let mut found = differences(&plain, &run);
            if run.deaths != 1 {
                found.push("the point was not reached".to_owned());
            }
            report.add(reference, &[point], found);
        }
    }
    report.end("asleep beside a commit");
}

/// G1, G7: a second crash in the recovery from the first changes no more than one does.
#[tokio::test(start_paused = true)]
async fn a_crash_in_the_recovery_changes_no_more_than_one_does() {
    let mut report = Report::default();
    for reference in [&reference::APPROVED_WRITE, &reference::APPROVED_BASH] {
        let plain = undisturbed(reference, Setting::NATIVE).await;
        for first in commit_points(plain.commits[0]) {
            let once = crashed(reference, Setting::NATIVE, &[first]).await;
            for second in commit_points(once.commits[1]) {
                let run = crashed(reference, Setting::NATIVE, &[first, second]).await;
                let mut found = differences(&plain, &run);
                if run.deaths != 2 {
                    found.push("the second point was not reached".to_owned());
                }
                report.add(reference, &[first, second], found);
            }
        }
    }
    report.end("in the recovery");
}
