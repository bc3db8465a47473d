//! The promises of the crate, one file each.

mod engine;
mod stores;
