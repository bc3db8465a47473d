//! The contracts of the ports as code: a host runs them on its own implementations.

mod state_store;

pub use state_store::state_store;
