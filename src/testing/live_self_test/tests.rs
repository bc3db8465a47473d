//! The self-test on both pinned CLIs, on the fake, and on fakes that lack a fact.

use std::path::Path;

use super::*;
use crate::testing::fake_cli::{Fault, MirrorLag};
use crate::testing::real_cli::RealCli;

async fn real(version: &str) {
    let found = RealCli::find(version, Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
    let Some(cli) = found else { return };
    let report = live_self_test(cli.program()).await;
    assert!(report.is_live(), "{report}");
    assert_eq!(report.version.as_deref(), Some(version));
}

async fn fake(faults: Vec<Fault>, mirror_lag: MirrorLag) -> LiveReport {
    try_candidate(&Candidate::Fake { faults, mirror_lag }).await
}

fn failed(report: &LiveReport) -> Vec<LiveFact> {
    report.failures().iter().map(|it| it.fact).collect()
}

/// Every fact of the live path holds on CLI 2.1.316.
#[tokio::test]
async fn every_fact_holds_on_cli_2_1_316() {
    real("2.1.316").await;
}

/// Every fact of the live path holds on CLI 2.1.332.
#[tokio::test]
async fn every_fact_holds_on_cli_2_1_332() {
    real("2.1.332").await;
}

/// The fake does what the real ones do.
#[tokio::test(start_paused = true)]
async fn every_fact_holds_on_the_fake() {
    let report = fake(Vec::new(), MirrorLag::Quiet).await;
    assert!(report.is_live(), "{report}");
}

/// A CLI that lacks a fact is found out, and not by a hang.
#[tokio::test(start_paused = true)]
async fn a_cli_that_lacks_a_fact_is_found_out() {
    for (fault, lacks) in [
        (Fault::NoMirror, LiveFact::MirrorBeforeDecision),
        (Fault::SkipHooks, LiveFact::WritesInOrder),
        (Fault::SkipHooksOnResume, LiveFact::DeferralBesideResults),
        (Fault::RunWithoutAsking, LiveFact::EndedAtHook),
        (Fault::NoBatchHook, LiveFact::BatchHoldsModel),
        (Fault::RepeatHook, LiveFact::BatchWithoutRun),
        (Fault::DieAfterReceived(3), LiveFact::PromptUuid),
        (Fault::StallAfterSent(20), LiveFact::WarmTurn),
    ] {
        let name = format!("{fault:?}");
        let report = fake(vec![fault], MirrorLag::Quiet).await;
        assert!(failed(&report).contains(&lacks), "{name}: {report}");
        assert!(!report.is_live());
    }
    for lag in [MirrorLag::Lines(1), MirrorLag::UntilResult] {
        let report = fake(Vec::new(), lag).await;
        let found = failed(&report);
        assert!(found.contains(&LiveFact::MirrorBeforeDecision), "{report}");
    }
}

/// A fault that touches one fact fails that one alone: the rows say what is wrong.
#[tokio::test(start_paused = true)]
async fn a_row_says_what_is_wrong() {
    let report = fake(vec![Fault::SkipHooksOnResume], MirrorLag::Quiet).await;
    assert_eq!(
        failed(&report),
        [LiveFact::DeferralBesideResults, LiveFact::LaterCallDropped]
    );
    let row = &report.failures()[0];
    assert_eq!(
        row.detail,
        "the answer: String(\"refund: one\\nBash: nobody decides\\nrefund: three\"), not String(\"refund: one\\nBash: hi\\nrefund: three\")"
    );
    let shown = report.to_string();
    assert!(shown.starts_with("Claude Code CLI 2.1.316\nheld    4       a prompt's entry has"));
    assert!(shown.ends_with("\n28 of 30 facts held"), "{shown}");
}

/// What is no CLI at all holds nothing, and says why.
#[tokio::test]
async fn a_program_that_is_no_cli_holds_nothing() {
    let report = live_self_test(Path::new("/bin/false")).await;
    assert_eq!(report.failures().len(), report.rows.len());
    assert_eq!(report.version, None);
    let reason = &report.rows[0].detail;
    assert!(reason.contains("the output ended before"), "{reason}");
}
