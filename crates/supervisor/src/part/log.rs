//! The log of a part: a file to which its process appends what it writes to its standard output and error.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// A log that is longer loses its first half.
const LONGEST: u64 = 1 << 20;
/// The most bytes that are read from the end.
const END: u64 = 64 << 10;

/// Returns the end of the log at `path`: whole lines, 64 KiB at most.
pub(crate) fn end(path: &Path) -> io::Result<String> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        opened => opened?,
    };
    let skipped = file.metadata()?.len().saturating_sub(END);
    file.seek(SeekFrom::Start(skipped))?;
    let mut bytes = Vec::new();
    file.take(END).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let begin = if skipped > 0 { text.find('\n').map_or(0, |at| at + 1) } else { 0 };
    Ok(text[begin..].to_owned())
}

/// Returns the last line of the log that gives a reason, behind a colon, or nothing.
pub(super) fn last_reason(path: &Path) -> String {
    let text = end(path).unwrap_or_default();
    // Those of ring3, and of its parser of command lines, which goes on with advice.
    let reason = |line: &str| {
        ["ring3: ", "error: "]
            .iter()
            .find_map(|before| line.strip_prefix(before))
            .map(str::to_owned)
    };
    text.lines().rev().find_map(reason).map_or(String::new(), |reason| format!(": {reason}"))
}

/// Shortens a log that is too long. The process appends, so it need not know.
pub(super) fn shorten(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).append(true).open(path)?;
    let length = file.metadata()?.len();
    if length <= LONGEST {
        return Ok(());
    }
    file.seek(SeekFrom::Start(length - LONGEST / 2))?;
    let mut kept = Vec::new();
    (&file).take(LONGEST).read_to_end(&mut kept)?;
    file.set_len(0)?;
    file.write_all(&kept)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_log_keeps_its_end() {
        let path = std::env::temp_dir().join(format!("ring3-log-{}", std::process::id()));
        let lines: Vec<_> = (0..100_000).map(|number| format!("line {number:06}\n")).collect();
        let lines = lines.concat();
        fs::write(&path, &lines).unwrap();
        shorten(&path).unwrap();
        let kept = fs::read_to_string(&path).unwrap();
        assert_eq!(kept.len() as u64, LONGEST / 2);
        assert!(lines.ends_with(&kept));
        let end = end(&path).unwrap();
        assert!(end.starts_with("line ") && end.len() as u64 <= END && kept.ends_with(&end));
        assert_eq!(last_reason(&path), "");
        fs::write(
            &path,
            "error: one\nring3: no such file\n\nFor more information, try '--help'.\n",
        )
        .unwrap();
        assert_eq!(last_reason(&path), ": no such file");
        fs::remove_file(&path).unwrap();
        assert_eq!(last_reason(&path), "");
    }
}
