//! What the tests of this crate, and of applications built on it, are made of (feature `testing`).
//!
//! - [`messages_api`]: a scripted Messages API on loopback, so that the real CLI runs without a
//!   model.
//! - [`script`]: the language in which a test's prompt says what the model does.
//! - [`real_cli`]: finds the pinned CLI binaries and builds the environment they run in.
//! - [`conformance`]: the rules of the ports as code, for hosts' own implementations.

pub mod conformance;
pub mod messages_api;
pub mod real_cli;
pub mod script;
