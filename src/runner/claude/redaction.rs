//! Keeps the values of secret variables out of failures (G10): the CLI and the API quote what they
//! were given, and a failure is stored and shown.

use std::collections::BTreeMap;

use super::options::ApiKeyHelper;
use crate::failure::AttemptFailure;
use crate::protocol::McpServer;

/// What the name of a variable with a secret contains.
const SECRET_NAMES: [&str; 8] = [
    "KEY",
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "CREDENTIAL",
    "AUTHORIZATION",
    // ANTHROPIC_CUSTOM_HEADERS may hold an authorization.
    "HEADERS",
];

/// A shorter value would cut harmless texts to pieces, and is no secret.
const SECRET_BYTES_MIN: usize = 6;

const PLACEHOLDER: &str = "[redacted]";

/// The secrets of one CLI process, and how they are taken out of texts. It has no `Debug`.
pub(super) struct Redaction {
    // The longest first, because one may contain another.
    secrets: Vec<String>,
}

impl Redaction {
    /// Collects the secrets of an environment, of tool servers and of the command for the key.
    pub(super) fn of(
        environment: &BTreeMap<String, String>,
        servers: &BTreeMap<String, McpServer>,
        helper: Option<&ApiKeyHelper>,
    ) -> Self {
        let is_secret = |name: &str, value: &str| {
            let name = name.to_ascii_uppercase();
            // MAX_THINKING_TOKENS is a number, and an address may hold a password.
            let is_number = value.bytes().all(|it| it.is_ascii_digit());
            (SECRET_NAMES.iter().any(|it| name.contains(it)) && !is_number)
                || (value.contains('@') && (name.ends_with("_PROXY") || value.contains("://")))
        };
        let variables = environment
            .iter()
            .chain(servers.values().flat_map(variables));
        let values = variables
            .filter(|(name, value)| is_secret(name, value))
            .map(|(_, value)| value.as_str());
        let headers = servers.values().flat_map(header_secrets);
        let addresses = environment
            .values()
            .map(String::as_str)
            .chain(servers.values().filter_map(address));
        let mut secrets: Vec<String> = values
            .flat_map(|value| std::iter::once(value).chain(value.lines()))
            .chain(headers)
            .chain(addresses.flat_map(address_secrets))
            .chain(helper.map(ApiKeyHelper::command))
            .map(str::trim)
            .filter(|it| it.len() >= SECRET_BYTES_MIN)
            .map(str::to_owned)
            .collect();
        secrets.sort_by_key(|it| std::cmp::Reverse(it.len()));
        secrets.dedup();
        Self { secrets }
    }

    /// Returns the text without the secrets. A text that was cut inside of one loses its rest too.
    pub(super) fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.secrets {
            text = text.replace(secret, PLACEHOLDER);
        }
        for secret in &self.secrets {
            let cut = (SECRET_BYTES_MIN..secret.len())
                .rev()
                .filter_map(|it| secret.get(..it))
                .find(|it| text.ends_with(it));
            if let Some(cut) = cut {
                text.truncate(text.len() - cut.len());
                text.push_str(PLACEHOLDER);
            }
        }
        text
    }

    /// Returns the failure without the secrets.
    pub(super) fn failure(&self, failure: AttemptFailure) -> AttemptFailure {
        let detail = self.text(&failure.detail);
        let mut clean = AttemptFailure::new(failure.class, detail);
        clean.retry_after_ms = failure.retry_after_ms;
        clean
    }
}

fn variables(server: &McpServer) -> impl Iterator<Item = (&String, &String)> {
    let variables = match server {
        McpServer::Stdio { environment, .. } => Some(environment),
        McpServer::Http { .. } | McpServer::Sse { .. } => None,
    };
    variables.into_iter().flatten()
}

fn address(server: &McpServer) -> Option<&str> {
    match server {
        McpServer::Stdio { .. } => None,
        McpServer::Http { url, .. } | McpServer::Sse { url, .. } => Some(url),
    }
}

/// The password in an address, and the values of its query: some servers take their key there.
fn address_secrets(address: &str) -> impl Iterator<Item = &str> {
    let rest = address.split_once("://").map(|(_, rest)| rest);
    let host = rest.and_then(|it| it.split(['/', '?', '#']).next());
    let user = host.and_then(|it| Some(it.rsplit_once('@')?.0));
    let password = user.and_then(|it| Some(it.split_once(':')?.1));
    let query = rest.and_then(|it| Some(it.split_once('?')?.1));
    let values = query
        .into_iter()
        .flat_map(|it| it.split(['&', '#']))
        .filter_map(|it| Some(it.split_once('=')?.1));
    password.into_iter().chain(values)
}

