//! What tests need, ours and those of host applications (feature `testing`).

pub mod conformance;
