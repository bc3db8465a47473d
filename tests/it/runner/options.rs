//! Options: refused before a CLI is started, and taken by the real one.

use std::collections::BTreeMap;
use std::path::PathBuf;

use abide::definition::{DefinitionError, OptionError};
use abide::failure::FailureClass;
use abide::runner::{CliVersionPolicy, Effort, McpServer, PermissionMode, SettingSource, SubAgent};
use serde_json::{Value, json};

use super::*;

const BOTH: [&str; 2] = ["2.1.316", "2.1.332"];

fn agent(world: &World, options: ClaudeAgentOptions) -> Agent {
    let mut agent = Agent::new(world);
    agent.runner = ClaudeAgentRunner::builder(options)
        .gated_call_wait(GatedCallWait::Native)
        .tool_policies(ToolPolicies::new().with("Read", ToolPolicy::new(ToolEffect::Read)))
        .launcher(Arc::clone(&world.launcher))
        .build()
        .unwrap();
    agent
}

/// The API that a world with a real CLI has.
fn api(world: &World) -> &ScriptedMessagesApi {
    match &world.kind {
        Kind::Real(api) => api,
        Kind::Fake(_) | Kind::Other => panic!("only the real CLI asks the API"),
    }
}

/// The options of a world whose CLI has no key, and these variables besides.
fn without_key(world: &World, variables: &[(&str, &Path)]) -> ClaudeAgentOptions {
    let mut environment =
        isolated_environment(&api(world).base_url(), &world.directory.path().join("home"));
    environment.remove("ANTHROPIC_API_KEY");
    for (name, value) in variables {
        environment.insert((*name).to_owned(), value.display().to_string());
    }
    let environment = environment
        .into_iter()
        .fold(CliEnvironment::empty(), |it, (name, value)| {
            it.set(name, value)
        });
    world.options().with_environment(environment)
}

/// Which header of every request had this value.
fn credentials(world: &World, header: &str) -> Vec<Option<String>> {
    let requests = api(world).main_requests();
    requests
        .iter()
        .map(|it| it.headers.get(header).cloned())
        .collect()
}

/// C05, D13 to D20, O49: options that are refused never start a CLI, in a definition or in an
/// attempt, whose failure names the reason and is final.
#[tokio::test]
async fn refused_options_never_start_a_cli() {
    let world = World::fake();
    let options = || world.options();
    let http = || McpServer::Http {
        url: "http://127.0.0.1:9".to_owned(),
        headers: BTreeMap::new(),
    };
    for refused in [
        options().with_model(""),
        options().with_model("a\0b"),
        options().with_model("x".repeat(200_000)),
        options().with_max_turns(0),
        options().with_max_budget_usd(0.0),
        options().with_tools(["Bash(ls)"]),
        options().with_additional_directory("relative"),
        options().with_mcp_server("tools", http()),
        options().with_mcp_server("a b", http()),
        options().with_agent("", SubAgent::new("d", "p")),
        options().with_allowed_tools(["Bash"]),
        options().with_allowed_tools(["AskUserQuestion"]),
        options().with_allowed_tools(["mcp__tools"]),
        options().with_setting_sources([SettingSource::Project]),
        options().with_extra_argument("resume", None),
        options().with_extra_argument("permission-mode", Some("plan".to_owned())),
        options().with_extra_argument("dangerously-skip-permissions", None),
        options().with_environment(CliEnvironment::empty().set("A=B", "")),
        ClaudeAgentOptions::new("relative"),
    ] {
        let define = |builder: ClaudeAgentRunnerBuilder| {
            let desk = Desk::default();
            let tools = desk.tools().into_iter();
            tools
                .fold(builder, ClaudeAgentRunnerBuilder::custom_tool)
                .launcher(Arc::clone(&world.launcher))
                .build()
        };
        let reason: OptionError = match define(ClaudeAgentRunner::builder(refused.clone())) {
            Err(DefinitionError::Options { source }) => source,
            other => panic!("{other:?}"),
        };
        let mut agent = Agent::new(&world);
        let per_attempt = ClaudeAgentRunner::builder_with(move |_| Ok(refused.clone()));
        agent.runner = define(per_attempt).unwrap();
        agent.say("hello");
        let failure = agent.segment(Vec::new()).await.end.unwrap_err();
        assert_eq!(
            failure,
            AttemptFailure::new(FailureClass::Options, reason.to_string())
        );
        assert!(!failure.class.is_retryable());
    }
    assert_eq!(world.handle().launches().len(), 0);
}

