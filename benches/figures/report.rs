//! What a figure is, how it is printed, and the statistics that all of them share.

use std::io::Write as _;
use std::time::Duration;

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Enough for numbers that can be compared.
    Full,
    /// Just enough to run every line.
    Quick,
}

impl Effort {
    /// Picks the number of rounds, lines or commits.
    pub(crate) const fn pick(self, full: usize, quick: usize) -> usize {
        match self {
            Self::Full => full,
            Self::Quick => quick,
        }
    }
}

/// Figures that are taken together, because each is compared with its twin of the same run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    /// What it measures, in the order in which it is printed.
    pub(crate) names: &'static [&'static str],
    /// Takes them.
    pub(crate) run: fn(Effort) -> Vec<Figure>,
}

/// One number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
}

impl Figure {
    pub(crate) const fn new(name: &'static str, value: f64, unit: &'static str) -> Self {
        Self { name, value, unit }
    }

    /// Prints it with three digits behind the point, or none where they would say nothing.
    pub(crate) fn print(&self) {
        let digits = if self.value >= 1000.0 { 0 } else { 3 };
        let Self { name, value, unit } = self;
        writeln!(
            std::io::stdout().lock(),
            "figure {name} {value:.digits$} {unit}"
        )
        .expect("stdout takes a line");
    }
}

/// Says that there is no such figure, and which there are.
pub(crate) fn complain<'a>(unknown: &str, known: impl Iterator<Item = &'a &'static str>) {
    let mut out = std::io::stderr().lock();
    let known: Vec<&str> = known.copied().collect();
    writeln!(
        out,
        "no figure is called {unknown}; there are: {}",
        known.join(" ")
    )
    .expect("stderr takes a line");
}

/// The value that `part` of all samples do not exceed; 0.5 is the median.
pub(crate) fn quantile(samples: &mut [f64], part: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let last = samples.len().saturating_sub(1);
    samples[(last as f64 * part).round() as usize]
}

/// A duration in milliseconds.
pub(crate) fn milliseconds(it: Duration) -> f64 {
    it.as_secs_f64() * 1000.0
}
