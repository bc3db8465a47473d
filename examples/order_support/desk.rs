//! The outside world of the example: an order desk whose book is a file that is only appended to.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Orders, and what was done to them.
#[derive(Debug, Clone)]
pub(crate) struct OrderDesk {
    book: PathBuf,
}

impl OrderDesk {
    /// Opens the desk whose book lies at this path.
    pub(crate) fn open(book: &Path) -> Self {
        Self {
            book: book.to_owned(),
        }
    }

    /// Says what the desk knows about an order. Changes nothing.
    pub(crate) fn describe(&self, order_id: &str) -> io::Result<String> {
        let entries = match std::fs::read_to_string(&self.book) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let cancelled = format!("cancelled {order_id}: ");
        Ok(
            match entries
                .lines()
                .find_map(|line| line.strip_prefix(&cancelled))
            {
                Some(reason) => format!("order {order_id}: cancelled ({reason})"),
                None => format!("order {order_id}: one espresso machine, paid, not yet shipped"),
            },
        )
    }

    /// Cancels an order: one line in the book, on the disk before this returns. Done twice, it is
    /// there twice.
    pub(crate) fn cancel(&self, order_id: &str, reason: &str) -> io::Result<String> {
        let mut book: File = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.book)?;
        writeln!(book, "cancelled {order_id}: {}", reason.replace('\n', " "))?;
        book.sync_all()?;
        Ok(format!(
            "order {order_id} is cancelled, the refund is on its way"
        ))
    }
}
