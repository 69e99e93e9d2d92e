//! Saved states of devices and processors.
//!
//! A saved state carries the name of its device or processor, a version, and a body in CBOR with named
//! fields. So a later version can read what an earlier one wrote: it gives new fields a default and
//! recognises old versions by their number.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Why a saved state cannot be restored.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum RestoreError {
    /// The state belongs to another device.
    #[error("this is the saved state of {found}, not of {wanted}")]
    OtherDevice {
        /// The device that the state belongs to.
        found: String,
        /// The device that was to be restored.
        wanted: &'static str,
    },
    /// A newer version of this program wrote it.
    #[error("the saved state of {name} has version {found}, this program knows up to {known}")]
    TooNew {
        /// The device that the state belongs to.
        name: String,
        /// The version of the state.
        found: u32,
        /// The newest version that can be read.
        known: u32,
    },
    /// The state is damaged, or its values are impossible.
    #[error("the saved state of {name} is damaged: {reason}")]
    Damaged {
        /// The device that the state belongs to.
        name: String,
        /// What is wrong with the state.
        reason: String,
    },
}

/// The state of one device or processor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedState {
    name: String,
    version: u32,
    body: ciborium::Value,
}

impl SavedState {
    /// Makes a saved state of `name` from `body`, in version `version` of its layout.
    ///
    /// # Panics
    /// Panics if `body` cannot be represented as CBOR (a map whose keys fail to serialize), which is the case
    /// for no state type of this project.
    pub fn new(name: &str, version: u32, body: &impl Serialize) -> SavedState {
        let body = ciborium::Value::serialized(body).expect("states serialize");
        SavedState { name: name.to_owned(), version, body }
    }

    /// Returns the name of the device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the version of the layout.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns the body, for those who show it.
    pub fn body(&self) -> &ciborium::Value {
        &self.body
    }

    /// Returns the body, if it belongs to `name` and its version is at most `known`.
    pub fn load<T: DeserializeOwned>(
        &self,
        name: &'static str,
        known: u32,
    ) -> Result<T, RestoreError> {
        if self.name != name {
            return Err(RestoreError::OtherDevice { found: self.name.clone(), wanted: name });
        }
        if self.version > known {
            let name = self.name.clone();
            return Err(RestoreError::TooNew { name, found: self.version, known });
        }
        self.body.deserialized().map_err(|error| self.damaged(&error.to_string()))
    }

    /// Makes an error that says that this state is impossible, and why.
    pub fn damaged(&self, reason: &str) -> RestoreError {
        RestoreError::Damaged { name: self.name.clone(), reason: reason.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Old {
        latch: u8,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct New {
        latch: u8,
        #[serde(default)]
        added: u16,
    }

    #[test]
    fn a_later_version_reads_an_earlier_one() {
        let state = SavedState::new("pit", 1, &Old { latch: 9 });
        assert_eq!(state.load::<New>("pit", 2), Ok(New { latch: 9, added: 0 }));
    }

    #[test]
    fn an_unsuitable_state_is_refused() {
        let state = SavedState::new("pit", 3, &Old { latch: 9 });
        assert!(matches!(state.load::<Old>("pic", 3), Err(RestoreError::OtherDevice { .. })));
        assert!(matches!(state.load::<Old>("pit", 2), Err(RestoreError::TooNew { .. })));
        assert!(matches!(state.load::<String>("pit", 3), Err(RestoreError::Damaged { .. })));
    }
}
