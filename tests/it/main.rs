//! The promises of the crate, one file each.

mod process;
mod real_cli;
mod runner;
mod scenarios;
mod stores;
mod support;
mod tidy;
