//! Every refusal, one by one, and what is let through.

use std::collections::BTreeSet;

use super::*;
use crate::policy::{Approval, ToolEffect, ToolPolicies, ToolPolicy};

fn options() -> ClaudeAgentOptions {
    ClaudeAgentOptions::new("/work")
}

/// Of the tools in the policies, `Read` and `mcp__docs__search` may run at once, and of the custom
/// tools `look_up`; `Glob` and `find` have rules that may ask.
fn check(options: &ClaudeAgentOptions) -> Result<(), OptionError> {
    let policies = ToolPolicies::new()
        .with("Read", ToolPolicy::new(ToolEffect::Read))
        .with("Glob", ToolPolicy::new(ToolEffect::Read))
        .with(
            "Grep",
            ToolPolicy::new(ToolEffect::Read).with_approval(Approval::Required),
        )
        .with("mcp__docs__search", ToolPolicy::new(ToolEffect::Read));
    let custom = BTreeMap::from([
        ("look_up".to_owned(), ToolPolicy::new(ToolEffect::Read)),
        ("find".to_owned(), ToolPolicy::new(ToolEffect::Read)),
        ("refund".to_owned(), ToolPolicy::default()),
    ]);
    options.check(&AgentTools {
        server_name: "tools",
        custom: &custom,
        policies: &policies,
        ruled: BTreeSet::from(["Glob", "find"]),
    })
}

fn http(url: &str) -> McpServer {
    McpServer::Http {
        url: url.to_owned(),
        headers: BTreeMap::new(),
    }
}

fn extra(name: &str, value: Option<&str>) -> ClaudeAgentOptions {
    options().with_extra_argument(name, value.map(str::to_owned))
}

/// C05, D13 to D17: values that make no sense have an error of their own.
#[test]
fn values_that_make_no_sense_are_refused() {
    let long = "x".repeat(200_000);
    let too_long = |option, bytes| OptionError::TooLong {
        option,
        bytes,
        limit: 131_007,
    };
    let empty = |option| OptionError::Empty { option };
    let nul = |option| OptionError::Nul { option };
    let with_variable = |name: &str, value: &str| {
        options().with_environment(CliEnvironment::empty().set(name, value))
    };
    for (options, error) in [
        (options().with_model(""), empty("model")),
        (options().with_model(" "), empty("model")),
        (options().with_fallback_model(""), empty("fallback_model")),
        (options().with_title(""), empty("title")),
        (options().with_api_key_helper(""), empty("api_key_helper")),
        (options().with_model("a\0b"), nul("model")),
        (options().with_system_prompt("a\0b"), nul("system_prompt")),
        (
            options().with_append_system_prompt("\0"),
            nul("append_system_prompt"),
        ),
        (ClaudeAgentOptions::new("/a\0b"), nul("working_directory")),
        (options().with_model(&long), too_long("model", 200_000)),
        (
            options().with_tools(vec!["Read"; 40_000]),
            too_long("tools", 200_000),
        ),
        (
            options().with_additional_directory(format!("/{long}")),
            too_long("additional_directories", 200_001),
        ),
        (
            options().with_disallowed_tools(vec!["Read"; 40_000]),
            too_long("disallowed_tools", 200_000),
        ),
        (with_variable("A", &long), too_long("environment", 200_002)),
        (with_variable("A", "a\0b"), nul("environment")),
        (with_variable("", "a"), OptionError::VariableName),
        (with_variable("A=B", "a"), OptionError::VariableName),
        (
            options().with_max_turns(0),
            OptionError::Zero {
                option: "max_turns",
            },
        ),
        (options().with_max_budget_usd(0.0), OptionError::Budget),
        (options().with_max_budget_usd(-1.0), OptionError::Budget),
        (options().with_max_budget_usd(f64::NAN), OptionError::Budget),
        (
            ClaudeAgentOptions::new("work"),
            OptionError::RelativePath {
                option: "working_directory",
            },
        ),
        (
            options().with_additional_directory("../x"),
            OptionError::RelativePath {
                option: "additional_directories",
            },
        ),
        (
            options()
                .with_system_prompt("a")
                .with_append_system_prompt("b"),
            OptionError::PromptReplaced,
        ),
        (
            options().with_agent("a", SubAgent::new("", "p")),
            empty("agents"),
        ),
        (
            options().with_agent("a", SubAgent::new("d", "p").with_model("")),
            empty("agents"),
        ),
        (
            options().with_agent("a", SubAgent::new("d", "p").with_max_turns(0)),
            OptionError::Zero { option: "agents" },
        ),
        (
            options().with_agent("a b", SubAgent::new("d", "p")),
            OptionError::AgentName {
                name: "a b".to_owned(),
            },
        ),
    ] {
        assert_eq!(check(&options), Err(error));
    }
    for name in ["", "--danger", "Bash,Write", "Bash(ls)"] {
        assert_eq!(
            check(&options().with_tools([name])),
            Err(OptionError::ToolName {
                name: name.to_owned()
            })
        );
    }
}

