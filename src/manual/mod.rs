//! The manual: chapters that are longer than the page of a module.

#[doc = include_str!("architecture.md")]
pub mod architecture {}

#[doc = include_str!("sessions.md")]
pub mod sessions {}

#[doc = include_str!("guarantees.md")]
pub mod guarantees {}

#[doc = include_str!("tracing.md")]
pub mod tracing {}

#[doc = include_str!("changelog.md")]
pub mod changelog {}
