//! What `initialize` carries of an agent's options: texts of any length.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// What `initialize` carries of an agent's options. Created by the runner.
#[derive(Debug, Clone, Default, PartialEq)]
#[cfg_attr(
    feature = "unstable",
    expect(
        clippy::exhaustive_structs,
        reason = "plain data that the runner fills in"
    )
)]
pub struct AgentSetup {
    /// Replaces the CLI's own system prompt.
    pub system_prompt: Option<String>,
    /// Is added to the CLI's own system prompt.
    pub append_system_prompt: Option<String>,
    /// The schema of the answer.
    pub json_schema: Option<Map<String, Value>>,
    /// The sub-agents, by name.
    pub agents: BTreeMap<String, SubAgent>,
    /// The title of the Claude session.
    pub title: Option<String>,
}

/// A sub-agent that the model may hand work to, if it has the tool `Agent`. Created by the
/// application.
///
/// It runs inside the segment and may call what needs no record; its other calls are refused.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubAgent {
    /// When the model is to use it.
    pub description: String,
    /// Its system prompt.
    pub prompt: String,
    /// The tools that it may call. Default: those of the main conversation.
    pub tools: Option<Vec<String>>,
    /// The tools that it may not call. Default: none.
    pub disallowed_tools: Vec<String>,
    /// Its model. Default: that of the main conversation.
    pub model: Option<String>,
    /// How many replies one run of it may have. Default: no limit.
    pub max_turns: Option<u32>,
}

impl SubAgent {
    /// Makes a sub-agent with every default.
    #[must_use]
    pub fn new(description: impl Into<String>, prompt: impl Into<String>) -> Self {
        Self {
            description: description.into(),
            prompt: prompt.into(),
            tools: None,
            disallowed_tools: Vec::new(),
            model: None,
            max_turns: None,
        }
    }

    /// Sets the tools that it may call.
    #[must_use]
    pub fn with_tools(mut self, tools: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.tools = Some(tools.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the tools that it may not call.
    #[must_use]
    pub fn with_disallowed_tools(
        mut self,
        tools: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        self.disallowed_tools = tools.into_iter().map(Into::into).collect();
        self
    }

    /// Sets its model.
    #[must_use]
    pub fn with_model(mut self, model: impl Into<String>) -> Self {
        self.model = Some(model.into());
        self
    }

    /// Sets how many replies one run of it may have.
    #[must_use]
    pub const fn with_max_turns(mut self, turns: u32) -> Self {
        self.max_turns = Some(turns);
        self
    }

    fn entry(&self) -> Value {
        let mut entry = json!({"description": self.description, "prompt": self.prompt});
        if let Some(tools) = &self.tools {
            entry["tools"] = json!(tools);
        }
        if !self.disallowed_tools.is_empty() {
            entry["disallowedTools"] = json!(self.disallowed_tools);
        }
        if let Some(model) = &self.model {
            entry["model"] = json!(model);
        }
        if let Some(turns) = self.max_turns {
            entry["maxTurns"] = json!(turns);
        }
        entry
    }
}

impl AgentSetup {
    /// Adds what is set to the request.
    pub(super) fn add_to(&self, request: &mut Value) {
        if let Some(text) = &self.system_prompt {
            request["systemPrompt"] = json!([text]);
        }
        if let Some(text) = &self.append_system_prompt {
            request["appendSystemPrompt"] = json!(text);
        }
        if let Some(schema) = &self.json_schema {
            request["jsonSchema"] = json!(schema);
        }
        if !self.agents.is_empty() {
            let agents: Map<String, Value> = self
                .agents
                .iter()
                .map(|(name, agent)| (name.clone(), agent.entry()))
                .collect();
            request["agents"] = json!(agents);
        }
        if let Some(title) = &self.title {
            request["title"] = json!(title);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C05: everything that is set reaches the CLI, and nothing that is not.
    #[test]
    fn initialize_carries_what_is_set_and_no_more() {
        let mut request = json!({});
        AgentSetup::default().add_to(&mut request);
        assert_eq!(request, json!({}));
        let setup = AgentSetup {
            system_prompt: Some("a".to_owned()),
            append_system_prompt: Some("b".to_owned()),
            json_schema: json!({"type": "object"}).as_object().cloned(),
            agents: BTreeMap::from([
                ("plain".to_owned(), SubAgent::new("d", "p")),
                (
                    "full".to_owned(),
                    SubAgent::new("d", "p")
                        .with_tools(["Read"])
                        .with_disallowed_tools(["Bash"])
                        .with_model("m")
                        .with_max_turns(2),
                ),
            ]),
            title: Some("t".to_owned()),
        };
        setup.add_to(&mut request);
        assert_eq!(
            request,
            json!({
                "systemPrompt": ["a"],
                "appendSystemPrompt": "b",
                "jsonSchema": {"type": "object"},
                "agents": {
                    "plain": {"description": "d", "prompt": "p"},
                    "full": {"description": "d", "prompt": "p", "tools": ["Read"],
                        "disallowedTools": ["Bash"], "model": "m", "maxTurns": 2},
                },
                "title": "t",
            })
        );
    }
}
