//! Where a worker dies.

use std::fmt;

use abide::testing::fake_cli::Fault;
use abide::testing::faults::{CrashPoint, Side};
use abide::testing::launcher::{FakeCliHandle, Launch};

use crate::support::counted::{Line, LineAt};

/// Where a worker dies.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Point {
    /// Beside a commit under its lease, counted from the worker's start.
    Commit(CrashPoint),
    /// Inside the n-th handler of the world, before or after its effect.
    Handler(usize, Side),
    /// While a Bash whose effect has happened runs.
    Bash,
    /// Beside a line of one of its processes.
    Line(LineAt),
    /// As [`Point::Line`], and the process dies with it.
    LineOfBoth(LineAt),
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |side: &Side| match side {
            Side::Before => "before",
            Side::After => "after",
        };
        match self {
            Self::Commit(at) => write!(f, "{} commit {}", side(&at.side), at.commit),
            Self::Handler(start, at) => write!(f, "{} the effect of handler {start}", side(at)),
            Self::Bash => f.write_str("while Bash runs"),
            Self::Line(at) => write!(f, "at {at}"),
            Self::LineOfBoth(at) => write!(f, "with the CLI at {at}"),
        }
    }
}

/// Every line of these processes.
pub(crate) fn lines_of(launches: &[Launch]) -> Vec<LineAt> {
    let mut all = Vec::new();
    for (launch, lines) in launches.iter().enumerate() {
        let (sent, received) = (lines.lines_sent.len(), lines.lines_received.len());
        let sent = (1..=sent as u64).map(Line::Sent);
        let received = (1..=received as u64).map(Line::Received);
        all.extend(sent.chain(received).map(|line| LineAt { launch, line }));
    }
    all
}

/// As [`lines_of`], without the pieces of live text, from which nothing follows but live text.
pub(crate) fn lines_that_matter(launches: &[Launch]) -> Vec<LineAt> {
    let is_piece = |at: &LineAt| match at.line {
        Line::Sent(line) => {
            let lines = launches[at.launch].lines_sent.iter();
            let mut before = lines.take(usize::try_from(line).expect("a few lines"));
            before
                .next_back()
                .is_some_and(|it| it.contains(r#""type":"content_block_"#))
        }
        Line::Received(_) => false,
    };
    let all = lines_of(launches).into_iter();
    all.filter(|it| !is_piece(it)).collect()
}

/// Makes the process that is to come die at a line; none may have been started.
pub(crate) fn die_at(cli: &FakeCliHandle, at: LineAt) {
    let fault = match at.line {
        Line::Sent(line) => Fault::DieAfterSent(line),
        Line::Received(line) => Fault::DieAfterReceived(line),
    };
    for _ in 0..at.launch {
        cli.fault_next_launch(Vec::new());
    }
    cli.fault_next_launch(vec![fault]);
}