/// D16: nobody else may answer under the name of the custom tool server.
#[test]
fn servers_that_cannot_be_told_apart_or_reached_are_refused() {
    for (name, server, error) in [
        (
            "tools",
            http("http://x"),
            OptionError::ServerNameOwned {
                name: "tools".to_owned(),
            },
        ),
        (
            "Tools",
            http("http://x"),
            OptionError::ServerNameOwned {
                name: "Tools".to_owned(),
            },
        ),
        (
            "a__b",
            http("http://x"),
            OptionError::ServerName {
                name: "a__b".to_owned(),
                reason: "may not hold two underscores in a row",
            },
        ),
        (
            "web",
            http("file:///etc/passwd"),
            OptionError::ServerAddress {
                name: "web".to_owned(),
            },
        ),
        (
            "files",
            McpServer::Stdio {
                command: String::new(),
                arguments: Vec::new(),
                environment: BTreeMap::new(),
            },
            OptionError::Empty {
                option: "mcp_servers",
            },
        ),
    ] {
        assert_eq!(check(&options().with_mcp_server(name, server)), Err(error));
    }
}

/// D17, F08, O49: no rule lets a call run that needs a record or an approval first, however it is written.
#[test]
fn rules_that_would_let_a_gated_call_run_are_refused() {
    for rule in [
        "Bash",
        "Bash(git *)",
        "Grep",
        "Glob",
        "*",
        "mcp__*",
        "mcp__tools",
        "mcp__tools__*",
        "mcp__tools__refund",
        "mcp__TOOLS__refund",
        "mcp__tools__find",
        "mcp__tools__absent",
        "mcp__docs",
        "mcp__docs__*",
        "mcp__docs__write",
    ] {
        assert_eq!(
            check(&options().with_allowed_tools(["Read", rule])),
            Err(OptionError::AllowedGatedTool {
                rule: rule.to_owned()
            })
        );
    }
    for rule in ["AskUserQuestion", "AskUserQuestion(x)"] {
        let options = options().with_allowed_tools([rule]);
        assert_eq!(check(&options), Err(OptionError::AllowedQuestion));
    }
    for rule in [
        "",
        "Read,Bash",
        "Read Bash",
        "Read(a) Bash",
        "Read(a),Bash(b)",
        "Read(a",
    ] {
        assert_eq!(
            check(&options().with_allowed_tools([rule])),
            Err(OptionError::Rule {
                option: "allowed_tools",
                rule: rule.to_owned()
            })
        );
    }
    let harmless = [
        "Read",
        "Read(./docs/**)",
        "mcp__tools__look_up",
        "mcp__docs__search",
    ];
    assert_eq!(check(&options().with_allowed_tools(harmless)), Ok(()));
    let refused = ["Bash", "Bash(rm *)", "mcp__docs", "*"];
    assert_eq!(check(&options().with_disallowed_tools(refused)), Ok(()));
}

