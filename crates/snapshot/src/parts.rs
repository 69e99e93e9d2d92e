//! Reads the parts of the file of a saved machine.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use flate2::read::DeflateDecoder;
use ring3_vm::FileBytes;
use ring3_vm::file_bytes::ByteSource;

use crate::error::OpenError;
use crate::format::{FILE_MAX, Part};

/// The file, for reading its parts.
#[derive(Debug, Clone)]
pub(crate) struct Parts {
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<File>,
}

impl Parts {
    /// Reads `part` into `bytes`, which are as many as it has.
    pub(crate) fn read(&self, part: &Part, bytes: &mut [u8]) -> Result<(), OpenError> {
        let is_packed = part.stored < part.len;
        let mut packed = vec![0; if is_packed { part.stored as usize } else { 0 }];
        let stored = if is_packed { &mut *packed } else { &mut *bytes };
        self.file.read_exact_at(stored, part.at).map_err(|source| self.fails(source))?;
        if crc32fast::hash(stored) != part.crc {
            return Err(
                self.damaged(&format!("{} bytes at {:#x} have changed", part.stored, part.at))
            );
        }
        if is_packed {
            let mut decoder = DeflateDecoder::new(&*packed);
            let is_whole = decoder.read_exact(bytes).is_ok()
                && decoder.read(&mut [0]).is_ok_and(|more| more == 0);
            if !is_whole {
                return Err(self.damaged(&format!(
                    "{} bytes at {:#x} cannot be unpacked",
                    part.stored, part.at
                )));
            }
        }
        Ok(())
    }

    /// Returns the error that the host could not read the file.
    pub(crate) fn fails(&self, source: io::Error) -> OpenError {
        OpenError::Read { path: self.path.clone(), source }
    }

    /// Returns the error that the file is damaged.
    pub(crate) fn damaged(&self, reason: &str) -> OpenError {
        OpenError::Damaged { path: self.path.clone(), reason: reason.to_owned() }
    }
}

/// A file that the guest starts from, such as the kernel. It is read when the machine is reset.
pub(crate) struct KeptFile {
    from: Parts,
    parts: Vec<Part>,
}

impl KeptFile {
    /// Returns the bytes of the file that is in `parts`, or None if these do not follow each other or one of
    /// them `is_possible` not.
    pub(crate) fn bytes_in(
        from: Parts,
        parts: &[Part],
        is_possible: impl Fn(&Part) -> bool,
    ) -> Option<FileBytes> {
        let mut len = 0;
        for part in parts {
            if !is_possible(part) || part.to != len {
                return None;
            }
            len += u64::from(part.len);
        }
        let file = KeptFile { from, parts: parts.to_vec() };
        (len <= FILE_MAX).then(|| FileBytes::in_source(len as usize, file))
    }
}

impl ByteSource for KeptFile {
    fn read(&self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for part in &self.parts {
            if bytes.len() >= len {
                break;
            }
            let start = bytes.len();
            bytes.resize(start + part.len as usize, 0);
            self.from.read(part, &mut bytes[start..]).map_err(io::Error::other)?;
        }
        bytes.truncate(len);
        Ok(bytes)
    }
}
