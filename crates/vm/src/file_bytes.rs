//! The bytes of a file that the guest starts from: in memory, or still in a file of the host, such as that of
//! a saved machine, until a reset needs them.

use std::borrow::Cow;
use std::fmt::{self, Debug, Formatter};
use std::io::{self, ErrorKind};
use std::sync::{Arc, OnceLock};

use serde::de::Deserializer;
use serde::ser::{Error, Serializer};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use thiserror::Error;

/// Bytes at the start of a kernel by which a machine that is not reset can be made: its real-mode code, which
/// has at most 256 sectors of 512 bytes.
pub const START_LEN: usize = 256 * 512;

/// The bytes of a file for the guest. Clones share them.
#[derive(Clone, Default)]
pub struct FileBytes(Arc<Inner>);

#[derive(Default)]
struct Inner {
    here: OnceLock<Vec<u8>>,
    /// Where they are otherwise.
    elsewhere: Option<Elsewhere>,
}

struct Elsewhere {
    len: usize,
    source: Box<dyn ByteSource>,
}

/// A place from which the bytes of a file can be read.
pub trait ByteSource: Send + Sync {
    /// Reads the first `len` bytes of the file.
    fn read(&self, len: usize) -> io::Result<Vec<u8>>;
}

/// The reason why the machine cannot start again.
#[derive(Debug, Error)]
#[error("cannot read the kernel, or a file for it: {0}")]
pub struct UnreadableFile(#[source] io::Error);

impl FileBytes {
    /// Returns the bytes of a file of `len` bytes that are read from `source` when they are needed.
    pub fn in_source(len: usize, source: impl ByteSource + 'static) -> FileBytes {
        let elsewhere = Some(Elsewhere { len, source: Box::new(source) });
        FileBytes(Arc::new(Inner { here: OnceLock::new(), elsewhere }))
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        let elsewhere = self.0.elsewhere.as_ref().map_or(0, |elsewhere| elsewhere.len);
        self.0.here.get().map_or(elsewhere, Vec::len)
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether they are in memory.
    pub fn are_here(&self) -> bool {
        self.0.here.get().is_some() || self.0.elsewhere.is_none()
    }

    /// Returns all bytes, which are in memory from now on.
    pub fn get(&self) -> Result<&[u8], UnreadableFile> {
        let Inner { here, elsewhere } = &*self.0;
        match (here.get(), elsewhere) {
            (Some(bytes), _) => Ok(bytes),
            (None, None) => Ok(&[]),
            (None, Some(elsewhere)) => {
                let bytes = elsewhere.read(elsewhere.len)?;
                Ok(here.get_or_init(|| bytes))
            }
        }
    }

    /// Returns all bytes, which stay where they are.
    pub fn read(&self) -> Result<Cow<'_, [u8]>, UnreadableFile> {
        self.first(self.len())
    }

    /// Returns the bytes at the start of the file: all that is needed to recognize a kernel and to find its
    /// parts.
    pub fn start(&self) -> Result<Cow<'_, [u8]>, UnreadableFile> {
        self.first(self.len().min(START_LEN))
    }

    /// Returns at least the first `len` bytes.
    fn first(&self, len: usize) -> Result<Cow<'_, [u8]>, UnreadableFile> {
        match &self.0.elsewhere {
            Some(elsewhere) if !self.are_here() => elsewhere.read(len).map(Cow::Owned),
            _ => self.get().map(Cow::Borrowed),
        }
    }
}

impl Elsewhere {
    fn read(&self, len: usize) -> Result<Vec<u8>, UnreadableFile> {
        let bytes = self.source.read(len).map_err(UnreadableFile)?;
        if bytes.len() == len {
            Ok(bytes)
        } else {
            Err(UnreadableFile(ErrorKind::UnexpectedEof.into()))
        }
    }
}

impl From<Vec<u8>> for FileBytes {
    fn from(bytes: Vec<u8>) -> FileBytes {
        FileBytes(Arc::new(Inner { here: bytes.into(), elsewhere: None }))
    }
}

impl Debug for FileBytes {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl PartialEq for FileBytes {
    /// Bytes that cannot be read are equal to no others.
    fn eq(&self, other: &FileBytes) -> bool {
        let is_read =
            || matches!((self.read(), other.read()), (Ok(these), Ok(others)) if these == others);
        Arc::ptr_eq(&self.0, &other.0) || self.len() == other.len() && is_read()
    }
}

impl Eq for FileBytes {}

impl Serialize for FileBytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&self.read().map_err(S::Error::custom)?)
    }
}

impl<'de> Deserialize<'de> for FileBytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<FileBytes, D::Error> {
        Ok(ByteBuf::deserialize(from)?.into_vec().into())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A file that notes how much of it is read.
    struct Noted(usize, Arc<Mutex<Vec<usize>>>);

    impl ByteSource for Noted {
        fn read(&self, len: usize) -> io::Result<Vec<u8>> {
            self.1.lock().unwrap().push(len);
            Ok(vec![7; len.min(self.0)])
        }
    }

    #[test]
    fn bytes_are_read_when_they_are_needed() {
        let reads = Arc::default();
        let file = FileBytes::in_source(1 << 20, Noted(1 << 20, Arc::clone(&reads)));
        assert_eq!((file.len(), file.are_here()), (1 << 20, false));
        assert_eq!(&*file.start().unwrap(), vec![7; START_LEN]);
        let clone = file.clone();
        assert!(file == clone && !file.are_here());
        assert_eq!(file.get().unwrap().len(), 1 << 20);
        assert_eq!(clone.get().unwrap().len(), 1 << 20);
        assert_eq!(clone.start().unwrap().len(), 1 << 20);
        assert_eq!(*reads.lock().unwrap(), [START_LEN, 1 << 20]);
    }

    #[test]
    fn a_file_that_is_shorter_than_before_is_refused() {
        let file = FileBytes::in_source(100, Noted(99, Arc::default()));
        assert!(
            file.get().is_err() && file.start().is_err() && file != FileBytes::from(vec![7; 100])
        );
    }

    #[test]
    fn bytes_survive_saving() {
        let mut saved = Vec::new();
        let file = FileBytes::in_source(3, Noted(3, Arc::default()));
        ciborium::into_writer(&file, &mut saved).unwrap();
        assert_eq!(saved, [0x43, 7, 7, 7]);
        let read: FileBytes = ciborium::from_reader(&*saved).unwrap();
        assert!(read == file && read.are_here() && FileBytes::default().is_empty());
    }
}
