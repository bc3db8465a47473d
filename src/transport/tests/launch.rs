//! What a process is started with, and what is refused.

use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

use super::*;

/// G10: the process gets its arguments, its environment and nothing of the worker's, and its own
/// directories over what the specification says.
#[tokio::test]
async fn a_process_gets_what_the_specification_says_and_its_own_directories() {
    let bench = Bench::new();
    let work = fs::canonicalize(bench.root.path()).unwrap();
    let mut spec = spec(
        "pwd; env; stat -c %a \"$TMPDIR/..\" \"$TMPDIR\" \"$CLAUDE_CONFIG_DIR\"; echo done; read x",
    );
    spec.working_directory = work.clone();
    spec.environment.insert("A".to_owned(), "b c".to_owned());
    spec.environment.insert("TMPDIR".to_owned(), "/".to_owned());
    let mut process = bench.launcher.launch(spec).await.unwrap();
    assert_eq!(line(&mut process).await, Some(work.display().to_string()));
    let mut got = Vec::new();
    while got.last().is_none_or(|it| it != "done") {
        got.push(line(&mut process).await.unwrap());
    }
    got.pop();
    let directories = bench.directories();
    let [directory] = &directories[..] else {
        panic!("{directories:?}");
    };
    let directory = directory.display();
    let modes = got.split_off(got.len() - 3);
    assert_eq!(modes, ["700", "700", "700"]);
    // The shell's own.
    got.retain(|it| {
        !["PWD=", "SHLVL=", "_=", "OLDPWD="]
            .iter()
            .any(|own| it.starts_with(own))
    });
    got.sort();
    let expected = [
        "A=b c".to_owned(),
        format!("CLAUDE_CODE_TMPDIR={directory}/tmp"),
        format!("CLAUDE_CONFIG_DIR={directory}/config"),
        "PATH=/usr/bin:/bin".to_owned(),
        format!("TMPDIR={directory}/tmp"),
    ];
    assert_eq!(got, expected);
    process.send(String::new()).unwrap();
    assert_eq!(process.shutdown(LONG).await, CliExit::Exited(0));
    assert_eq!(bench.directories(), Vec::<PathBuf>::new());
}

/// G11, I02: the CLI finds the transcript under the key of its real directory, byte for byte.
#[tokio::test]
async fn the_transcript_lies_where_the_cli_looks_for_it() {
    let bench = Bench::new();
    let work = bench.root.path().join("real dir");
    fs::create_dir(&work).unwrap();
    let link = bench.root.path().join("link");
    std::os::unix::fs::symlink(&work, &link).unwrap();
    let texts = [r#"{"b":1e2,"a":"\u00e4\/"}"#, r#"{"lone":"\ud83d"}"#];
    let mut spec = spec("cd $CLAUDE_CONFIG_DIR/projects/*; pwd; stat -c '%a %n' *; cat *");
    spec.working_directory = link;
    spec.transcript = Some(ResumedTranscript::new(
        ClaudeSessionId::new("3f-1").unwrap(),
        texts
            .map(|it| TranscriptEntry::from_text(it.to_owned()).unwrap())
            .into(),
    ));
    let mut process = bench.launcher.launch(spec).await.unwrap();
    let path = line(&mut process).await.unwrap();
    let key = project_key::project_key(&fs::canonicalize(&work).unwrap());
    assert_eq!(path.rsplit('/').next(), Some(&key[..]));
    assert_eq!(line(&mut process).await.unwrap(), "600 3f-1.jsonl");
    assert_eq!(line(&mut process).await.unwrap(), texts[0]);
    assert_eq!(line(&mut process).await.unwrap(), texts[1]);
    assert_eq!(line(&mut process).await, None);
}

/// G14: a launch that is dropped at any of its waits leaves no process and no directory.
#[test]
fn a_dropped_launch_leaves_nothing() {
    let bench = Bench::new();
    // One blocking thread does the work in order, so that the last launch comes behind all others.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        // The steps are far smaller than the time a start takes, so each wait is met.
        for step in 0..100 {
            let launch = bench.launcher.launch(spec("exec sleep 1000"));
            tokio::pin!(launch);
            let until = Instant::now() + step * Duration::from_micros(30);
            while Instant::now() < until {
                tokio::select! {
                    biased;
                    _ = &mut launch => break,
                    () = tokio::task::yield_now() => {}
                }
            }
        }
        let mut last = bench.start("exec cat").await;
        last.close_input();
        assert_eq!(last.shutdown(LONG).await, CliExit::Exited(0));
        eventually("the removals", || bench.directories().is_empty()).await;
    });
}

