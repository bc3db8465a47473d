//! A value together with its exact text (G11).

use std::ops::Deref;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _};
use serde_json::value::RawValue;

/// A value that was read, and the JSON text that it was read from.
#[derive(Debug)]
#[non_exhaustive]
pub struct Verbatim<T> {
    /// The text.
    pub raw: Box<RawValue>,
    /// The value.
    pub value: T,
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Verbatim<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        let value = serde_json::from_str(raw.get())
            // Without its own place: that of the whole line says more.
            .map_err(|_| D::Error::custom("the value does not fit"))?;
        Ok(Self { raw, value })
    }
}

impl<T> Deref for Verbatim<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}
