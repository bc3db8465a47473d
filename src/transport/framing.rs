//! Bytes in, lines out: the CLI's output is one JSON object per line (spec/cli-protocol.md 1).

use std::io::BufRead;

/// A buffer that grew beyond this for one long line is given back afterwards.
const KEPT_CAPACITY_BYTES: usize = 1024 * 1024;

/// Cuts a stream of bytes into lines, with a limit. How the stream is split into reads makes no
/// difference to the lines, and nothing is lost when a reader stops between two reads.
#[derive(Debug)]
pub(super) struct LineFramer {
    buffer: Vec<u8>,
    /// Where the next line starts. Invariant: `start <= scanned <= buffer.len()`.
    start: usize,
    /// Up to where no line end was found, so that a long line is searched once.
    scanned: usize,
    line_bytes_max: usize,
}

/// A line is longer than the limit; nothing behind it can be trusted to be a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LineTooLong;

impl LineFramer {
    pub(super) fn new(line_bytes_max: usize) -> Self {
        Self {
            buffer: Vec::new(),
            start: 0,
            scanned: 0,
            line_bytes_max,
        }
    }

    /// Returns the space to append the next bytes to; what is already there must stay.
    pub(super) fn space(&mut self) -> &mut Vec<u8> {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.scanned -= self.start;
            self.start = 0;
            if self.buffer.capacity() > KEPT_CAPACITY_BYTES
                && self.buffer.len() < KEPT_CAPACITY_BYTES
            {
                self.buffer.shrink_to(KEPT_CAPACITY_BYTES);
            }
        }
        &mut self.buffer
    }

    /// Returns the next complete line without its newline.
    pub(super) fn next_line(&mut self) -> Result<Option<Vec<u8>>, LineTooLong> {
        let mut rest = self.buffer.get(self.scanned..).unwrap_or_default();
        // `skip_until` is the standard library's fast search for one byte; reading from a slice
        // cannot fail.
        self.scanned += rest.skip_until(b'\n').unwrap_or(0);
        let line = self
            .buffer
            .get(self.start..self.scanned)
            .unwrap_or_default();
        let content = line.strip_suffix(b"\n");
        if content.unwrap_or(line).len() > self.line_bytes_max {
            return Err(LineTooLong);
        }
        let Some(content) = content else {
            return Ok(None);
        };
        let content = content.to_vec();
        self.start = self.scanned;
        Ok(Some(content))
    }

    /// Returns what stands behind the last newline once the stream has ended; asked after
    /// [`LineFramer::next_line`] returned `None`.
    pub(super) fn finish(&mut self) -> Option<Vec<u8>> {
        let rest = self.buffer.split_off(self.start);
        (self.buffer, self.start, self.scanned) = (Vec::new(), 0, 0);
        (!rest.is_empty()).then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(chunks: &[&[u8]], limit: usize) -> (Vec<Vec<u8>>, Option<LineTooLong>) {
        let mut framer = LineFramer::new(limit);
        let mut out = Vec::new();
        for chunk in chunks {
            framer.space().extend_from_slice(chunk);
            loop {
                match framer.next_line() {
                    Ok(Some(line)) => out.push(line),
                    Ok(None) => break,
                    Err(it) => return (out, Some(it)),
                }
            }
        }
        out.extend(framer.finish());
        (out, None)
    }

    /// R32: however the pipe splits the bytes, the lines are the same; a cut last line is one too.
    #[test]
    fn any_split_of_the_stream_gives_the_same_lines() {
        let stream = "a\n\nbö\r\n\u{1f600}cut".as_bytes();
        let expected = vec![
            b"a".to_vec(),
            Vec::new(),
            "bö\r".as_bytes().to_vec(),
            "\u{1f600}cut".as_bytes().to_vec(),
        ];
        assert_eq!(lines(&[stream], 64), (expected.clone(), None));
        for first in 0..=stream.len() {
            for second in first..=stream.len() {
                let split = [&stream[..first], &stream[first..second], &stream[second..]];
                assert_eq!(lines(&split, 64), (expected.clone(), None), "{split:?}");
            }
        }
        let single: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(lines(&single, 64), (expected, None));
    }

    /// The limit counts the line without its newline, and lines before a long one still come.
    #[test]
    fn a_line_over_the_limit_is_refused_at_any_split() {
        let exact = b"ok\n12345\n";
        let long = b"ok\n123456\nnever\n";
        let open = b"ok\n123456";
        for size in 1..=exact.len() {
            let chunks: Vec<&[u8]> = exact.chunks(size).collect();
            let expected = vec![b"ok".to_vec(), b"12345".to_vec()];
            assert_eq!(lines(&chunks, 5), (expected, None), "{size}");
        }
        for stream in [&long[..], &open[..]] {
            for size in 1..=stream.len() {
                let chunks: Vec<&[u8]> = stream.chunks(size).collect();
                let expected = (vec![b"ok".to_vec()], Some(LineTooLong));
                assert_eq!(lines(&chunks, 5), expected, "{size}");
            }
        }
    }

    #[test]
    fn the_memory_of_one_long_line_is_given_back() {
        let mut framer = LineFramer::new(usize::MAX);
        framer
            .space()
            .extend(std::iter::repeat_n(b'x', 3 * KEPT_CAPACITY_BYTES));
        framer.space().push(b'\n');
        let line = framer.next_line().unwrap().unwrap();
        assert_eq!(line.len(), 3 * KEPT_CAPACITY_BYTES);
        assert!(framer.space().capacity() <= KEPT_CAPACITY_BYTES);
        assert_eq!(framer.finish(), None);
    }

    #[test]
    fn an_empty_stream_has_no_lines() {
        assert_eq!(lines(&[], 5), (vec![], None));
        assert_eq!(lines(&[b""], 5), (vec![], None));
    }
}