/// Each way a program cannot be started has its own error, and leaves nothing.
#[tokio::test]
async fn a_program_that_cannot_run_is_refused_by_kind() {
    let bench = Bench::new();
    let files = TempDir::new().unwrap();
    let file = |name: &str, text: &str, mode| {
        let path = files.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    let plain = file("plain", "#!/bin/sh\n", 0o644);
    let orphan = file("orphan", "#!/no/such/interpreter\n", 0o755);
    let missing = files.path().join("missing");
    for (program, expected) in [
        (missing, None),
        (PathBuf::from("abide-no-such-program"), None),
        (files.path().to_owned(), Some("it is not a file")),
        (plain.clone(), Some("permission denied")),
        (plain.join("below"), None),
        (orphan, Some("its interpreter is missing")),
    ] {
        let launcher = SubprocessLauncher::new(&program).with_work_root(bench.root.path());
        let error = launcher.launch(spec("")).await.unwrap_err();
        let got = match &error {
            CliError::NotFound { program: it } => (it, None),
            CliError::NotExecutable {
                program: it,
                reason,
            } => (it, Some(*reason)),
            _ => panic!("{error:?}"),
        };
        assert_eq!(got, (&program.display().to_string(), expected));
    }
    let bare = SubprocessLauncher::new("sh").with_work_root(bench.root.path());
    let mut found = bare.launch(spec("echo here")).await.unwrap();
    assert_eq!(line(&mut found).await.unwrap(), "here");
    drop(found);
    eventually("the removals", || bench.directories().is_empty()).await;
}

#[tokio::test]
async fn a_working_directory_that_cannot_be_used_is_named() {
    let bench = Bench::new();
    let file = bench.root.path().join("file");
    fs::write(&file, "").unwrap();
    for (path, kind) in [
        (bench.root.path().join("none"), std::io::ErrorKind::NotFound),
        (file, std::io::ErrorKind::NotADirectory),
    ] {
        let mut spec = spec("");
        spec.working_directory = path.clone();
        match bench.launcher.launch(spec).await.unwrap_err() {
            CliError::WorkingDirectory { path: it, source } => {
                assert_eq!((it, source.kind()), (path.display().to_string(), kind));
            }
            it => panic!("{it:?}"),
        }
    }
}

/// What the operating system could not pass on, or what would leave the directory, is refused.
#[tokio::test]
async fn an_impossible_specification_is_refused() {
    let bench = Bench::new();
    let entry = |text: &str| vec![TranscriptEntry::from_text(text.to_owned()).unwrap()];
    let argument = |text: &str| LaunchSpec::new(vec![text.to_owned()], BTreeMap::new(), "/".into());
    let variable = |name: &str, value: &str| {
        let mut spec = spec("");
        spec.environment.insert(name.to_owned(), value.to_owned());
        spec
    };
    let resumed = |id: &str, text: &str| {
        let mut spec = spec("");
        let id = ClaudeSessionId::new(id).unwrap();
        spec.transcript = Some(ResumedTranscript::new(id, entry(text)));
        spec
    };
    let value = "an argument or a variable holds a NUL";
    let name = "the name of a variable is empty or holds a NUL or `=`";
    let id = "the claude session id is no file name";
    for (spec, expected) in [
        (argument("a\0b"), value),
        (variable("A", "a\0b"), value),
        (variable("A\0", "b"), name),
        (variable("A=", "b"), name),
        (variable("", "b"), name),
        (resumed("../x", "{}"), id),
        (resumed("..", "{}"), id),
        (resumed("a/b", "{}"), id),
        (resumed("a\\b", "{}"), id),
        (
            resumed("a", "{\n}"),
            "a transcript entry spans several lines",
        ),
        (
            argument(&"x".repeat(200 * 1024)),
            "an argument is, or all of them with the environment are, too long",
        ),
    ] {
        match bench.launcher.launch(spec).await.unwrap_err() {
            CliError::InvalidLaunch { reason } => assert_eq!(reason, expected),
            it => panic!("{it:?}"),
        }
    }
    eventually("the removals", || bench.directories().is_empty()).await;
}
