//! The promises of the crate, one file each.

mod crash_points;
mod process;
mod real_cli;
mod scenarios;
mod stores;
mod support;
mod tidy;
