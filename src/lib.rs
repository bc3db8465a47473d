//! abide runs a Claude Code agent as a durable session.

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

#[cfg(not(unix))]
compile_error!("abide runs on Unix only for now");

pub mod client;
pub mod clock;
mod commit;
pub mod definition;
pub mod engine;
pub mod event;
pub mod failure;
pub mod flow;
pub mod ids;
pub mod manual;
pub mod policy;
pub mod process;
pub mod protocol;
pub mod record;
pub mod runner;
#[cfg_attr(not(feature = "unstable"), doc(hidden))]
pub mod segment;
pub mod session;
pub mod snapshot;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;
pub mod tool;
pub mod transport;
pub mod turn;
