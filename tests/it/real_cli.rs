//! The scenarios on the real CLI, against a scripted Messages API: no model is called.

use crate::scenarios;
use crate::support::World;

/// Every scenario holds on the CLI that this version was written against.
#[tokio::test]
async fn every_scenario_runs_on_cli_2_1_316() {
    for scenario in scenarios::ALL {
        println!("scenario: {}", scenario.name);
        let Some(mut world) = World::real("2.1.316").await else {
            return;
        };
        (scenario.run)(&mut world).await;
        world.check_cli().await;
    }
}

/// The central ones hold on the newer pinned CLI too.
#[tokio::test]
async fn the_central_scenarios_run_on_cli_2_1_332() {
    for scenario in scenarios::ALL.iter().filter(|it| it.is_central) {
        println!("scenario: {}", scenario.name);
        let Some(mut world) = World::real("2.1.332").await else {
            return;
        };
        (scenario.run)(&mut world).await;
        world.check_cli().await;
    }
}
