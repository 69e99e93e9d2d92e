//! Room that an image takes before anything is written to it.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use thiserror::Error;

/// The part of a disk's room that an image takes at once, in the words of qemu-img.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Preallocation {
    /// None. Writes take room when they need it.
    #[default]
    Off,
    /// Room for the tables, which then lead to places for all data. The host may have no room for these data.
    Metadata,
    /// Room for all data too, which the host reserves.
    Falloc,
    /// Room for all data, by writing zeros. This works even if the host cannot reserve room otherwise.
    Full,
}

impl Preallocation {
    /// All values.
    pub const ALL: [Preallocation; 4] =
        [Preallocation::Off, Preallocation::Metadata, Preallocation::Falloc, Preallocation::Full];

    /// Returns the value's name.
    pub fn name(self) -> &'static str {
        match self {
            Preallocation::Off => "off",
            Preallocation::Metadata => "metadata",
            Preallocation::Falloc => "falloc",
            Preallocation::Full => "full",
        }
    }
}

impl Display for Preallocation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No value has this name.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("preallocation must be off, metadata, falloc or full, not \"{0}\"")]
pub struct BadPreallocation(String);

impl FromStr for Preallocation {
    type Err = BadPreallocation;

    fn from_str(text: &str) -> Result<Preallocation, BadPreallocation> {
        let known = Preallocation::ALL.into_iter().find(|mode| mode.name() == text);
        known.ok_or_else(|| BadPreallocation(text.to_owned()))
    }
}
