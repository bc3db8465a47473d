//! The file: how it is opened, what it says about its format, and its tables.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use super::failure::{Fault, failed};
use super::migration;
use super::place::unusable;
use crate::store::StoreError;

/// Opens the file, makes the tables in an empty one, and checks that it is ours and not newer.
pub(super) fn open_or_create(path: &Path, busy_wait: Duration) -> Result<Connection, StoreError> {
    create_private(path)?;
    let mut connection = open(path, busy_wait)?;
    prepare(&mut connection, busy_wait).map_err(|it| opening_failed(path, it))?;
    Ok(connection)
}

/// Makes a missing file readable for its owner alone, since it will hold conversations; SQLite gives
/// the log the same mode. An empty file is an empty database.
fn create_private(path: &Path) -> Result<(), StoreError> {
    let created = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    match created {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(unusable(path, error.to_string())),
    }
}

/// Opens another connection to a file that [`open_or_create`] has seen.
pub(super) fn open(path: &Path, busy_wait: Duration) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_EXRESCODE;
    let connect = || -> Result<Connection, Fault> {
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(busy_wait)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        // Otherwise a statement that could use another plan for other values is compiled again
        // whenever its values are bound.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        // A commit that returned survives the machine: the log is synced at each one.
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "journal_size_limit", LOG_BYTES_KEPT)?;
        Ok(connection)
    };
    connect().map_err(|it| opening_failed(path, it))
}

/// Returns the format of the file; zero before its tables are made.
pub(super) fn format(connection: &Connection) -> rusqlite::Result<u32> {
    connection
        .prepare_cached("PRAGMA user_version")?
        .query_row([], |row| row.get(0))
}

pub(super) fn too_new(found: u32) -> StoreError {
    StoreError::TooNew {
        what: "the SQLite file",
        found,
        supported: FORMAT,
    }
}

