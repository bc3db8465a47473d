//! The pinned CLI binaries, and the closed environment in which tests run them.
//!
//! `fixtures/cli` pins two versions by a lock file. A test names a version and the directory of
//! its `Cargo.toml`; without the binary it is skipped aloud, unless [`REQUIRE_VARIABLE`] is set.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::{env, fmt};

/// The CLI versions that `fixtures/cli` pins, oldest first.
pub const PINNED_VERSIONS: [&str; 2] = ["2.1.316", "2.1.332"];

/// The environment variable that makes a missing CLI an error when it is `1`.
pub const REQUIRE_VARIABLE: &str = "ABIDE_REQUIRE_REAL_CLI";

/// An address that refuses connections, so that nothing but loopback can be reached.
const REFUSING_PROXY: &str = "http://127.0.0.1:9";

/// A CLI binary of a known version. Created by [`RealCli::find`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RealCli {
    version: String,
    program: PathBuf,
}

impl RealCli {
    /// Finds the binary of a version: by the variable `ABIDE_CLI_<version, dots as underscores>`,
    /// else in `fixtures/cli/node_modules` below `manifest_directory`.
    ///
    /// Returns `None`, after saying so on standard error, when there is none and none is required.
    ///
    /// # Errors
    ///
    /// [`RealCliError::NotAFile`] when the variable names something else than a file;
    /// [`RealCliError::Missing`] when there is none although [`REQUIRE_VARIABLE`] is `1`.
    pub fn find(version: &str, manifest_directory: &Path) -> Result<Option<Self>, RealCliError> {
        let variable = variable(version);
        let named = env::var_os(&variable).filter(|path| !path.is_empty());
        let required = env::var_os(REQUIRE_VARIABLE).is_some_and(|value| value == "1");
        let found = Self::locate(
            version,
            manifest_directory,
            named.map(PathBuf::from),
            required,
        )?;
        if found.is_none() {
            // Written past the test harness, which would keep it from the reader.
            let _ = writeln!(
                io::stderr(),
                "SKIPPED: no Claude Code CLI {version}; run npm ci in fixtures/cli or set {variable}"
            );
        }
        Ok(found)
    }

    /// Returns the version.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns the path of the binary.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    fn locate(
        version: &str,
        manifest_directory: &Path,
        named: Option<PathBuf>,
        required: bool,
    ) -> Result<Option<Self>, RealCliError> {
        let named_by_variable = named.is_some();
        let program = named.unwrap_or_else(|| pinned(version, manifest_directory));
        if program.is_file() {
            return Ok(Some(Self {
                version: version.to_owned(),
                program,
            }));
        }
        let variable = variable(version);
        if named_by_variable {
            return Err(RealCliError::NotAFile { variable, program });
        }
        if required {
            return Err(RealCliError::Missing { variable, program });
        }
        Ok(None)
    }
}

impl fmt::Display for RealCli {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claude Code CLI {}", self.version)
    }
}

/// Why a required CLI was not found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RealCliError {
    /// The variable names something that is not a file.
    #[error("{variable} names {program}, which is not a file", program = program.display())]
    NotAFile {
        /// The variable.
        variable: String,
        /// What it names.
        program: PathBuf,
    },
    /// A real CLI is required, and there is none.
    #[error("no CLI at {program}, and {variable} is not set", program = program.display())]
    Missing {
        /// The variable that could name it.
        variable: String,
        /// Where it was looked for.
        program: PathBuf,
    },
}

/// Returns the whole environment of a CLI that may talk to `api_base_url` and to nothing else.
///
/// Nothing is copied from this process. `CLAUDE_CONFIG_DIR` and `TMPDIR` are missing, because
/// whoever launches the CLI chooses them.
#[must_use]
pub fn isolated_environment(api_base_url: &str, home: &Path) -> BTreeMap<String, String> {
    let home = home.display().to_string();
    [
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("LANG", "C.UTF-8"),
        ("HOME", home.as_str()),
        ("ANTHROPIC_API_KEY", "dummy-key"),
        ("ANTHROPIC_BASE_URL", api_base_url),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
        ("DISABLE_AUTOUPDATER", "1"),
        ("HTTP_PROXY", REFUSING_PROXY),
        ("HTTPS_PROXY", REFUSING_PROXY),
        ("NO_PROXY", "127.0.0.1,localhost"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

fn variable(version: &str) -> String {
    format!("ABIDE_CLI_{}", version.replace('.', "_"))
}

fn pinned(version: &str, manifest_directory: &Path) -> PathBuf {
    let package = format!("cli-{}", version.replace('.', "-"));
    manifest_directory
        .join("fixtures/cli/node_modules")
        .join(package)
        .join("claude")
}
