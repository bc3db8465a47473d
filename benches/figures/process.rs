//! Measuring in a process of its own, where nothing else has touched the memory.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};

use rustix::time::{ClockId, clock_gettime};

use crate::{events, inbox, parked, resume};

/// The argument after which a child's job and its database follow.
pub(crate) const CHILD: &str = "--child";

/// Runs this program as a child and returns the numbers that it prints.
pub(crate) fn numbers(job: &str, database: &Path) -> Vec<u64> {
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args([CHILD, job])
        .arg(database)
        .stderr(Stdio::inherit())
        .output()
        .expect("the child starts");
    assert!(output.status.success(), "the child ended in order");
    let text = String::from_utf8(output.stdout).expect("text");
    let numbers = text.split_whitespace();
    numbers.map(|it| it.parse().expect("a number")).collect()
}

/// A child that works beside this process until it is told to end.
pub(crate) struct Beside {
    child: Child,
    output: BufReader<ChildStdout>,
}

/// What such a child says once it works.
const READY: &str = "ready\n";

impl Beside {
    /// Starts the child and returns once it works.
    pub(crate) fn start(job: &str, database: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args([CHILD, job])
            .arg(database)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("the child starts");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        assert_eq!(line, READY);
        Self { child, output }
    }

    /// Tells the child to end, and returns the numbers that it prints then.
    pub(crate) fn finish(mut self) -> Vec<u64> {
        drop(self.child.stdin.take());
        let mut text = String::new();
        self.output.read_to_string(&mut text).expect("text");
        let status = self.child.wait().expect("the child ends");
        assert!(status.success(), "the child ended in order");
        let numbers = text.split_whitespace();
        numbers.map(|it| it.parse().expect("a number")).collect()
    }
}

/// In the child: says that it works, and returns once it is told to end.
pub(crate) async fn work_beside() {
    std::io::stdout()
        .write_all(READY.as_bytes())
        .expect("stdout takes a line");
    std::io::stdout().flush().expect("stdout takes a line");
    let told = tokio::task::spawn_blocking(|| {
        let read = std::io::stdin().read_to_end(&mut Vec::new());
        read.expect("the input ends");
    });
    told.await.expect("it is told");
}

/// The machine's monotonic clock, which is the same in every process, in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// From one moment to a later one, in milliseconds.
pub(crate) fn between_ms(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 / 1e6
}

/// Does a child's job.
pub(crate) fn run_child(job: &str, database: &Path) -> ExitCode {
    let numbers = match job {
        parked::JOB => parked::child(database),
        resume::JOB => resume::child(database),
        inbox::JOB => inbox::child(database),
        events::JOB => events::child(database),
        _ => return ExitCode::FAILURE,
    };
    for number in numbers {
        writeln!(std::io::stdout(), "{number}").expect("stdout takes a line");
    }
    ExitCode::SUCCESS
}

/// A line of `/proc/self/status` in kB: `VmRSS` is the memory of now, `VmHWM` the most so far.
pub(crate) fn memory_kb(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|it| it.starts_with(name));
    let number = line.and_then(|it| it.split_whitespace().nth(1));
    number.expect("the line").parse().expect("a number")
}

/// How many processes this one has started and not reaped.
pub(crate) fn child_processes() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let children = tasks.map(|it| {
        let path = it.expect("a task").path().join("children");
        std::fs::read_to_string(path).unwrap_or_default()
    });
    children.map(|it| it.split_whitespace().count()).sum()
}
