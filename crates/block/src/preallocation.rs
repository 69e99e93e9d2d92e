//! Room that an image takes before anything is written to it.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use thiserror::Error;

/// How much of a disk's room an image takes at once, in the words of qemu-img.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Preallocation {
    /// None: what is written takes it.
    #[default]
    Off,
    /// That of its tables, which lead to places for all data: the host may have no room for these.
    Metadata,
    /// That of all data, too: the host keeps it.
    Falloc,
    /// The same, by writing zeros: also where the host cannot keep room otherwise.
    Full,
}

impl Preallocation {
    /// All of them.
    pub const ALL: [Preallocation; 4] =
        [Preallocation::Off, Preallocation::Metadata, Preallocation::Falloc, Preallocation::Full];

    /// What it is called.
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

/// There is no such way to take room.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("preallocation is off, metadata, falloc or full, not \"{0}\"")]
pub struct BadPreallocation(String);

impl FromStr for Preallocation {
    type Err = BadPreallocation;

    fn from_str(text: &str) -> Result<Preallocation, BadPreallocation> {
        let known = Preallocation::ALL.into_iter().find(|mode| mode.name() == text);
        known.ok_or_else(|| BadPreallocation(text.to_owned()))
    }
}