/// A12, O05: a version that is not tested is accepted, or refused before any call runs.
#[tokio::test]
async fn an_untested_version_is_refused_if_the_options_say_so() {
    let world = World::fake();
    let options = |version: &str| {
        let environment = CliEnvironment::empty().set("FAKE_CLAUDE_VERSION", version);
        world.options().with_environment(environment)
    };
    let refusing = |version| options(version).with_cli_version_policy(CliVersionPolicy::Refuse);
    assert_eq!(
        agent(&world, options("9.9.9")).turn("script: say a").await,
        "said: a"
    );
    assert_eq!(
        agent(&world, refusing("2.1.316"))
            .turn("script: say a")
            .await,
        "said: a"
    );
    let mut agent = agent(&world, refusing("9.9.9"));
    agent.say(r#"script: call Bash {"command":"echo x"}"#);
    assert_eq!(
        agent.segment(Vec::new()).await.end.unwrap_err(),
        AttemptFailure::new(
            FailureClass::CliVersion,
            "the Claude Code CLI has version 9.9.9; tested are 2.1.316, 2.1.332"
        )
    );
    assert_eq!(world.handle().running(), 0);
    assert_eq!(world.bash_runs(), 0);
}

/// G10, D03, D04: servers with their keys are in a file, and no key is in an argument.
#[tokio::test]
async fn servers_go_into_a_file_and_not_into_arguments() {
    let world = World::fake();
    let server = McpServer::Http {
        url: "http://127.0.0.1:9".to_owned(),
        headers: BTreeMap::from([("Authorization".to_owned(), "Bearer sk-canary".to_owned())]),
    };
    let options = world
        .options()
        .with_mcp_server("web", server)
        .with_api_key_helper("echo sk-canary");
    agent(&world, options).turn("script: say a").await;
    let launches = world.handle().launches();
    let files: Vec<(&str, Value)> = (launches[0].spec.files.iter())
        .map(|it| (it.option, serde_json::from_str(&it.contents).unwrap()))
        .collect();
    assert_eq!(
        files,
        [
            (
                "--mcp-config",
                json!({"mcpServers": {
                    "tools": {"type": "sdk", "name": "tools", "alwaysLoad": true},
                    "web": {"type": "http", "url": "http://127.0.0.1:9",
                        "headers": {"Authorization": "Bearer sk-canary"}},
                }})
            ),
            ("--settings", json!({"apiKeyHelper": "echo sk-canary"})),
        ]
    );
    let shown = format!("{:?}", launches[0].spec);
    assert_eq!(shown.matches("sk-canary").count(), 0, "{shown}");
    world.assert_clean();
}

/// D15: each version takes every option at once, twice, and does with it what it says.
#[tokio::test]
async fn the_real_clis_take_every_option() {
    for version in BOTH {
        let Some(world) = World::real(version).await else {
            return;
        };
        let more = world.directory.path().join("more");
        std::fs::create_dir(&more).unwrap();
        let harmless = [
            ("append-subagent-system-prompt", Some("x")),
            ("autocompact", Some("auto")),
            ("betas", Some("context-1m-2025-08-07")),
            ("disable-slash-commands", None),
            ("exclude-dynamic-system-prompt-sections", None),
            ("no-chrome", None),
            ("restricted", None),
            ("system-prompt-snapshot", Some("off")),
            ("task-budget", Some("20000")),
            ("thinking", Some("adaptive")),
            ("thinking-display", Some("omitted")),
            ("workload", Some("batch")),
        ];
        let stdio = McpServer::Stdio {
            command: "/bin/false".to_owned(),
            arguments: vec!["-x".to_owned()],
            environment: BTreeMap::from([("A".to_owned(), "b".to_owned())]),
        };
        let options = world
            .options()
            .with_system_prompt(format!("BE BRIEF {}", "x".repeat(300_000)))
            .with_fallback_model("claude-haiku-5")
            .with_tools(["Read", "Agent"])
            .with_allowed_tools(["Read", "Read(./docs/**)"])
            .with_disallowed_tools(["WebFetch", "Bash(rm *)"])
            .with_additional_directory(&more)
            .with_mcp_server("absent", stdio)
            .with_agent(
                "reviewer",
                SubAgent::new("Reviews", "You review")
                    .with_tools(["Read"])
                    .with_disallowed_tools(["Bash"])
                    .with_model("haiku")
                    .with_max_turns(3),
            )
            .with_permission_mode(PermissionMode::DontAsk)
            .with_setting_sources([SettingSource::Project, SettingSource::Local])
            .with_trusted_settings_files()
            .with_max_turns(7)
            .with_max_budget_usd(1.5)
            .with_max_thinking_tokens(2048)
            .with_effort(Effort::High)
            .with_title("A title")
            .with_cli_version_policy(CliVersionPolicy::Refuse);
        let options = harmless.into_iter().fold(options, |it, (name, value)| {
            it.with_extra_argument(name, value.map(str::to_owned))
        });
        let mut agent = agent(&world, options);
        assert_eq!(agent.turn("script: say a").await, "said: a");
        assert_eq!(
            agent.turn("script: recall").await,
            "recalled: script: say a"
        );
        for request in api(&world).main_requests() {
            assert_eq!(request.model(), "claude-sonnet-5");
            assert_eq!(request.tools(), ["Agent", "Read"]);
            assert_eq!(request.body["output_config"]["effort"], "high");
            let prompts = request.system_texts();
            assert_eq!(
                prompts
                    .iter()
                    .filter(|it| it.starts_with("BE BRIEF"))
                    .count(),
                1
            );
        }
        world.assert_clean();
    }
}

/// The answer in the shape of a schema is the text of the model's last message.
#[tokio::test]
async fn a_structured_answer_is_the_models_last_message() {
    for version in BOTH {
        let Some(world) = World::real(version).await else {
            return;
        };
        let schema = json!({"type": "object", "properties": {"color": {"type": "string"}},
            "required": ["color"]});
        let options = world
            .options()
            .with_json_schema(schema.as_object().unwrap().clone());
        let mut agent = agent(&world, options);
        agent
            .turn(r#"script: call StructuredOutput {"color":"red"}"#)
            .await;
        let mut messages = agent.messages.iter().rev();
        let answer = messages.find(|it| it.role == MessageRole::Assistant);
        assert_eq!(answer.unwrap().text, r#"{"color":"red"}"#);
        world.assert_clean();
    }
}

/// A13: the key of a helper reaches the API, and is in a file, not in the environment.
#[tokio::test]
async fn a_helper_gives_the_key() {
    for version in BOTH {
        let Some(world) = World::real(version).await else {
            return;
        };
        let options = without_key(&world, &[]).with_api_key_helper("echo key-of-helper");
        assert_eq!(
            agent(&world, options).turn("script: say a").await,
            "said: a"
        );
        assert_eq!(
            credentials(&world, "x-api-key"),
            [Some("key-of-helper".to_owned())]
        );
    }
}

/// A15, A16, A17: the login that Claude Code stored is found in every segment, at the default place
/// and where `CLAUDE_CONFIG_DIR` or `CLAUDE_SECURESTORAGE_CONFIG_DIR` say, with or without a
/// refresh token; without one the turn fails at once.
#[tokio::test]
async fn a_stored_login_is_found_from_every_segment() {
    for version in BOTH {
        for (place, variable, refresh) in [
            ("home/.claude", None, true),
            ("login", Some("CLAUDE_CONFIG_DIR"), true),
            ("login", Some("CLAUDE_CONFIG_DIR"), false),
            ("login", Some("CLAUDE_SECURESTORAGE_CONFIG_DIR"), false),
        ] {
            let Some(world) = World::real(version).await else {
                return;
            };
            let login: PathBuf = world.directory.path().join(place);
            let variables: Vec<(&str, &Path)> =
                variable.iter().map(|it| (*it, login.as_path())).collect();
            let options = without_key(&world, &variables);

            let mut stranger = agent(&world, options.clone());
            stranger.say("script: say a");
            let failure = stranger.segment(Vec::new()).await.end.unwrap_err();
            assert_eq!(failure.class, FailureClass::Authentication);

            store_login(&login, refresh);
            let mut agent = agent(&world, options);
            assert_eq!(agent.turn("script: say a").await, "said: a");
            assert_eq!(
                agent.turn("script: recall").await,
                "recalled: script: say a"
            );
            assert_eq!(
                credentials(&world, "authorization"),
                vec![Some("Bearer sk-ant-oat01-stored".to_owned()); 2]
            );
        }
    }
}

/// Stores a login as Claude Code does, valid until 2100.
fn store_login(directory: &Path, refresh: bool) {
    std::fs::create_dir_all(directory).unwrap();
    let mut login = json!({
        "accessToken": "sk-ant-oat01-stored",
        "expiresAt": 4_102_444_800_000_u64,
        "scopes": ["user:inference", "user:profile"],
        "subscriptionType": "max",
    });
    if refresh {
        login["refreshToken"] = json!("sk-ant-ort01-stored");
    }
    let text = json!({ "claudeAiOauth": login }).to_string();
    std::fs::write(directory.join(".credentials.json"), text).unwrap();
}

/// A14: with the variables of a provider the CLI speaks to the provider, with its credentials. The
/// scripted API does not speak its language, so the turn fails in the class of the API.
#[tokio::test]
async fn a_providers_variables_reach_the_provider() {
    for version in BOTH {
        let Some(world) = World::real(version).await else {
            return;
        };
        let mut options = without_key(&world, &[]);
        for (name, value) in [
            (
                "ANTHROPIC_BEDROCK_BASE_URL",
                api(&world).base_url().as_str(),
            ),
            ("AWS_BEARER_TOKEN_BEDROCK", "key-of-bedrock"),
            ("AWS_REGION", "eu-central-1"),
            ("CLAUDE_CODE_MAX_RETRIES", "0"),
            ("CLAUDE_CODE_USE_BEDROCK", "1"),
        ] {
            options.environment = options.environment.set(name, value);
        }
        let mut agent = agent(&world, options);
        agent.say("script: say a");
        let failure = agent.segment(Vec::new()).await.end.unwrap_err();
        let unserved = api(&world).unserved();
        let is_asked = unserved.iter().any(|it| {
            let path = &it.request.path;
            let headers = format!("{:?}", it.request.headers);
            path.starts_with("/model/") && headers.contains("Bearer key-of-bedrock")
        });
        assert!(is_asked, "{unserved:?}");
        assert_eq!(failure.class, FailureClass::ApiError);
    }
}
