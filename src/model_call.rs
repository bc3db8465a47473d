//! What is known of the model calls of one attempt, for its span.

/// What a runner knows of the model calls of one attempt. A field is set only when the framework said
/// so and it can mean one thing alone; nothing is derived from a model's name, the environment or an
/// address.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ModelCallMetadata {
    /// How many replies of a model there were, those of sub-agents included.
    pub model_calls: u64,
    /// The model that was asked for; unset when a sub-agent, which may ask for another one, called a
    /// model.
    pub request_model: Option<String>,
    /// The model that answered, when every reply names the same.
    pub response_model: Option<String>,
    /// Who serves the model, under the name that the OpenTelemetry conventions have for it.
    pub provider_name: Option<String>,
    /// The id of the reply, when there was exactly one.
    pub response_id: Option<String>,
    /// Why the model stopped, when there was exactly one reply.
    pub finish_reason: Option<String>,
}
