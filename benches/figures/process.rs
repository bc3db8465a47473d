//! Measuring in a process of its own, where nothing else has touched the memory.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use crate::{parked, resume};

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

/// Does a child's job.
pub(crate) fn run_child(job: &str, database: &Path) -> ExitCode {
    let numbers = match job {
        parked::JOB => parked::child(database),
        resume::JOB => resume::child(database),
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
