//! How the host's cache is used: `-t` and `-T`.

use std::str::FromStr;

use ring3_block::OpenOptions;
use thiserror::Error;

/// A mode, in QEMU's words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CacheMode {
    direct: bool,
    no_flush: bool,
}

/// There is no such mode.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "Invalid cache option: {0}; there are writeback, none, unsafe, writethrough and directsync"
)]
pub(crate) struct BadMode(String);

impl FromStr for CacheMode {
    type Err = BadMode;

    fn from_str(text: &str) -> Result<CacheMode, BadMode> {
        let (direct, no_flush) = match text {
            // All is flushed at the end in any case.
            "writeback" | "writethrough" => (false, false),
            "none" | "off" | "directsync" => (true, false),
            "unsafe" => (false, true),
            _ => return Err(BadMode(text.to_owned())),
        };
        Ok(CacheMode { direct, no_flush })
    }
}

impl CacheMode {
    /// `options` with this mode.
    pub(crate) fn apply(self, options: &OpenOptions) -> OpenOptions {
        let CacheMode { direct, no_flush } = self;
        OpenOptions { direct, no_flush, ..options.clone() }
    }
}
