//! The end of a log, which grows.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::sleep;

use crate::protocol::OUTPUT_MAX;

/// How often the file is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// See the module.
#[derive(Debug)]
pub(super) struct Tail {
    path: PathBuf,
    at: Option<u64>,
    most: u64,
}

impl Tail {
    /// Makes one that begins at most `most` bytes before the present end.
    pub(super) fn new(path: PathBuf, most: u32) -> Tail {
        Tail { path, at: None, most: most.into() }
    }

    /// Waits for the next bytes. This may be given up, and begun again.
    pub(super) async fn next(&mut self) -> Vec<u8> {
        loop {
            // A log that cannot be read now is looked at again.
            if let Ok(bytes) = self.read()
                && !bytes.is_empty()
            {
                return bytes;
            }
            sleep(LOOK).await;
        }
    }

    fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened?,
        };
        let length = file.metadata()?.len();
        // One that has become shorter has lost its beginning.
        let at = self.at.filter(|at| *at <= length);
        let at = at.unwrap_or_else(|| length.saturating_sub(self.most));
        file.seek(SeekFrom::Start(at))?;
        let mut bytes = Vec::new();
        file.take(OUTPUT_MAX as u64).read_to_end(&mut bytes)?;
        self.at = Some(at + bytes.len() as u64);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_log_is_read_from_near_its_end_and_again_when_it_was_shortened() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut tail = Tail::new(path.clone(), 4);
        assert_eq!(tail.read().unwrap(), b"");
        fs::write(&path, "one two").unwrap();
        assert_eq!(tail.read().unwrap(), b" two");
        assert_eq!(tail.read().unwrap(), b"");
        fs::write(&path, "one two three").unwrap();
        assert_eq!(tail.read().unwrap(), b" three");
        fs::write(&path, "four").unwrap();
        assert_eq!(tail.read().unwrap(), b"four");
    }
}
