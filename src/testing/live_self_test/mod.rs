//! Proves on a CLI binary the facts that the live path rests on (design.md 4,
//! spec/cli-protocol.md 17).
//!
//! [`live_self_test`] runs small experiments with the binary against a scripted Messages API, with
//! no model, no login and no network, and says of each [`LiveFact`] whether it held. A CLI version
//! belongs on the list of versions that are trusted with live segments only when all of them do.
//!
//! An experiment waits for what it expects, and never for time to pass: where something must *not*
//! happen, the CLI answers requests of ours and mirrors its transcript meanwhile.

mod fact;
mod findings;
mod held;
mod host;
mod interrupted;
mod stage;
#[cfg(test)]
mod tests;
mod transcript;
mod turns;

use std::fmt;
use std::path::Path;
use std::time::Duration;

pub use fact::LiveFact;
pub use findings::{FactRow, LiveReport};

use findings::Findings;
use stage::Candidate;

/// How long one experiment may take on a busy machine; longer is a CLI that hangs.
const PATIENCE: Duration = Duration::from_secs(180);

/// Tries a CLI binary. It takes about half a minute of processor time.
///
/// The binary gets directories of its own in the system's temporary directory, an environment built
/// variable by variable, and no address but loopback. It needs a tokio runtime with I/O and time
/// enabled.
///
/// A binary that cannot be started, or that hangs, holds none of the facts: that is a report too.
///
/// # Cancel safety
/// A dropped call ends its process and removes its directories.
pub async fn live_self_test(program: &Path) -> LiveReport {
    try_candidate(&Candidate::Program(program.to_owned())).await
}

async fn try_candidate(candidate: &Candidate) -> LiveReport {
    let mut report = LiveReport::default();
    for experiment in Experiment::ALL {
        let mut findings = Findings::new(experiment.facts());
        let run = experiment.run(candidate, &mut findings);
        let ending = match tokio::time::timeout(PATIENCE, run).await {
            Ok(ending) => ending,
            Err(_) => Err(Broken::new("the CLI hangs: what was waited for never came")),
        };
        report.add(findings, ending);
    }
    report
}

/// What one stage is set for.
#[derive(Debug, Clone, Copy)]
enum Experiment {
    Turns,
    HeldReply,
    HookTimeout,
    SubAgent,
    BrokenStream,
    GivenUpReply,
    EndedAtHook,
    EndedAtBatch,
    Deferral,
    DroppedCall,
    Interrupted,
}

impl Experiment {
    const ALL: [Self; 11] = [
        Self::Turns,
        Self::HeldReply,
        Self::HookTimeout,
        Self::SubAgent,
        Self::BrokenStream,
        Self::GivenUpReply,
        Self::EndedAtHook,
        Self::EndedAtBatch,
        Self::Deferral,
        Self::DroppedCall,
        Self::Interrupted,
    ];

    const fn facts(self) -> &'static [LiveFact] {
        match self {
            Self::Turns => turns::FACTS,
            Self::HeldReply => held::REPLY,
            Self::HookTimeout => held::TIMEOUT,
            Self::SubAgent => held::SUB_AGENT,
            Self::BrokenStream => held::BROKEN_STREAM,
            Self::GivenUpReply => held::GIVEN_UP,
            Self::EndedAtHook => interrupted::AT_HOOK,
            Self::EndedAtBatch => interrupted::AT_BATCH,
            Self::Deferral => interrupted::DEFERRAL,
            Self::DroppedCall => interrupted::DROPPED_CALL,
            Self::Interrupted => interrupted::CUT,
        }
    }

    async fn run(self, candidate: &Candidate, findings: &mut Findings) -> Result<(), Broken> {
        match self {
            Self::Turns => turns::run(candidate, findings).await,
            Self::HeldReply => held::reply(candidate, findings).await,
            Self::HookTimeout => held::timeout(candidate, findings).await,
            Self::SubAgent => held::sub_agent(candidate, findings).await,
            Self::BrokenStream => held::broken_stream(candidate, findings).await,
            Self::GivenUpReply => held::given_up(candidate, findings).await,
            Self::EndedAtHook => interrupted::at_hook(candidate, findings).await,
            Self::EndedAtBatch => interrupted::at_batch(candidate, findings).await,
            Self::Deferral => interrupted::deferral(candidate, findings).await,
            Self::DroppedCall => interrupted::dropped_call(candidate, findings).await,
            Self::Interrupted => interrupted::cut(candidate, findings).await,
        }
    }
}

/// Why an experiment came to no end.
#[derive(Debug)]
struct Broken(String);

impl Broken {
    fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<crate::transport::CliError> for Broken {
    fn from(error: crate::transport::CliError) -> Self {
        Self(error.to_string())
    }
}
