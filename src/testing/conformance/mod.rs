//! The contracts of the ports as code: a host runs them on its own implementations.

mod payload_codec;
mod state_store;

pub use payload_codec::payload_codec;
pub use state_store::state_store;
