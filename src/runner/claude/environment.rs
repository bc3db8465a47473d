//! [`CliEnvironment`]: the variables of the CLI, one by one, never a copy of the worker's (G10).
//!
//! # Credentials
//!
//! | credential | how it reaches the CLI |
//! | --- | --- |
//! | API key, or a provider's variables | set or inherited by name; wins over a stored login |
//! | a long-lived token | `CLAUDE_CODE_OAUTH_TOKEN`, the same way |
//! | a key that a command gives | the option `api_key_helper`; those in settings files are not read |
//! | the login that `claude` stored | `.credentials.json`, found as below |
//!
//! Each process has a `CLAUDE_CONFIG_DIR` of its own, from the first segment on. The CLI looks for
//! `.credentials.json` in `CLAUDE_SECURESTORAGE_CONFIG_DIR`; when that is set and empty, in
//! `$HOME/.claude`; and only when it is not set at all, in `CLAUDE_CONFIG_DIR`. So it is always set
//! here (A16, A17), and `HOME` must be inherited for a login at the default place. Nothing else of
//! the login is needed, and a stored login without a refresh token is used as it is. The CLI writes
//! a refreshed token where it found the old one. Measured on CLI 2.1.316 and 2.1.332; the test
//! `a_stored_login_is_found_from_every_segment` keeps it.

mod names;

use std::collections::BTreeMap;
use std::fmt;

use names::KEPT;

/// The variables that the CLI process gets. Created by the application.
///
/// Nothing is inherited unless it is named, because the CLI hands its environment on to every
/// command that the model runs.
///
/// Some variables are left out whatever is set here, because they could change how the CLI talks to
/// the runner, decides about calls or resumes a session, or load plugins, settings or code into it:
/// `NODE_OPTIONS`, `BUN_OPTIONS`, `BUN_INSPECT`, `IS_SANDBOX`, `TMPDIR`, and everything that begins
/// with `CLAUDE` or `ANTHROPIC` and is not known to be harmless. Handed on are credentials and
/// providers (`ANTHROPIC_*`, `CLAUDE_CODE_USE_*`, `CLAUDE_CODE_SKIP_*_AUTH`, `CLAUDE_CODE_OAUTH_*`),
/// models, certificates, limits and telemetry; `fixtures/cli/variables.txt` has the whole list.
/// `CLAUDE_CONFIG_DIR` only says where the stored login is. Each segment warns in the log about
/// what it leaves out, and [`CliEnvironment::left_out`] tells it before.
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

/// How the names of the CLI's own variables begin: of these, [`KEPT`] alone are handed on.
const OWN_PREFIXES: [&str; 2] = ["CLAUDE", "ANTHROPIC"];

/// Names of others that would break the conversation with the CLI, or belong to the launcher.
const REMOVED: [&str; 5] = [
    // Loads code into the CLI.
    "NODE_OPTIONS",
    "BUN_OPTIONS",
    "BUN_INSPECT",
    // The launcher gives each process its own.
    "TMPDIR",
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

    /// Returns the names of the variables that were set and that the CLI does not get, or not as
    /// they were set, because this crate decides about them.
    pub fn left_out(&self) -> impl Iterator<Item = &str> {
        let is_left_out = |(name, value): &(&str, &str)| {
            let ours = OWNED.iter().find(|(it, _)| it == name);
            let is_changed = ours.is_some_and(|(_, it)| it != value);
            // The login is found by it.
            let is_used = *name == CONFIG_DIRECTORY || ours.is_some();
            is_changed || !(is_used || is_handed_on(name))
        };
        self.variables().filter(is_left_out).map(|(name, _)| name)
    }

    /// Returns what was set, by name.
    pub(super) fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        let variables = self.variables.iter();
        variables.map(|(name, value)| (name.as_str(), value.as_str()))
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
        variables.retain(|name, _| is_handed_on(name));
        for (name, value) in OWNED {
            variables.insert(name.to_owned(), value.to_owned());
        }
        variables
    }
}

