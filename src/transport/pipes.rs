//! The tasks at both narrow ends of a process: the queue into stdin and the tail of stderr.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{ChildStderr, ChildStdin};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::CliError;
use super::reaper::Phase;

/// How many bytes may wait for the CLI to read them: a prompt with images is a line of several
/// MiB, and a CLI that leaves 64 MiB unread is stuck.
pub(super) const INPUT_QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How much of stderr is kept: enough for a stack trace, too little to hurt.
pub(super) const STDERR_TAIL_BYTES_MAX: usize = 64 * 1024;

/// How much a pipe can hold without more rights (`/proc/sys/fs/pipe-max-size`), so that whoever
/// still writes into a dead CLI's pipe cannot keep us reading.
pub(super) const PIPE_BYTES_MAX: usize = 1024 * 1024;

const READ_BYTES: usize = 8 * 1024;

/// Lines on their way into the CLI. The task that writes them is aborted when this is dropped.
#[derive(Debug)]
pub(super) struct InputQueue {
    /// `None` after the host closed the input.
    lines: Option<mpsc::UnboundedSender<String>>,
    queued_bytes: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl InputQueue {
    pub(super) fn start(stdin: ChildStdin, phases: watch::Receiver<Phase>) -> Self {
        let (lines, queue) = mpsc::unbounded_channel();
        let queued_bytes = Arc::new(AtomicUsize::new(0));
        let task = tokio::spawn(write_lines(stdin, queue, Arc::clone(&queued_bytes), phases));
        Self {
            lines: Some(lines),
            queued_bytes,
            task,
        }
    }

    pub(super) fn send(&self, mut line: String) -> Result<(), CliError> {
        if line.contains('\n') {
            return Err(CliError::LineBreak);
        }
        let lines = self.lines.as_ref().ok_or(CliError::InputClosed)?;
        if lines.is_closed() {
            return Err(CliError::InputClosed);
        }
        line.push('\n');
        let bytes = line.len();
        let queued = self.queued_bytes.fetch_add(bytes, Ordering::AcqRel);
        if queued.saturating_add(bytes) > INPUT_QUEUE_BYTES_MAX {
            self.queued_bytes.fetch_sub(bytes, Ordering::AcqRel);
            return Err(CliError::InputQueueFull {
                limit: INPUT_QUEUE_BYTES_MAX,
            });
        }
        lines.send(line).map_err(|_| CliError::InputClosed)
    }

    /// Lets the task write what is queued and then close the pipe.
    pub(super) fn close(&mut self) {
        self.lines = None;
    }

    /// Waits for the task, which ends with the process.
    ///
    /// # Cancel safety
    /// A dropped call may be repeated.
    pub(super) async fn join(&mut self) {
        join(&mut self.task).await;
    }
}

impl Drop for InputQueue {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn write_lines(
    mut stdin: ChildStdin,
    mut queue: mpsc::UnboundedReceiver<String>,
    queued_bytes: Arc<AtomicUsize>,
    mut phases: watch::Receiver<Phase>,
) {
    let write = async {
        while let Some(line) = queue.recv().await {
            // An error is the CLI's closed end; the dropped queue tells the sender.
            if stdin.write_all(line.as_bytes()).await.is_err() {
                break;
            }
            queued_bytes.fetch_sub(line.len(), Ordering::AcqRel);
        }
    };
    tokio::select! {
        () = write => {}
        () = ended(&mut phases) => {}
    }
}

/// The last bytes of stderr. The task that reads them is aborted when this is dropped.
#[derive(Debug)]
pub(super) struct StderrTail {
    ring: Arc<Mutex<Ring>>,
    task: JoinHandle<()>,
}

impl StderrTail {
    pub(super) fn start(stderr: ChildStderr, phases: watch::Receiver<Phase>) -> Self {
        let ring = Arc::new(Mutex::new(Ring::new(STDERR_TAIL_BYTES_MAX)));
        let task = tokio::spawn(read_tail(stderr, Arc::clone(&ring), phases));
        Self { ring, task }
    }

