//! How the host's cache is used: `-t` and `-T`.

use std::str::FromStr;

use ring3_block::OpenOptions;
use thiserror::Error;

/// A mode, by QEMU's names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CacheMode {
    direct: bool,
    no_flush: bool,
}

/// The mode is unknown.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("Invalid cache option: {0}; give writeback, none, unsafe, writethrough or directsync")]
pub(crate) struct BadMode(String);

impl FromStr for CacheMode {
    type Err = BadMode;

    fn from_str(text: &str) -> Result<CacheMode, BadMode> {
        let (direct, no_flush) = match text {
            // Both are flushed at the end.
            "writeback" | "writethrough" => (false, false),
            "none" | "off" | "directsync" => (true, false),
            "unsafe" => (false, true),
            _ => return Err(BadMode(text.to_owned())),
        };
        Ok(CacheMode { direct, no_flush })
    }
}

impl CacheMode {
    /// Returns `options` with this mode.
    pub(crate) fn apply(self, options: &OpenOptions) -> OpenOptions {
        let CacheMode { direct, no_flush } = self;
        OpenOptions { direct, no_flush, ..options.clone() }
    }
}