fn prepare(connection: &mut Connection, busy_wait: Duration) -> Result<(), Fault> {
    // Asked first, before anything is written to a file that may be somebody else's.
    check_format(connection)?;
    if connection.is_readonly("main")? {
        return Err(Fault::Refused(unusable(
            Path::new(connection.path().unwrap_or_default()),
            "it is read-only",
        )));
    }
    // Heeded by a new file only.
    connection.pragma_update(None, "page_size", PAGE_BYTES)?;
    enter_wal_mode(connection, busy_wait)?;
    // Two processes may create the file at once; the second one finds the tables.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let contents = check_format(&transaction)?;
    match contents {
        Contents::Empty => {
            transaction.execute_batch(TABLES)?;
            transaction.pragma_update(None, "application_id", APPLICATION)?;
        }
        Contents::Ours(from) => migration::migrate(&transaction, from)?,
    }
    if contents != Contents::Ours(FORMAT) {
        transaction.pragma_update(None, "user_version", FORMAT)?;
    }
    transaction.commit()?;
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum Contents {
    Empty,
    /// Of this format.
    Ours(u32),
}

fn check_format(connection: &Connection) -> Result<Contents, Fault> {
    let application: i32 =
        connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let format = format(connection)?;
    let tables: u32 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if application == 0 && format == 0 && tables == 0 {
        Ok(Contents::Empty)
    } else if application != APPLICATION || format == 0 {
        Err(Fault::Refused(StoreError::Corrupt {
            what: "it is another application's SQLite file".to_owned(),
        }))
    } else if format > FORMAT {
        Err(Fault::Refused(too_new(format)))
    } else {
        Ok(Contents::Ours(format))
    }
}

/// Switches a new file to write-ahead logging. SQLite does not wait for other connections here.
fn enter_wal_mode(connection: &Connection, busy_wait: Duration) -> Result<(), Fault> {
    let begun = Instant::now();
    loop {
        let answer = connection.query_row("PRAGMA journal_mode = WAL", [], |row| {
            row.get::<_, String>(0)
        });
        match answer {
            Ok(mode) if mode == "wal" => return Ok(()),
            Ok(mode) => {
                return Err(Fault::Refused(unusable(
                    Path::new(connection.path().unwrap_or_default()),
                    format!("it does not take write-ahead logging, its journal mode is {mode}"),
                )));
            }
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && begun.elapsed() < busy_wait =>
            {
                std::thread::sleep(WAL_RETRY);
            }
            Err(error) => return Err(Fault::Sqlite(error)),
        }
    }
}

/// What cannot be opened or written while opening is a matter of the place, not of a call.
fn opening_failed(path: &Path, fault: Fault) -> StoreError {
    match fault {
        Fault::Refused(error) => error,
        Fault::Sqlite(error) => match error.sqlite_error_code() {
            Some(
                ErrorCode::CannotOpen
                | ErrorCode::ReadOnly
                | ErrorCode::PermissionDenied
                | ErrorCode::SystemIoFailure,
            ) => unusable(path, error.to_string()),
            _ => failed("open the file", &Arc::new(error)),
        },
    }
}

/// "abid": which application the file belongs to.
const APPLICATION: i32 = i32::from_be_bytes(*b"abid");
/// The format that this version writes, and the newest that it reads.
pub(super) const FORMAT: u32 = 3;
/// Every statement of this module fits, so none is compiled twice.
const STATEMENTS_MAX: usize = 64;
/// A packed chunk is a kilobyte or two: of smaller pages a large part would stay empty.
const PAGE_BYTES: u32 = 8192;
/// How large the log may stay once it was written back: enough for it not to shrink and grow.
const LOG_BYTES_KEPT: u32 = 64 << 20;
/// Small beside the milliseconds that another process needs to create the file.
const WAL_RETRY: Duration = Duration::from_millis(5);

// `number` stands for the session's id in the other tables, whose keys stay short by it.
// A value has its codec beside it, and several events may share one: see `values`.
// State and values lie apart from what is listed, so that a list reads few pages.
// What sessions and interrupts are listed by lies in indexes; `updated_minute` is `updated_at` as coarse
// as it is looked up by, so that not every commit touches that index.
// `change_seq` rises with every writing transaction, `change_by` says which store wrote it.
const TABLES: &str = "
CREATE TABLE sessions (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    revision INTEGER NOT NULL,
    head INTEGER,
    last_cursor INTEGER NOT NULL,
    lease_epoch INTEGER NOT NULL,
    lease_worker TEXT,
    change_seq INTEGER NOT NULL,
    change_by INTEGER NOT NULL,
    flow_type TEXT,
    status TEXT NOT NULL,
    tenant TEXT,
    metadata TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    due_at INTEGER,
    step TEXT,
    updated_minute INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX sessions_by_flow_type ON sessions (flow_type, id);
CREATE INDEX sessions_by_status ON sessions (status, id);
CREATE INDEX sessions_by_tenant ON sessions (tenant, id) WHERE tenant IS NOT NULL;
CREATE INDEX sessions_by_due_at ON sessions (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX sessions_by_lease ON sessions (lease_worker) WHERE lease_worker IS NOT NULL;
CREATE INDEX sessions_by_change ON sessions (change_seq);
CREATE INDEX sessions_by_step ON sessions (step, id) WHERE step IS NOT NULL;
CREATE INDEX sessions_by_created_at ON sessions (created_at);
CREATE INDEX sessions_by_updated_minute ON sessions (updated_minute);

CREATE TABLE session_metadata (
    session INTEGER NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    session_id TEXT NOT NULL,
    PRIMARY KEY (session, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX session_metadata_by_value ON session_metadata (key, value, session_id);

CREATE TABLE interrupts (
    session INTEGER NOT NULL,
    id TEXT NOT NULL,
    requested_at INTEGER NOT NULL,
    session_id TEXT NOT NULL,
    flow_type TEXT,
    tenant TEXT,
    expires_at INTEGER,
    shown TEXT NOT NULL,
    PRIMARY KEY (session, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX interrupts_by_age ON interrupts (requested_at, session_id, id);
CREATE INDEX interrupts_by_flow_type ON interrupts (flow_type, requested_at, session_id, id);
CREATE INDEX interrupts_by_tenant ON interrupts (tenant, requested_at, session_id, id)
    WHERE tenant IS NOT NULL;
CREATE INDEX interrupts_by_end ON interrupts (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE deleted_sessions (
    id TEXT PRIMARY KEY,
    revision INTEGER NOT NULL,
    lease_epoch INTEGER NOT NULL,
    change_seq INTEGER NOT NULL,
    change_by INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX deleted_sessions_by_change ON deleted_sessions (change_seq);

CREATE TABLE states (
    session INTEGER PRIMARY KEY,
    state BLOB NOT NULL
) STRICT;

CREATE TABLE chunks (
    session INTEGER NOT NULL,
    id INTEGER NOT NULL,
    parent INTEGER,
    messages INTEGER NOT NULL,
    codec INTEGER NOT NULL,
    raw_bytes INTEGER NOT NULL,
    bytes BLOB NOT NULL,
    PRIMARY KEY (session, id)
) STRICT;

CREATE TABLE rows (
    session INTEGER NOT NULL,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    codec INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (session, kind, key)
) STRICT;

CREATE TABLE events (
    session INTEGER NOT NULL,
    cursor INTEGER NOT NULL,
    bytes BLOB NOT NULL,
    codec INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (session, cursor)
) STRICT, WITHOUT ROWID;

CREATE TABLE workers (
    id TEXT PRIMARY KEY,
    process_id INTEGER NOT NULL,
    start_time INTEGER NOT NULL,
    boot_id TEXT NOT NULL,
    pid_namespace INTEGER NOT NULL,
    heartbeat INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
";
