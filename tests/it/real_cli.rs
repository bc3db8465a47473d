//! The scenarios on the real CLI, against a scripted Messages API: no model is called.

use abide::runner::GatedCallWait;

use crate::scenarios::{self, Scenario};
use crate::support::World;

/// Runs scenarios one after the other; none where there is no CLI and none is required.
async fn run(version: &str, wait: GatedCallWait, scenarios: impl Iterator<Item = &Scenario>) {
    for scenario in scenarios {
        println!("scenario: {} ({version}, {wait:?})", scenario.name);
        let Some(mut world) = World::real_with(version, wait).await else {
            return;
        };
        (scenario.run)(&mut world).await;
        world.check_cli().await;
    }
}

fn central() -> impl Iterator<Item = &'static Scenario> {
    scenarios::all().filter(|it| it.is_central)
}

/// Every scenario holds on the CLI that this version was written against.
#[tokio::test]
async fn every_scenario_runs_live_on_cli_2_1_316() {
    run("2.1.316", GatedCallWait::Live, scenarios::all()).await;
}

/// The central ones hold on the newer pinned CLI too.
#[tokio::test]
async fn the_central_scenarios_run_live_on_cli_2_1_332() {
    run("2.1.332", GatedCallWait::Live, central()).await;
}

/// And they hold where gated calls end the process by the CLI's own deferral.
#[tokio::test]
async fn the_central_scenarios_run_natively_on_cli_2_1_316() {
    run("2.1.316", GatedCallWait::Native, central()).await;
}

/// As above, on the newer pinned CLI.
#[tokio::test]
async fn the_central_scenarios_run_natively_on_cli_2_1_332() {
    run("2.1.332", GatedCallWait::Native, central()).await;
}
