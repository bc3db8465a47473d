//! What a killed worker leaves, and who removes it.

use crate::process::ProcessIdentity;
use std::path::Path;
use std::time::SystemTime;

use super::super::config_dir::{OwnerName, RunDirectory};
use super::*;

/// Acts as a worker when it is started by [`killed_worker`]; else returns.
async fn act_as_worker() {
    let Some(root) = std::env::var_os("ABIDE_TEST_WORK_ROOT") else {
        return;
    };
    let script = std::env::var("ABIDE_TEST_SCRIPT").unwrap();
    let launcher = SubprocessLauncher::new("/bin/sh").with_work_root(&root);
    let mut process = launcher.launch(spec(&script)).await.unwrap();
    assert_eq!(line(&mut process).await.unwrap(), "up");
    fs::write(Path::new(&root).join("ready"), "").unwrap();
    std::future::pending::<()>().await;
}

/// Starts this test's binary again as a worker with one process, kills it, and returns the process.
async fn killed_worker(test: &str, script: &str, root: &Path) -> ProcessIdentity {
    let mut worker = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            &format!("{}::{test}", module_path!().split_once("::").unwrap().1),
        ])
        .env("ABIDE_TEST_WORK_ROOT", root)
        .env("ABIDE_TEST_SCRIPT", script)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    eventually("a process", || root.join("ready").exists()).await;
    let living = sweep_leftovers(root, LONG).unwrap();
    assert_eq!(living, SweepReport::default());
    worker.kill().unwrap();
    worker.wait().unwrap();
    let mut records = fs::read_dir(root).unwrap().filter_map(|it| {
        let text = fs::read(it.unwrap().path().join("process")).ok()?;
        Some(serde_json::from_slice(&text).unwrap())
    });
    records.next().unwrap()
}

/// G14: after SIGKILL of the worker its process gets SIGTERM, and the next sweep removes the rest.
#[tokio::test]
async fn a_killed_worker_takes_its_process_along() {
    act_as_worker().await;
    let root = TempDir::new().unwrap();
    let test = "a_killed_worker_takes_its_process_along";
    let process = killed_worker(test, "echo up; exec sleep 1000", root.path()).await;
    eventually("the end", || !process.is_alive().unwrap()).await;
    let report = sweep_leftovers(root.path(), LONG).unwrap();
    assert_eq!((report.directories_removed, report.processes_ended), (1, 0));
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1, "ready");
}

/// G14: a process that survived both its worker and SIGTERM is ended by the next sweep.
#[tokio::test]
async fn a_process_that_survived_its_worker_is_ended_by_the_sweep() {
    act_as_worker().await;
    let root = TempDir::new().unwrap();
    let test = "a_process_that_survived_its_worker_is_ended_by_the_sweep";
    let script = "trap '' TERM; echo up; exec sleep 1000";
    let process = killed_worker(test, script, root.path()).await;
    assert!(process.is_alive().unwrap());
    let launcher = SubprocessLauncher::new("sh")
        .with_work_root(root.path())
        .with_stop_grace(Duration::from_millis(20));
    let report = launcher.sweep_leftovers().await.unwrap();
    assert_eq!((report.directories_removed, report.processes_ended), (1, 1));
    assert!(!process.is_alive().unwrap());
}

/// G14: only directories of dead workers go, and a process that is not exactly the recorded one is
/// not touched.
#[test]
fn a_sweep_touches_only_what_is_dead() {
    let root = TempDir::new().unwrap();
    let here = ProcessIdentity::current().unwrap();
    let living = RunDirectory::create(root.path()).unwrap();
    let own_path = fs::read_dir(root.path()).unwrap().next().unwrap();
    let own_name = own_path.unwrap().file_name().into_string().unwrap();
    let plant = |name: &str, lock: bool, process: Option<&ProcessIdentity>| {
        let path = root.path().join(name);
        fs::create_dir_all(path.join("config/projects")).unwrap();
        if lock {
            fs::write(path.join("lock"), "").unwrap();
        }
        if let Some(it) = process {
            fs::write(path.join("process"), serde_json::to_vec(it).unwrap()).unwrap();
        }
        path
    };
    let bystander = Bystander::start();
    let seen = bystander.identity();
    let reused = ProcessIdentity {
        start_time: seen.start_time - 1,
        ..bystander.identity()
    };
    let elsewhere = ProcessIdentity {
        boot_id: "another".to_owned(),
        ..bystander.identity()
    };
    let dead = format!("run-{}-{}-00000000", here.pid, here.start_time);
    plant(&format!("{dead}-1"), true, Some(&reused));
    plant(&format!("{dead}-2"), true, Some(&elsewhere));
    plant("run-999999999-1-00000000-3", true, None);
    let old = |path: PathBuf| {
        let long_ago = SystemTime::now() - Duration::from_secs(600);
        fs::File::open(&path)
            .unwrap()
            .set_modified(long_ago)
            .unwrap();
        path
    };
    old(plant(&format!("{dead}-6"), false, None));
    let kept = [
        // In the making, or of a worker that holds its lock but cannot be seen from here.
        plant(&format!("{dead}-4"), false, None),
        plant(&format!("{dead}-5"), true, None),
        plant("other", true, None),
        plant("run-1-2-3", true, None),
        // Of a living worker, whatever its lock says.
        old(plant(&format!("{own_name}9"), false, None)),
        plant(&format!("{own_name}8"), true, None),
    ];
    let held = fs::File::open(kept[1].join("lock")).unwrap();
    held.try_lock().unwrap();
    let report = sweep_leftovers(root.path(), LONG).unwrap();
    assert_eq!(
        (
            report.directories_removed,
            report.processes_ended,
            report.failures
        ),
        (4, 0, 0)
    );
    assert!(kept.iter().all(|it| it.exists()));
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), kept.len() + 1);
    assert!(seen.is_alive().unwrap());
    drop(living);
}

/// A work root that does not exist yet holds nothing to sweep.
#[test]
fn a_missing_work_root_is_swept() {
    let root = TempDir::new().unwrap();
    let report = sweep_leftovers(&root.path().join("none"), LONG).unwrap();
    assert_eq!(report, SweepReport::default());
}

#[test]
fn only_our_directory_names_are_read() {
    for name in [
        "run",
        "run-1",
        "run-1-2-b",
        "run-x-2-b-1",
        "run-1-2-b-x",
        "run-1-2-b-1-1",
    ] {
        assert_eq!(OwnerName::parse(name), None, "{name}");
    }
    assert!(OwnerName::parse("run-1-2-b-1").is_some());
}