fn is_handed_on(name: &str) -> bool {
    if OWN_PREFIXES.iter().any(|it| name.starts_with(it)) {
        KEPT.binary_search(&name).is_ok()
    } else {
        !REMOVED.contains(&name)
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
    use std::collections::BTreeSet;

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
            .set("CLAUDE_CODE_PLUGIN_DIRS", "/plugins")
            .set("CLAUDE_CODE_RESUME_PROMPT", "go on")
            .set("CLAUDE_AGENT_SDK_MCP_NO_PREFIX", "1")
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

    /// A14: the variables of a provider pass through as they are.
    #[test]
    fn a_providers_variables_pass_through() {
        let variables = [
            ("ANTHROPIC_BEDROCK_BASE_URL", "https://bedrock"),
            ("ANTHROPIC_MODEL", "us.anthropic.claude"),
            ("AWS_BEARER_TOKEN_BEDROCK", "secret"),
            ("AWS_REGION", "us-east-1"),
            ("CLAUDE_CODE_SKIP_BEDROCK_AUTH", "1"),
            ("CLAUDE_CODE_USE_BEDROCK", "1"),
            ("CLAUDE_SECURESTORAGE_CONFIG_DIR", ""),
        ];
        let environment = variables
            .iter()
            .fold(CliEnvironment::empty(), |it, (name, value)| {
                it.set(*name, *value)
            });
        assert_eq!(environment.left_out().count(), 0);
        assert_eq!(environment.for_cli(), with_owned(&variables));
    }

    /// G5, R54: each of these breaks the conversation with the CLI or lets calls run undecided, and
    /// none reaches it; the application can see that.
    #[test]
    fn what_would_break_the_cli_is_left_out_and_said() {
        let names = [
            // Writes debug text between the frames (spec/cli-protocol.md 1).
            "ANTHROPIC_LOG",
            // The tools would lose the names that policies and records know them by.
            "CLAUDE_AGENT_SDK_MCP_NO_PREFIX",
            // A CLI that believes it runs inside another one writes no transcript.
            "CLAUDECODE",
            "CLAUDE_CODE_CHILD_SESSION",
            "CLAUDE_CODE_SESSION_ID",
            // Nothing is mirrored then (measured on CLI 2.1.316 and 2.1.332).
            "CLAUDE_CODE_SKIP_PROMPT_HISTORY",
            // A deferred call would not go on, hooks would not be asked, or calls would run unasked.
            "CLAUDE_CODE_DISABLE_DEFERRED_TOOL_RESUME",
            "CLAUDE_CODE_DISABLE_HOOK_FORWARDING",
            "CLAUDE_CODE_SIMPLE",
            "CLAUDE_CODE_EVEN_MORE_DANGEROUSLY_SKIP_PERMISSIONS",
            "CLAUDE_BG_SESSION_PERMISSION_RULES",
            // Settings, plugins and code of somebody else. A hook of a plugin replaces the input that
            // was approved (measured with `CLAUDE_CODE_PLUGIN_DIRS` on both).
            "CLAUDE_CODE_MANAGED_SETTINGS_PATH",
            "CLAUDE_CODE_PLUGIN_DIRS",
            "NODE_OPTIONS",
            // Changes what a resume does (spec/cli-protocol.md 17).
            "CLAUDE_CODE_RESUME_PROMPT",
            // One that no version has yet.
            "CLAUDE_CODE_OF_TOMORROW",
        ];
        let environment = names
            .iter()
            .fold(CliEnvironment::empty().set("HOME", "/"), |it, name| {
                it.set(*name, "1")
            });
        let left_out: BTreeSet<&str> = environment.left_out().collect();
        assert_eq!(left_out, names.into());
        let given = environment.for_cli();
        assert_eq!(given.keys().find(|it| left_out.contains(it.as_str())), None);
        assert!(given.contains_key("HOME"));

        let ours = CliEnvironment::empty().set("CLAUDE_CONFIG_DIR", "/login");
        let ours = ours.set("CLAUDE_CODE_ENTRYPOINT", "abide");
        assert_eq!(ours.left_out().count(), 0);
        let changed = ours.set("CLAUDE_CODE_ENTRYPOINT", "other");
        assert_eq!(
            changed.left_out().collect::<Vec<_>>(),
            ["CLAUDE_CODE_ENTRYPOINT"]
        );
    }

    /// The names are found by halving.
    #[test]
    fn the_kept_names_are_sorted() {
        assert!(KEPT.is_sorted());
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
