//! What the experiments found, and the report about it.

use std::fmt::{self, Debug};

use super::{Broken, LiveFact};

/// What one experiment found so far.
#[derive(Debug)]
pub(super) struct Findings {
    facts: Vec<Found>,
    version: Option<String>,
}

#[derive(Debug)]
struct Found {
    fact: LiveFact,
    checks: usize,
    failure: Option<String>,
}

impl Findings {
    pub(super) fn new(facts: &[LiveFact]) -> Self {
        let found = |fact: &LiveFact| Found {
            fact: *fact,
            checks: 0,
            failure: None,
        };
        Self {
            facts: facts.iter().map(found).collect(),
            version: None,
        }
    }

    /// Says which version the CLI says it is.
    pub(super) fn version(&mut self, version: Option<&str>) {
        self.version = version.map(str::to_owned);
    }

    /// Checks something of a fact.
    pub(super) fn check(&mut self, fact: LiveFact, what: &str, holds: bool) {
        self.note(fact, holds, || format!("not so: {what}"));
    }

    /// Checks that something of a fact is this.
    pub(super) fn equal<T: PartialEq + Debug>(
        &mut self,
        fact: LiveFact,
        what: &str,
        is: T,
        should_be: T,
    ) {
        self.note(fact, is == should_be, || {
            format!("{what}: {is:?}, not {should_be:?}")
        });
    }

    fn note(&mut self, fact: LiveFact, holds: bool, failure: impl FnOnce() -> String) {
        let known = self.facts.iter().position(|it| it.fact == fact);
        // A check of a fact that the experiment does not announce is not lost either.
        let index = known.unwrap_or_else(|| {
            self.facts.push(Found {
                fact,
                checks: 0,
                failure: None,
            });
            self.facts.len() - 1
        });
        let found = &mut self.facts[index];
        found.checks += 1;
        if !holds && found.failure.is_none() {
            found.failure = Some(failure());
        }
    }
}

/// What was found of one fact. Created by [`live_self_test`](super::live_self_test).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FactRow {
    /// The fact.
    pub fact: LiveFact,
    /// Whether it held.
    pub held: bool,
    /// What was checked, or the first thing that was otherwise.
    pub detail: String,
}

/// What was found about a CLI binary. Created by [`live_self_test`](super::live_self_test). Shown as
/// a table, one line for each fact.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LiveReport {
    /// The version that the CLI says it is; `None` when it said none.
    pub version: Option<String>,
    /// One row for each fact.
    pub rows: Vec<FactRow>,
}

impl LiveReport {
    /// True when every fact held.
    #[must_use]
    pub fn is_live(&self) -> bool {
        !self.rows.is_empty() && self.failures().is_empty()
    }

    /// Returns the rows of the facts that did not hold.
    #[must_use]
    pub fn failures(&self) -> Vec<&FactRow> {
        self.rows.iter().filter(|it| !it.held).collect()
    }

    pub(super) fn add(&mut self, findings: Findings, ending: Result<(), Broken>) {
        self.version = self.version.take().or(findings.version);
        let broken = ending.err().map(|it| it.to_string());
        for found in findings.facts {
            let failure = match (found.failure, &broken, found.checks) {
                (Some(failure), _, _) => Some(failure),
                (None, Some(broken), _) => Some(format!("the experiment ended early: {broken}")),
                (None, None, 0) => Some("nothing was checked".to_owned()),
                (None, None, _) => None,
            };
            self.rows.push(FactRow {
                fact: found.fact,
                held: failure.is_none(),
                detail: failure.unwrap_or_else(|| format!("{} checks", found.checks)),
            });
        }
    }
}

impl fmt::Display for LiveReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.version.as_deref().unwrap_or("of unknown version");
        writeln!(f, "Claude Code CLI {version}")?;
        let width = |row: &FactRow| row.fact.statement().len();
        let widest = self.rows.iter().map(width).max().unwrap_or(0);
        for row in &self.rows {
            let held = if row.held { "held" } else { "FAILED" };
            writeln!(
                f,
                "{held:<6}  {:<6}  {:<widest$}  {}",
                row.fact.section(),
                row.fact.statement(),
                row.detail
            )?;
        }
        let held = self.rows.len() - self.failures().len();
        write!(f, "{held} of {} facts held", self.rows.len())
    }
}
