//! The real process behind the port, with small shell scripts in the place of the CLI.

mod launch;
mod leftovers;
mod lifetime;
mod lines;

use crate::process::ProcessIdentity;
use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::*;

/// Far longer than anything takes; a test that waits this long has failed.
const LONG: Duration = Duration::from_secs(60);

/// Waits until a condition holds.
async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let mut tick = tokio::time::interval(Duration::from_millis(2));
    let wait = async {
        while !holds() {
            tick.tick().await;
        }
    };
    tokio::time::timeout(LONG, wait).await.expect(what);
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, what).await.expect("in time")
}

/// A process that is no CLI of ours, ended with the test.
struct Bystander(std::process::Child);

impl Bystander {
    fn start() -> Self {
        let mut command = Command::new("/bin/sleep");
        command
            .arg("1000")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn identity(&self) -> ProcessIdentity {
        ProcessIdentity::of(self.0.id()).unwrap().unwrap()
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

struct Bench {
    root: TempDir,
    launcher: SubprocessLauncher,
}

impl Bench {
    fn new() -> Self {
        let root = TempDir::new().unwrap();
        let launcher = SubprocessLauncher::new("/bin/sh").with_work_root(root.path());
        Self { root, launcher }
    }

    async fn start(&self, script: &str) -> Box<dyn CliProcess> {
        self.launcher.launch(spec(script)).await.unwrap()
    }

    fn directories(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.root.path()).unwrap();
        entries.map(|it| it.unwrap().path()).collect()
    }
}

/// Runs this script in `/bin/sh`.
fn spec(script: &str) -> LaunchSpec {
    LaunchSpec::new(
        vec!["-c".to_owned(), script.to_owned()],
        BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        PathBuf::from("/"),
    )
}

async fn line(process: &mut Box<dyn CliProcess>) -> Option<String> {
    let line = soon(process.receive()).await.unwrap();
    line.map(|it| String::from_utf8(it).unwrap())
}

fn identity(process: &dyn CliProcess) -> ProcessIdentity {
    let pid = process.process_id().unwrap();
    ProcessIdentity::of(pid).unwrap().unwrap()
}
