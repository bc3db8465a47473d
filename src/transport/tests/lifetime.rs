//! How a process ends, and what ends with it.

use crate::process::ProcessIdentity;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::process::Pid;

use super::super::config_dir::RunDirectory;
use super::super::reaper::{Managed, Phase, Reaper};
use super::*;

/// A process that nobody but the test ends.
struct Descendant(i32);

impl Drop for Descendant {
    fn drop(&mut self) {
        let pid = Pid::from_raw(self.0).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
}

/// R32: a descendant in a session of its own that holds the pipes delays neither the end of the
/// output nor the shutdown.
#[tokio::test]
async fn a_descendant_that_holds_the_pipes_delays_nothing() {
    let bench = Bench::new();
    let script = "setsid sh -c 'echo $$; exec sleep 1000' & read x; echo last; echo err >&2";
    let mut process = bench.start(script).await;
    let descendant = Descendant(line(&mut process).await.unwrap().parse().unwrap());
    process.send("go".to_owned()).unwrap();
    assert_eq!(line(&mut process).await.unwrap(), "last");
    assert_eq!(line(&mut process).await, None);
    assert_eq!(soon(process.shutdown(LONG * 2)).await, CliExit::Exited(0));
    assert_eq!(process.stderr_tail(), "err\n");
    let alive = ProcessIdentity::of(descendant.0.try_into().unwrap()).unwrap();
    assert!(alive.is_some());
}

/// G14: what the process left in its group ends with it.
#[tokio::test]
async fn the_process_group_ends_with_the_process() {
    let bench = Bench::new();
    let mut process = bench.start("sleep 1000 & echo $!").await;
    let descendant: u32 = line(&mut process).await.unwrap().parse().unwrap();
    assert_eq!(process.shutdown(LONG).await, CliExit::Exited(0));
    eventually("the end of the group", || {
        ProcessIdentity::of(descendant).unwrap().is_none()
    })
    .await;
}

/// G14: a dropped handle is enough, and nothing stays on the disk.
#[tokio::test]
async fn a_dropped_process_ends_and_its_directory_goes() {
    let bench = Bench::new();
    let mut process = bench
        .start("touch $TMPDIR/x; echo up; exec sleep 1000")
        .await;
    assert_eq!(line(&mut process).await.unwrap(), "up");
    let identity = identity(&*process);
    assert_eq!(bench.directories().len(), 1);
    drop(process);
    eventually("the end", || !identity.is_alive().unwrap()).await;
    eventually("the removal", || bench.directories().is_empty()).await;
}

/// G14, report R25: a hundred dropped processes leave nothing.
#[tokio::test]
async fn a_hundred_dropped_processes_leave_nothing() {
    let bench = Bench::new();
    let mut identities = Vec::new();
    let mut processes = Vec::new();
    for _ in 0..100 {
        let process = bench.start("exec sleep 1000").await;
        identities.push(identity(&*process));
        processes.push(process);
    }
    assert_eq!(bench.directories().len(), 100);
    drop(processes);
    let is_alive = |it: &ProcessIdentity| it.is_alive().unwrap();
    eventually("the end", || !identities.iter().any(is_alive)).await;
    eventually("the removal", || bench.directories().is_empty()).await;
}

/// Section 4 of the design: the signal comes before the end of the input, which would make the
/// CLI go on with its turn.
#[tokio::test]
async fn a_dropped_process_is_signalled_before_its_input_ends() {
    let bench = Bench::new();
    let log = bench.root.path().join("log");
    let script = format!(
        "trap 'echo term >>{0}; exit' TERM; echo up; read x; echo eof >>{0}",
        log.display()
    );
    let mut process = bench.start(&script).await;
    assert_eq!(line(&mut process).await.unwrap(), "up");
    let identity = identity(&*process);
    drop(process);
    eventually("the end", || !identity.is_alive().unwrap()).await;
    assert_eq!(fs::read_to_string(log).unwrap(), "term\n");
}

/// G14: SIGKILL follows where SIGTERM is ignored, for a shutdown and for a drop.
#[tokio::test]
async fn a_process_that_ignores_sigterm_is_killed() {
    let mut bench = Bench::new();
    bench.launcher = bench.launcher.with_stop_grace(Duration::from_millis(30));
    let script = "trap '' TERM; echo up; exec sleep 1000";
    let mut process = bench.start(script).await;
    assert_eq!(line(&mut process).await.unwrap(), "up");
    assert_eq!(
        soon(process.shutdown(Duration::from_millis(1))).await,
        CliExit::Signalled(9)
    );
    let mut process = bench.start(script).await;
    assert_eq!(line(&mut process).await.unwrap(), "up");
    let identity = identity(&*process);
    drop(process);
    eventually("the end", || !identity.is_alive().unwrap()).await;
}

/// G14: a process outlives the thread and the runtime that launched it, and its handle still ends
/// it without any runtime.
#[test]
fn a_handle_ends_its_process_after_its_runtime_is_gone() {
    let bench = Bench::new();
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    let launch = || {
        runtime().block_on(async {
            let mut process = bench.start("echo up; exec sleep 1000").await;
            assert_eq!(line(&mut process).await.unwrap(), "up");
            process
        })
    };
    let process = std::thread::scope(|scope| scope.spawn(launch).join().unwrap());
    let identity = identity(&*process);
    assert!(identity.is_alive().unwrap());
    drop(process);
    let gone = || !identity.is_alive().unwrap() && bench.directories().is_empty();
    runtime().block_on(eventually("the end", gone));
}

/// G14: where the kernel has no pidfd, the end of a process is found by looking.
#[tokio::test]
async fn a_process_without_a_pidfd_is_reaped_too() {
    let bench = Bench::new();
    let child = Command::new("/bin/sleep")
        .arg("1000")
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();
    let pid = Pid::from_child(&child);
    let managed = Managed::new(child, pid, LONG);
    let directory = RunDirectory::create(bench.root.path()).unwrap();
    let mut phases = managed.phases();
    Reaper::running()
        .unwrap()
        .watch_by(None, managed.clone(), directory);
    managed.terminate();
    let cleared = soon(phases.wait_for(|it| matches!(it, Phase::Cleared(_)))).await;
    assert_eq!(*cleared.unwrap(), Phase::Cleared(CliExit::Signalled(15)));
    // A later stop must not signal a number that may be somebody else's.
    managed.terminate();
    assert_eq!(bench.directories(), Vec::<PathBuf>::new());
}

/// What the process wrote just before its end is read after it.
#[tokio::test]
async fn the_last_output_is_read_after_the_end() {
    let bench = Bench::new();
    let mut process = bench.start("echo last; echo error >&2").await;
    // Nothing is awaited here, so that the tasks see the end before they read anything.
    let started = std::time::Instant::now();
    while !bench.directories().is_empty() {
        assert!(started.elapsed() < LONG);
        std::thread::yield_now();
    }
    assert_eq!(line(&mut process).await.unwrap(), "last");
    assert_eq!(line(&mut process).await, None);
    assert_eq!(process.shutdown(LONG).await, CliExit::Exited(0));
    assert_eq!(process.stderr_tail(), "error\n");
}