/// D13, D14: what the runner owns, or what could let a call run undecided, is no extra argument;
/// nor is what nobody has checked.
#[test]
fn extra_arguments_are_refused_unless_they_are_harmless() {
    let named = |name: &str| name.to_owned();
    for name in [
        "permission-prompt-tool",
        "continue",
        "c",
        "fork-session",
        "resume",
        "r",
        "resume-session-at",
        "resume-drops-turn",
        "session-id",
        "mcp-config",
        "strict-mcp-config",
        "await-initialize",
        "session-mirror",
        "input-format",
        "output-format",
        "no-session-persistence",
        "print",
        "verbose",
    ] {
        assert_eq!(
            check(&extra(name, None)),
            Err(OptionError::ArgumentOwned { name: named(name) })
        );
    }
    for (name, option) in [
        ("model", "model"),
        ("allowedTools", "allowed_tools"),
        ("allowed-tools", "allowed_tools"),
        ("setting-sources", "setting_sources"),
        ("add-dir", "additional_directories"),
        ("json-schema", "json_schema"),
        ("system-prompt-file", "system_prompt"),
    ] {
        assert_eq!(
            check(&extra(name, Some("x"))),
            Err(OptionError::ArgumentTyped {
                name: named(name),
                option
            })
        );
    }
    for name in [
        "dangerously-skip-permissions",
        "allow-dangerously-skip-permissions",
        "settings",
        "managed-settings",
        "plugin-dir",
        "sdk-url",
    ] {
        assert_eq!(
            check(&extra(name, None)),
            Err(OptionError::ArgumentUnsafe { name: named(name) })
        );
    }
    for name in ["worktree", "no-such-option", "chrome", "Model"] {
        assert_eq!(
            check(&extra(name, None)),
            Err(OptionError::ArgumentUnknown { name: named(name) })
        );
    }
    for name in ["", "--model", "-r", "betas=x", "a b"] {
        assert_eq!(
            check(&extra(name, None)),
            Err(OptionError::ArgumentName { name: named(name) })
        );
    }
    assert_eq!(
        check(&extra("betas", Some("context-1m-2025-08-07"))),
        Ok(())
    );
    assert_eq!(
        check(&extra("workload", Some("a\0b"))),
        Err(OptionError::Nul {
            option: "extra_arguments"
        })
    );
}

/// D14, D15: only modes in which an undecided call never runs can be set.
#[test]
fn permission_modes_that_let_calls_run_are_refused() {
    for mode in [
        "bypassPermissions",
        "acceptEdits",
        "auto",
        "plan",
        "manual",
        "",
    ] {
        let error = OptionError::PermissionMode {
            mode: mode.to_owned(),
        };
        assert_eq!(mode.parse::<PermissionMode>(), Err(error.clone()));
        assert_eq!(check(&extra("permission-mode", Some(mode))), Err(error));
    }
    assert_eq!("default".parse(), Ok(PermissionMode::Default));
    assert_eq!("dontAsk".parse(), Ok(PermissionMode::DontAsk));
    assert_eq!(
        check(&extra("permission-mode", Some("default"))),
        Err(OptionError::ArgumentOwned {
            name: "permission-mode".to_owned()
        })
    );
}

/// D18, D19, G4: settings files go together with gated tools only if the application says that it
/// trusts them.
#[test]
fn settings_files_beside_gated_tools_must_be_trusted() {
    let from_project = || options().with_setting_sources([SettingSource::Project]);
    let refused = |tool: &str| {
        Err(OptionError::SettingsFiles {
            tool: tool.to_owned(),
        })
    };
    assert_eq!(check(&from_project()), Ok(()));
    assert_eq!(check(&from_project().with_tools(["Read"])), Ok(()));
    let gated = from_project().with_tools(["Read", "Bash"]);
    assert_eq!(check(&gated), refused("Bash"));
    assert_eq!(check(&gated.with_trusted_settings_files()), Ok(()));
    let default_set = from_project().with_tools(["default"]);
    assert_eq!(check(&default_set), refused("default"));
    let server = from_project().with_mcp_server("docs", http("http://x"));
    assert_eq!(check(&server), refused("mcp__docs"));
}

/// G10: whatever is wrong, no value that may be a key is in the error or in what is shown.
#[test]
fn errors_and_options_show_no_values_of_variables_and_servers() {
    let key = "sk-canary";
    let secret = || BTreeMap::from([("K".to_owned(), format!("{key}\0"))]);
    let bad = [
        options().with_environment(CliEnvironment::empty().set("K", format!("{key}\0"))),
        options().with_environment(CliEnvironment::empty().set(format!("K={key}"), "")),
        options().with_mcp_server(
            "web",
            McpServer::Sse {
                url: format!("ftp://{key}"),
                headers: BTreeMap::new(),
            },
        ),
        options().with_mcp_server(
            "web",
            McpServer::Http {
                url: format!("http://{key}"),
                headers: secret(),
            },
        ),
        options().with_mcp_server(
            "files",
            McpServer::Stdio {
                command: "files".to_owned(),
                arguments: vec![key.to_owned()],
                environment: secret(),
            },
        ),
    ];
    let bad = bad
        .into_iter()
        .chain([options().with_api_key_helper(format!("echo {key}\0"))]);
    for options in bad {
        let error = check(&options).unwrap_err();
        let shown = format!("{error} {error:?} {options:?}");
        // The name of a variable is shown, and a key does not belong there.
        let named = format!("\"K={key}\"");
        assert_eq!(shown.replace(&named, "").matches(key).count(), 0, "{shown}");
    }
}