/// Every header may authorize; what follows the scheme may be quoted alone.
fn header_secrets(server: &McpServer) -> impl Iterator<Item = &str> {
    let headers = match server {
        McpServer::Stdio { .. } => None,
        McpServer::Http { headers, .. } | McpServer::Sse { headers, .. } => Some(headers),
    };
    let values = headers.into_iter().flat_map(|it| it.values());
    values.flat_map(|it| {
        [Some(it.as_str()), it.split_whitespace().last()]
            .into_iter()
            .flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{DETAIL_BYTES_MAX, FailureClass};

    fn redaction() -> Redaction {
        Redaction::of(
            &[
                ("ANTHROPIC_API_KEY", "sk-ant-0123456789"),
                ("anthropic_auth_token", "sk-ant-0123456789-longer"),
                (
                    "ANTHROPIC_CUSTOM_HEADERS",
                    "x-a: first-one\nx-b: second-one",
                ),
                ("HTTPS_PROXY", "http://me:hunter2@proxy:1"),
                ("HTTP_PROXY", "http://proxy:1"),
                ("ANTHROPIC_BASE_URL", "https://me:swordfish@api/v1?beta=1"),
                ("MAX_THINKING_TOKENS", "100000"),
                ("SHORT_KEY", "a"),
                ("HOME", "/srv/agent"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
            &BTreeMap::from([
                (
                    "web".to_owned(),
                    McpServer::Http {
                        url: "https://web/mcp?a=1&apikey=of-the-query".to_owned(),
                        headers: BTreeMap::from([(
                            "Authorization".to_owned(),
                            "Bearer of-the-server".to_owned(),
                        )]),
                    },
                ),
                (
                    "files".to_owned(),
                    McpServer::Stdio {
                        command: "files".to_owned(),
                        arguments: Vec::new(),
                        environment: BTreeMap::from([(
                            "FILES_TOKEN".to_owned(),
                            "of-the-files".to_owned(),
                        )]),
                    },
                ),
            ]),
            Some(&ApiKeyHelper::new("vault read --token of-the-vault key")),
        )
    }

    /// G10: values of secret variables go, whole and cut; everything else stays.
    #[test]
    fn secrets_are_taken_out_of_texts() {
        let redaction = redaction();
        for (text, clean) in [
            (
                "a harmless 100000 by http://proxy:1 in /srv/agent",
                "a harmless 100000 by http://proxy:1 in /srv/agent",
            ),
            ("bad key sk-ant-0123456789!", "bad key [redacted]!"),
            ("bad key sk-ant-0123456789-longer", "bad key [redacted]"),
            ("cut sk-ant-01", "cut [redacted]"),
            ("sent Bearer of-the-server", "sent [redacted]"),
            ("sent of-the-server!", "sent [redacted]!"),
            ("files of-the-files", "files [redacted]"),
            (
                "sh: vault read --token of-the-vault key: not found",
                "sh: [redacted]: not found",
            ),
            ("got x-b: second-one", "got [redacted]"),
            (
                "https://web/mcp?a=1&apikey=of-the-query is down",
                "https://web/mcp?a=1&apikey=[redacted] is down",
            ),
            (
                "no https://me:swordfish@api/v1/x",
                "no https://me:[redacted]@api/v1/x",
            ),
            (
                "via http://me:hunter2@proxy:1 refused",
                "via [redacted] refused",
            ),
        ] {
            assert_eq!(redaction.text(text), clean);
        }
    }

    /// The class, the hint and the limit of a failure stay.
    #[test]
    fn a_failure_keeps_all_but_its_secrets() {
        let mut failure = AttemptFailure::new(
            FailureClass::RateLimited,
            format!("{}sk-ant-0123456789", "x".repeat(DETAIL_BYTES_MAX - 8)),
        );
        failure.retry_after_ms = Some(7);
        let clean = redaction().failure(failure);
        assert_eq!(clean.class, FailureClass::RateLimited);
        assert_eq!(clean.retry_after_ms, Some(7));
        assert_eq!(
            clean.detail,
            format!("{}[redacte", "x".repeat(DETAIL_BYTES_MAX - 8))
        );
    }
}
