//! Turns what SQLite says into what a store says, and our numbers into SQLite's.

use std::sync::Arc;

use rusqlite::types::ValueRef;
use rusqlite::{ErrorCode, Row};

use crate::ids::Timestamp;
use crate::store::StoreError;

/// Why a piece of SQL work ended early: a rule of the store, or SQLite itself.
#[derive(Debug)]
pub(super) enum Fault {
    Refused(StoreError),
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

impl Fault {
    pub(super) fn into_error(self, operation: &'static str) -> StoreError {
        match self {
            Self::Refused(error) => error,
            Self::Sqlite(error) => failed(operation, &Arc::new(error)),
        }
    }
}

/// Returns the error for work of which nothing holds.
pub(super) fn failed(operation: &'static str, error: &Arc<rusqlite::Error>) -> StoreError {
    let source = Box::new(Arc::clone(error));
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Busy { source },
        Some(ErrorCode::DiskFull) => StoreError::Full { source },
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::TooBig) => {
            StoreError::Corrupt {
                what: error.to_string(),
            }
        }
        // The codes are SQLite's, and every other one means the same to a caller.
        _ => StoreError::Backend { operation, source },
    }
}

/// Returns the error for a COMMIT that failed. SQLite writes the frames and syncs them there: when
/// it was refused before (busy) or while writing (full), nothing holds; a sync that failed may yet
/// have reached the disk.
pub(super) fn commit_failed(operation: &'static str, error: &Arc<rusqlite::Error>) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::DiskFull) => {
            failed(operation, error)
        }
        _ => StoreError::Ambiguous {
            operation,
            source: Box::new(Arc::clone(error)),
        },
    }
}

/// Converts a number for a column; SQLite has no unsigned 64-bit integers.
pub(super) fn column(number: u64) -> Result<i64, StoreError> {
    i64::try_from(number).map_err(|_| StoreError::Corrupt {
        what: format!("the number {number} is larger than this store can hold"),
    })
}

/// Reads a number that [`column()`] wrote.
pub(super) fn count(row: &Row<'_>, index: usize) -> rusqlite::Result<u64> {
    let stored: i64 = row.get(index)?;
    u64::try_from(stored).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(index, stored))
}

/// Reads a number that may be absent.
pub(super) fn optional_count(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<u64>> {
    match row.get_ref(index)? {
        ValueRef::Null => Ok(None),
        _ => count(row, index).map(Some),
    }
}

/// Converts a number that is only compared with stored ones.
pub(super) fn bound(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Converts a time for a column: one past SQLite's range becomes the end of the range, which
/// [`time_from_column`] gives back as the end of ours.
pub(super) fn time_column(time: Timestamp) -> i64 {
    bound(time.0)
}

/// Converts a time to the minute that it is looked up by.
pub(super) fn minute_column(time: Timestamp) -> i64 {
    time_column(time) / MINUTE_MILLIS
}

const MINUTE_MILLIS: i64 = 60_000;

pub(super) fn time_from_column(column: i64) -> Timestamp {
    match u64::try_from(column) {
        Ok(millis) if column < i64::MAX => Timestamp(millis),
        Ok(_) => Timestamp(u64::MAX),
        Err(_) => Timestamp(0),
    }
}
