//! The promises of the crate, one file each.

mod process;
mod runner;
mod stores;
