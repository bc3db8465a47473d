//! Checks a launch before anything runs, so that each refusal has its own error.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::{CliError, LaunchSpec};

/// Finds the program: a path as it is (a relative one from the worker's directory), a bare name
/// in the worker's `PATH`.
pub(super) fn resolve(program: &Path) -> Result<PathBuf, CliError> {
    let search = env::var_os("PATH").unwrap_or_default();
    resolve_in(program, env::split_paths(&search))
}

fn resolve_in(program: &Path, search: impl Iterator<Item = PathBuf>) -> Result<PathBuf, CliError> {
    let bare =
        program.components().count() == 1 && program.file_name() == Some(program.as_os_str());
    if !bare {
        return executable(program);
    }
    let mut refusal = None;
    // A relative entry would mean another program in every directory.
    for directory in search.filter(|it| it.is_absolute()) {
        match executable(&directory.join(program)) {
            Ok(found) => return Ok(found),
            Err(CliError::NotFound { .. }) => {}
            Err(it) => {
                refusal.get_or_insert(it);
            }
        }
    }
    Err(refusal.unwrap_or_else(|| not_found(program)))
}

fn executable(program: &Path) -> Result<PathBuf, CliError> {
    let metadata = match fs::metadata(program) {
        Ok(it) => it,
        Err(it) if it.kind() == io::ErrorKind::PermissionDenied => {
            return Err(not_executable(program, "its directory cannot be entered"));
        }
        Err(_) => return Err(not_found(program)),
    };
    if !metadata.is_file() {
        return Err(not_executable(program, "it is not a file"));
    }
    if access(program, Access::EXEC_OK).is_err() {
        return Err(not_executable(program, "permission denied"));
    }
    std::path::absolute(program).map_err(|source| CliError::Io {
        operation: "find the worker's directory",
        source,
    })
}

/// Refuses what the operating system could not pass on unchanged.
pub(super) fn check(spec: &LaunchSpec) -> Result<(), CliError> {
    let invalid = |reason| Err(CliError::InvalidLaunch { reason });
    let mut values = spec.arguments.iter().chain(spec.environment.values());
    if values.any(|it| it.contains('\0')) {
        return invalid("an argument or a variable holds a NUL");
    }
    let mut names = spec.environment.keys();
    if names.any(|it| it.is_empty() || it.contains(['\0', '='])) {
        return invalid("the name of a variable is empty or holds a NUL or `=`");
    }
    if spec
        .working_directory
        .as_os_str()
        .as_encoded_bytes()
        .contains(&0)
    {
        return invalid("the working directory holds a NUL");
    }
    if let Some(transcript) = &spec.transcript {
        let id = transcript.claude_session.as_str();
        if id.contains(['/', '\\']) || id.starts_with('.') {
            return invalid("the claude session id is no file name");
        }
        // Blanks between tokens may be line breaks, which would make two lines of one entry.
        let mut entries = transcript.entries.iter();
        if entries.any(|it| it.as_str().contains('\n')) {
            return invalid("a transcript entry spans several lines");
        }
    }
    Ok(())
}

/// Returns the real path of the working directory once it is known that it can be entered.
pub(super) fn working_directory(path: &Path) -> Result<PathBuf, CliError> {
    let real = fs::canonicalize(path).and_then(|real| {
        if !fs::metadata(&real)?.is_dir() {
            return Err(io::Error::from(io::ErrorKind::NotADirectory));
        }
        access(&real, Access::EXEC_OK)?;
        Ok(real)
    });
    real.map_err(|source| CliError::WorkingDirectory {
        path: path.display().to_string(),
        source,
    })
}

/// Names the error of a failed start; the program and the working directory were checked before.
pub(super) fn start_error(program: &Path, source: io::Error) -> CliError {
    match source.kind() {
        io::ErrorKind::NotFound => not_executable(program, "its interpreter is missing"),
        io::ErrorKind::PermissionDenied => not_executable(program, "permission denied"),
        io::ErrorKind::ArgumentListTooLong => CliError::InvalidLaunch {
            reason: "an argument is, or all of them with the environment are, too long",
        },
        _ if source.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error()) => {
            not_executable(program, "it is no program for this machine")
        }
        _ => CliError::Io {
            operation: "start the CLI",
            source,
        },
    }
}

fn not_found(program: &Path) -> CliError {
    CliError::NotFound {
        program: program.display().to_string(),
    }
}

fn not_executable(program: &Path, reason: &'static str) -> CliError {
    CliError::NotExecutable {
        program: program.display().to_string(),
        reason,
    }
}
