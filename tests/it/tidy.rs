//! The text of the repository keeps its rules. Every check also runs on planted violations, so that
//! it provably can fail.

mod guarantees;
mod layers;
mod mutations;
mod named;
mod rows;
mod source;
mod text;
