//! The promises of the crate, one file each.

#![expect(
    clippy::print_stdout,
    reason = "a list of scenarios says which one it is at"
)]

mod busy_api;
mod canary;
mod cancel;
mod cli_facts;
mod crash;
mod crash_points;
mod definition;
mod engine;
mod fight;
mod kill;
mod live;
mod older_files;
mod process;
mod real_cli;
mod rolling_restart;
mod runner;
mod scenarios;
mod stores;
mod support;
mod telemetry;
mod tidy;
mod trace;
mod turns;
mod two_workers;
mod variables;
