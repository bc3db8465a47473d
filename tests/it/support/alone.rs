//! A test in a process of its own, because memory is counted by process.

/// Set for the process that runs one test alone.
const ALONE: &str = "ABIDE_TEST_ALONE";

/// True in the process that runs this test alone; otherwise it starts that process and waits until the
/// test has passed there.
pub(crate) async fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let alone = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env(ALONE, "1")
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&alone.stdout);
    assert!(alone.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
    false
}

/// The most memory that this process had so far, in kB.
pub(crate) fn peak_kilobytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|it| it.strip_prefix("VmHWM:"));
    let kilobytes = peak.unwrap().trim().trim_end_matches(" kB");
    kilobytes.parse().unwrap()
}
