//! Programs that are no CLI, in the place of one.

use std::os::unix::fs::PermissionsExt as _;

use abide::failure::FailureClass;

use super::*;

/// Reports R20 and R21: a program that ends before it reads anything, after one byte, or is not there
/// fails the attempt in its class, at once and with its last words.
#[tokio::test]
async fn a_program_that_exits_at_once_fails_in_its_class() {
    let world = World::fake();
    let script = |name: &str, text: &str| {
        let path = world.directory.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    };
    for (program, class, words) in [
        (
            "/bin/false".into(),
            FailureClass::CliFailed,
            "exit status 1",
        ),
        (
            script("one_byte", "printf x; echo 'out of order' >&2; exit 3"),
            FailureClass::CliFailed,
            "out of order",
        ),
        (
            world.directory.path().join("absent"),
            FailureClass::CliUnavailable,
            "absent",
        ),
    ] {
        let launcher =
            SubprocessLauncher::new(&program).with_work_root(world.directory.path().join("work"));
        let mut agent = Agent::new(&world);
        agent.runner = ClaudeAgentRunner::builder(world.options())
            .launcher(Arc::new(launcher))
            .build()
            .unwrap();
        agent.say("script: say hello");
        let failure = agent.segment(Vec::new()).await.end.unwrap_err();
        assert_eq!(failure.class, class, "{program:?}: {}", failure.detail);
        assert!(failure.detail.contains(words), "{}", failure.detail);
    }
}
