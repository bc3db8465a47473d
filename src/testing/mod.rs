//! Test doubles, for the tests of host applications too (feature `testing`).

pub mod fake_cli;
pub mod fake_cli_program;
pub mod launcher;
pub mod script;
