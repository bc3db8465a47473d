//! Decoding the CLI's output: bytes in, frames out.
//!
//! Measured: cutting a stream into lines at its newlines and [`decode_line`] on each, on one thread,
//! from memory. Not measured: reading the pipe, and what the segment machine does with the frames.
//!
//! The lines are the capture `inline_two_parallel` of CLI 2.1.316: one whole segment with two tool
//! calls, 45 lines of 655 bytes on average: 18 stream events (6 of them deltas), 5 mirrors with 38 %
//! of the bytes, 7 questions of the CLI (hooks and tool server), 5 messages, the result. A long
//! answer has a larger share of short deltas and is faster per line.
//!
//! The raw twin cuts at the same newlines and has `serde_json` check each line without keeping
//! anything of it: no host can tell what a line is for less.

use std::hint::black_box;
use std::time::{Duration, Instant};

use abide::protocol::decode_line;
use serde::de::IgnoredAny;

use crate::report::{Effort, Figure, Group, quantile};

pub(crate) const GROUP: Group = Group {
    names: &[
        "decode_lines_per_s",
        "decode_lines_raw_per_s",
        "decode_mb_per_s",
        "decode_mb_raw_per_s",
    ],
    run,
};

const CAPTURE: &str = include_str!("../../fixtures/lines/2.1.316/inline_two_parallel.jsonl");

fn run(effort: Effort) -> Vec<Figure> {
    let copies = effort.pick(500, 2);
    let stream = CAPTURE.repeat(copies).into_bytes();
    let lines = CAPTURE.lines().count() * copies;
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    for _ in 0..effort.pick(30, 1) {
        ours.push(seconds(|| decode(&stream)));
        raw.push(seconds(|| check(&stream)));
    }
    let (ours, raw) = (quantile(&mut ours, 0.5), quantile(&mut raw, 0.5));
    let megabytes = stream.len() as f64 / 1e6;
    vec![
        Figure::new("decode_lines_per_s", lines as f64 / ours, "lines/s"),
        Figure::new("decode_lines_raw_per_s", lines as f64 / raw, "lines/s"),
        Figure::new("decode_mb_per_s", megabytes / ours, "MB/s"),
        Figure::new("decode_mb_raw_per_s", megabytes / raw, "MB/s"),
    ]
}

fn decode(stream: &[u8]) {
    for line in lines(stream) {
        black_box(decode_line(line).expect("the capture can be read"));
    }
}

fn check(stream: &[u8]) {
    for line in lines(stream) {
        black_box(serde_json::from_slice::<IgnoredAny>(line).expect("the capture is JSON"));
    }
}

fn lines(stream: &[u8]) -> impl Iterator<Item = &[u8]> {
    stream
        .split(|it| *it == b'\n')
        .filter(|line| !line.is_empty())
}

fn seconds(work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    Duration::as_secs_f64(&begun.elapsed())
}
