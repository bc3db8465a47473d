//! What goes in, what comes out, and what it may cost.

use super::*;

/// Lines go in and come out in order, a big one too, and the end of the input ends the process.
#[tokio::test]
async fn lines_pass_both_ways() {
    let bench = Bench::new();
    let mut process = bench.start("exec cat").await;
    let big = "ö".repeat(3_000_000);
    for it in ["one", "", &big, "last"] {
        process.send(it.to_owned()).unwrap();
    }
    process.close_input();
    assert!(matches!(
        process.send("late".to_owned()),
        Err(CliError::InputClosed)
    ));
    for it in ["one", "", &big, "last"] {
        assert!(line(&mut process).await.as_deref() == Some(it));
    }
    assert_eq!(line(&mut process).await, None);
    assert_eq!(process.shutdown(LONG).await, CliExit::Exited(0));
    assert_eq!(process.shutdown(LONG).await, CliExit::Exited(0));
    assert_eq!(line(&mut process).await, None);
}

/// A receive that is dropped at any moment loses nothing.
#[tokio::test]
async fn a_dropped_receive_loses_nothing() {
    let bench = Bench::new();
    let mut process = bench.start("exec cat").await;
    let mut received = Vec::new();
    for number in 0..200 {
        let text = format!("{number}-{}", "x".repeat(number * 997));
        process.send(text.clone()).unwrap();
        loop {
            let next = tokio::select! {
                biased;
                next = process.receive() => Some(next),
                () = tokio::task::yield_now() => None,
            };
            if let Some(next) = next {
                received.push(String::from_utf8(next.unwrap().unwrap()).unwrap());
                break;
            }
        }
        assert!(received.last() == Some(&text));
    }
}

#[tokio::test]
async fn a_line_with_a_break_is_refused_before_it_reaches_the_cli() {
    let bench = Bench::new();
    let mut process = bench.start("exec cat").await;
    assert!(matches!(
        process.send("{\n}".to_owned()),
        Err(CliError::LineBreak)
    ));
    process.send("whole".to_owned()).unwrap();
    assert_eq!(line(&mut process).await.unwrap(), "whole");
}

/// A cut last line is given to the caller, who finds that it is cut.
#[tokio::test]
async fn a_last_line_without_newline_is_a_line() {
    let bench = Bench::new();
    let mut process = bench.start("printf 'whole\\n{\"cut'; exit 3").await;
    assert_eq!(line(&mut process).await.unwrap(), "whole");
    assert_eq!(line(&mut process).await.unwrap(), "{\"cut");
    assert_eq!(line(&mut process).await, None);
    assert_eq!(process.shutdown(LONG).await, CliExit::Exited(3));
}

#[tokio::test]
async fn a_line_over_the_limit_ends_the_output() {
    let mut bench = Bench::new();
    bench.launcher = bench.launcher.with_line_bytes_max(5);
    let mut process = bench
        .start("echo 12345; echo 123456; echo ok; exec cat")
        .await;
    assert_eq!(line(&mut process).await.unwrap(), "12345");
    assert!(matches!(
        process.receive().await,
        Err(CliError::LineTooLong { limit: 5 })
    ));
    assert_eq!(line(&mut process).await, None);
}

/// Bytes that are no text are the decoder's business, not a panic.
#[tokio::test]
async fn bytes_that_are_no_text_pass() {
    let bench = Bench::new();
    let mut process = bench.start("printf 'a\\377\\n'; printf '\\377' >&2").await;
    assert_eq!(
        soon(process.receive()).await.unwrap(),
        Some(vec![b'a', 0xff])
    );
    process.shutdown(LONG).await;
    assert_eq!(process.stderr_tail(), "\u{fffd}");
}

/// A chatty stderr neither stops the process nor the lines, and only its end is kept.
#[tokio::test]
async fn a_flood_on_stderr_leaves_lines_and_a_tail() {
    let bench = Bench::new();
    let script = "head -c 3000000 /dev/zero | tr '\\0' x >&2; echo line; printf END >&2";
    let mut process = bench.start(script).await;
    assert_eq!(line(&mut process).await.unwrap(), "line");
    assert_eq!(process.shutdown(LONG).await, CliExit::Exited(0));
    let expected = format!("{}END", "x".repeat(64 * 1024 - 3));
    assert!(process.stderr_tail() == expected);
}

/// What nobody receives does not keep a process from ending by itself.
#[tokio::test]
async fn a_full_pipe_does_not_delay_a_shutdown() {
    let bench = Bench::new();
    let mut process = bench.start("head -c 3000000 /dev/zero; exit 7").await;
    assert_eq!(soon(process.shutdown(LONG * 2)).await, CliExit::Exited(7));
}

/// A CLI that closed its input is found by a later send.
#[tokio::test]
async fn a_send_to_a_closed_input_says_so() {
    let bench = Bench::new();
    let mut process = bench.start("exec 0<&-; echo closed; exec sleep 1000").await;
    assert_eq!(line(&mut process).await.unwrap(), "closed");
    let mut last = Ok(());
    eventually("an error", || {
        last = process.send("x".to_owned());
        last.is_err()
    })
    .await;
    assert!(matches!(last, Err(CliError::InputClosed)));
    assert_eq!(
        process.shutdown(Duration::ZERO).await,
        CliExit::Signalled(15)
    );
}

/// A CLI that stopped reading costs bounded memory.
#[tokio::test]
async fn a_queue_that_nobody_reads_is_bounded() {
    let bench = Bench::new();
    let mut process = bench.start("exec sleep 1000").await;
    let limit = pipes::INPUT_QUEUE_BYTES_MAX;
    assert!(matches!(
        process.send("x".repeat(limit)),
        Err(CliError::InputQueueFull { .. })
    ));
    process.send("x".repeat(limit - 1)).unwrap();
    assert!(matches!(
        process.send(String::new()),
        Err(CliError::InputQueueFull { limit: it }) if it == limit
    ));
}
