//! The tool server answers late, the handshake too, on each real CLI: the prompt is there long before.

use std::collections::VecDeque;
use std::time::Duration;

use abide::transport::{CliError, CliExit, CliProcess, LaunchSpec};
use async_trait::async_trait;
use tokio::time::Instant;

use super::*;

/// How late each answer of the tool server is: the CLI has had its prompt for long by then.
const LATE_BY: Duration = Duration::from_millis(700);

/// Makes every answer of the tool server late.
#[derive(Debug)]
struct Late {
    inner: Arc<dyn CliLauncher>,
    answers: Arc<Mutex<usize>>,
}

#[async_trait]
impl CliLauncher for Late {
    async fn launch(&self, spec: LaunchSpec) -> Result<Box<dyn CliProcess>, CliError> {
        Ok(Box::new(LateProcess {
            inner: self.inner.launch(spec).await?,
            waiting: VecDeque::new(),
            answers: Arc::clone(&self.answers),
        }))
    }
}

#[derive(Debug)]
struct LateProcess {
    inner: Box<dyn CliProcess>,
    waiting: VecDeque<(Instant, String)>,
    answers: Arc<Mutex<usize>>,
}

#[async_trait]
impl CliProcess for LateProcess {
    fn process_id(&self) -> Option<u32> {
        self.inner.process_id()
    }

    fn send(&mut self, line: String) -> Result<(), CliError> {
        if line.contains("mcp_response") {
            *self.answers.lock().unwrap() += 1;
            self.waiting.push_back((Instant::now() + LATE_BY, line));
            return Ok(());
        }
        self.inner.send(line)
    }

    async fn receive(&mut self) -> Result<Option<Vec<u8>>, CliError> {
        while let Some((due, _)) = self.waiting.front() {
            tokio::select! {
                line = self.inner.receive() => return line,
                // sleeps because slowness is what is tested
                () = tokio::time::sleep_until(*due) => {}
            }
            let due = self.waiting.pop_front();
            due.map_or(Ok(()), |(_, line)| self.inner.send(line))?;
        }
        self.inner.receive().await
    }

    fn close_input(&mut self) {
        self.inner.close_input();
    }

    async fn shutdown(&mut self, grace: Duration) -> CliExit {
        self.inner.shutdown(grace).await
    }

    fn stderr_tail(&self) -> String {
        self.inner.stderr_tail()
    }
}

async fn a_late_handshake_changes_nothing(version: &str) {
    let Some(mut world) = World::real(version).await else {
        return;
    };
    let answers = Arc::new(Mutex::new(0));
    world.launch_through(|inner| Late {
        inner,
        answers: Arc::clone(&answers),
    });
    let mut agent = Agent::new(&world);
    let read = r#"script: call look_up {"order_id":"7"}"#;
    assert_eq!(agent.turn(read).await, "look_up: order 7 is paid");
    let write = r#"script: call refund {"order_id":"7"}"#;
    let call = agent.turn_to_call(write).await;
    let segment = agent.resume(&call, succeeded("done")).await;
    assert_eq!(agent.complete(segment), "refund: done");
    assert_eq!(agent.desk.runs(), ["look_up 7"]);
    // Two requests and a notification of each process, a read and a replay.
    assert_eq!(*answers.lock().unwrap(), 3 * 3 + 2);
    world.assert_clean();
}

/// R16: on CLI 2.1.316.
#[tokio::test]
async fn a_late_handshake_changes_nothing_on_cli_2_1_316() {
    a_late_handshake_changes_nothing("2.1.316").await;
}

/// R16: on CLI 2.1.332.
#[tokio::test]
async fn a_late_handshake_changes_nothing_on_cli_2_1_332() {
    a_late_handshake_changes_nothing("2.1.332").await;
}