    pub(super) fn text(&self) -> String {
        lock(&self.ring).text()
    }

    /// Waits until all is read that the process wrote before its end.
    ///
    /// # Cancel safety
    /// A dropped call may be repeated.
    pub(super) async fn join(&mut self) {
        join(&mut self.task).await;
    }
}

impl Drop for StderrTail {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn read_tail(
    mut stderr: ChildStderr,
    ring: Arc<Mutex<Ring>>,
    mut phases: watch::Receiver<Phase>,
) {
    let mut chunk = vec![0; READ_BYTES];
    loop {
        let read = tokio::select! {
            biased;
            () = ended(&mut phases) => break,
            read = stderr.read(&mut chunk) => read,
        };
        match read {
            Ok(0) | Err(_) => return,
            Ok(length) => lock(&ring).push(chunk.get(..length).unwrap_or_default()),
        }
    }
    let mut left = PIPE_BYTES_MAX;
    while let Some(length) = read_now(&stderr, &mut chunk) {
        lock(&ring).push(chunk.get(..length).unwrap_or_default());
        left = left.saturating_sub(length);
        if left == 0 {
            return;
        }
    }
}

/// Reads what is in a pipe already, or nothing: a descendant that holds a dead CLI's pipe open is
/// not waited for. The pipes are non-blocking since tokio took them.
pub(super) fn read_now(pipe: impl AsFd, into: &mut [u8]) -> Option<usize> {
    loop {
        match rustix::io::read(&pipe, &mut *into) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(0) | Err(_) => return None,
            Ok(length) => return Some(length),
        }
    }
}

/// Waits until the process is reaped.
pub(super) async fn ended(phases: &mut watch::Receiver<Phase>) {
    // An error: the sender is gone, which it only is after the end.
    let _ = phases.wait_for(|it| it.exit().is_some()).await;
}

async fn join(task: &mut JoinHandle<()>) {
    if !task.is_finished() {
        // An error is a task that was aborted with its runtime, which is as good as ended.
        let _ = task.await;
    }
}

fn lock(ring: &Mutex<Ring>) -> std::sync::MutexGuard<'_, Ring> {
    ring.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the last bytes.
#[derive(Debug)]
struct Ring {
    bytes: VecDeque<u8>,
    bytes_max: usize,
    cut: bool,
}

impl Ring {
    fn new(bytes_max: usize) -> Self {
        Self {
            bytes: VecDeque::new(),
            bytes_max,
            cut: false,
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let over = self.bytes.len().saturating_sub(self.bytes_max);
        self.bytes.drain(..over);
        self.cut |= over > 0;
    }

    fn text(&self) -> String {
        let bytes: Vec<u8> = self.bytes.iter().copied().collect();
        // A cut may fall inside a character: its rest is at most three continuation bytes.
        let broken = if self.cut {
            let head = bytes.iter().take(3);
            head.take_while(|it| **it & 0xc0 == 0x80).count()
        } else {
            0
        };
        String::from_utf8_lossy(bytes.get(broken..).unwrap_or_default()).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_keeps_the_last_bytes_and_whole_characters() {
        for (pushes, expected) in [
            (&["ab"][..], "ab"),
            (&["abcd", "ef"], "cdef"),
            (&["a", "öbc"], "aöbc".trim_start_matches('a')),
            (&["xöab", "c"], "abc"),
            (&["0123456789"], "6789"),
        ] {
            let mut ring = Ring::new(4);
            for it in pushes {
                ring.push(it.as_bytes());
            }
            assert_eq!(ring.text(), expected, "{pushes:?}");
        }
        let mut ring = Ring::new(4);
        ring.push(&[0x80, b'a']);
        assert_eq!(ring.text(), "\u{fffd}a");
    }
}
