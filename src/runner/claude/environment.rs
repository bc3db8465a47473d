//! [`CliEnvironment`]: the variables of the CLI, one by one, never a copy of the worker's (G10).

use std::collections::BTreeMap;
use std::fmt;

/// The variables that the CLI process gets. Created by the application.
///
/// Nothing is inherited unless it is named, because the CLI hands its environment on to every
/// command that the model runs.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct CliEnvironment {
    variables: BTreeMap<String, String>,
}

/// What a program needs to find its home and speak the user's language.
const MINIMAL: [&str; 7] = ["PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ"];

/// What this crate sets, whatever the application says.
const OWNED: [(&str, &str); 4] = [
    ("CLAUDE_CODE_ENTRYPOINT", "abide"),
    // After a broken stream the CLI would ask without streaming, and a reply with two calls then
    // ignores a deferral (spec/cli-protocol.md 0.3).
    ("CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK", "1"),
    // A sub-agent in the background would start a turn of its own after the result (0.9).
    ("CLAUDE_CODE_DISABLE_BACKGROUND_TASKS", "1"),
    ("DISABLE_AUTOUPDATER", "1"),
];

/// What would break the conversation with the CLI, or hide its transcript, or belongs to the
/// launcher.
const REMOVED: [&str; 11] = [
    // Writes debug text between the frames (spec/cli-protocol.md 1).
    "ANTHROPIC_LOG",
    // A CLI that believes it runs inside another one writes no transcript.
    "CLAUDECODE",
    "CLAUDE_CODE_CHILD_SESSION",
    "CLAUDE_CODE_SESSION_ID",
    "CLAUDE_CODE_SDK_READS_SESSION_STATE",
    // Changes what a resume does (spec/cli-protocol.md 17).
    "CLAUDE_CODE_RESUME_INTERRUPTED_TURN",
    // Loads code into the CLI.
    "NODE_OPTIONS",
    // The launcher gives each process its own.
    "CLAUDE_CONFIG_DIR",
    "TMPDIR",
    "CLAUDE_CODE_TMPDIR",
    // Would let permission modes start that run calls unasked.
    "IS_SANDBOX",
];

const CONFIG_DIRECTORY: &str = "CLAUDE_CONFIG_DIR";
const LOGIN_DIRECTORY: &str = "CLAUDE_SECURESTORAGE_CONFIG_DIR";

impl CliEnvironment {
    /// Makes an empty environment.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// Takes PATH, HOME, USER, LOGNAME, LANG, LC_ALL and TZ from this process, as far as they are set.
    #[must_use]
    pub fn minimal() -> Self {
        MINIMAL
            .into_iter()
            .fold(Self::default(), |environment, name| {
                environment.inherit(name)
            })
    }

    /// Takes one variable from this process, if it is set there as text.
    #[must_use]
    pub fn inherit(mut self, name: &str) -> Self {
        if let Ok(value) = std::env::var(name) {
            self.variables.insert(name.to_owned(), value);
        }
        self
    }

    /// Sets one variable, such as `ANTHROPIC_API_KEY`.
    #[must_use]
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// Returns the environment of the CLI process: what is set, without what would break it, and
    /// with what this crate owns.
    ///
    /// The CLI gets a config directory of its own, so it is told where the stored login is: in the
    /// `CLAUDE_CONFIG_DIR` that is set here, or at the default place (A16), unless the application
    /// says otherwise (A17).
    pub(super) fn for_cli(&self) -> BTreeMap<String, String> {
        let mut variables = self.variables.clone();
        let config = variables.get(CONFIG_DIRECTORY).cloned();
        variables
            .entry(LOGIN_DIRECTORY.to_owned())
            .or_insert_with(|| config.unwrap_or_default());
        for name in REMOVED {
            variables.remove(name);
        }
        for (name, value) in OWNED {
            variables.insert(name.to_owned(), value.to_owned());
        }
        variables
    }
}

impl fmt::Debug for CliEnvironment {
    /// Shows the names only: values may be keys (G10).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_owned(variables: &[(&str, &str)]) -> BTreeMap<String, String> {
        OWNED
            .iter()
            .chain(variables)
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    /// A16, A17, R54: the login is found, what breaks the CLI is removed, what we own stays ours.
    #[test]
    fn the_environment_of_the_cli_is_built_variable_by_variable() {
        let environment = CliEnvironment::empty()
            .set("ANTHROPIC_API_KEY", "secret")
            .set("CLAUDECODE", "1")
            .set("CLAUDE_CODE_CHILD_SESSION", "1")
            .set("ANTHROPIC_LOG", "debug")
            .set("CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK", "0");
        assert_eq!(
            environment.for_cli(),
            with_owned(&[
                ("ANTHROPIC_API_KEY", "secret"),
                ("CLAUDE_SECURESTORAGE_CONFIG_DIR", ""),
            ])
        );
        assert_eq!(
            CliEnvironment::empty()
                .set("CLAUDE_CONFIG_DIR", "/login")
                .for_cli(),
            with_owned(&[("CLAUDE_SECURESTORAGE_CONFIG_DIR", "/login")])
        );
        assert_eq!(
            CliEnvironment::empty()
                .set("CLAUDE_CONFIG_DIR", "/login")
                .set("CLAUDE_SECURESTORAGE_CONFIG_DIR", "/own")
                .for_cli(),
            with_owned(&[("CLAUDE_SECURESTORAGE_CONFIG_DIR", "/own")])
        );
    }

    /// G10: values are never shown.
    #[test]
    fn debug_shows_names_only() {
        let environment = CliEnvironment::empty().set("ANTHROPIC_API_KEY", "sk-secret");
        assert_eq!(format!("{environment:?}"), r#"{"ANTHROPIC_API_KEY"}"#);
    }

    /// A18: only what is named comes from the worker.
    #[test]
    fn only_named_variables_are_inherited() {
        let minimal = CliEnvironment::minimal();
        assert!(
            minimal
                .variables
                .keys()
                .all(|it| MINIMAL.contains(&it.as_str()))
        );
        assert_eq!(
            CliEnvironment::empty().inherit("ABIDE_SURELY_NOT_SET"),
            CliEnvironment::empty()
        );
    }
}
