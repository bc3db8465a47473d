//! [`ApiKeyHelper`]: the command that gives the API key.

use std::fmt;

/// A shell command whose output is the API key. Created by the application, of any text.
///
/// The command itself may hold a secret, such as the token of a vault: it reaches the CLI in a file
/// of mode 0600, is never shown, and is taken out of failures that quote it (G10).
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKeyHelper(String);

impl ApiKeyHelper {
    /// Takes a command for the shell of the CLI.
    pub fn new(command: impl Into<String>) -> Self {
        Self(command.into())
    }

    /// Returns the command.
    pub(in crate::runner::claude) fn command(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ApiKeyHelper {
    /// Shows the length only: it may hold a secret (G10).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeyHelper({} bytes)", self.0.len())
    }
}
