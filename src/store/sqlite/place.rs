//! Where a database may lie: a directory that is there, on a file system of this machine.

use std::io;
use std::path::Path;

use crate::store::StoreError;

/// Refuses what SQLite would only refuse with "unable to open database file", and network file
/// systems, on which neither its locks nor its shared memory can be trusted.
pub(super) fn check(path: &Path) -> Result<(), StoreError> {
    if path.is_dir() {
        return Err(unusable(path, "it is a directory"));
    }
    let Some(directory) = path.parent().filter(|it| it.is_dir()) else {
        return Err(unusable(path, "its directory does not exist"));
    };
    // A file that is there may be a link to another file system than its directory's.
    let asked = if path.exists() { path } else { directory };
    let file_system =
        rustix::fs::statfs(asked).map_err(|it| unusable(path, io::Error::from(it).to_string()))?;
    // The kernel's constants are 32 bits wide, whatever the width and sign of the field.
    let kind = file_system.f_type as u64 & 0xffff_ffff;
    match NETWORK_FILE_SYSTEMS.iter().find(|it| it.0 == kind) {
        Some((_, name)) => Err(unusable(
            path,
            format!("it is on {name}, a network file system"),
        )),
        None => Ok(()),
    }
}

pub(super) fn unusable(path: &Path, reason: impl Into<String>) -> StoreError {
    StoreError::Unusable {
        location: path.display().to_string(),
        reason: reason.into(),
    }
}

/// `f_type` values of statfs(2). FUSE and 9p are not among them: both also stand for file systems
/// of one machine, and `f_type` cannot tell.
const NETWORK_FILE_SYSTEMS: [(u64, &str); 9] = [
    (0x0000_6969, "NFS"),
    (0x0000_517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x7375_7245, "Coda"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
];
