//! What the tests of this crate, and of applications built on it, are made of (feature `testing`).
//!
//! - [`fake_cli`]: the CLI's side of the protocol as a machine, [`launcher`] runs it in-process,
//!   [`fake_cli_program`] as a program.
//! - [`faults`]: crashes and failing stores on command.
//! - [`messages_api`]: a scripted Messages API on loopback, so that the real CLI runs without a
//!   model.
//! - [`script`]: the language in which a test's prompt says what the model does, for both.
//! - [`real_cli`]: finds the pinned CLI binaries and builds the environment they run in.
//! - [`live_self_test`]: proves on a CLI binary what the live path needs (feature `subprocess`).
//! - [`clock`]: wall time that follows tokio's clock, for tests on virtual time.
//! - [`codec`]: a payload codec that behaves like an encryption.
//! - [`conformance`]: the rules of the ports as code, for hosts' own implementations.

pub mod clock;
pub mod codec;
pub mod conformance;
pub mod fake_cli;
pub mod fake_cli_program;
pub mod faults;
pub mod launcher;
#[cfg(feature = "subprocess")]
pub mod live_self_test;
pub mod messages_api;
pub mod real_cli;
pub mod script;
