//! Errors in the words of qemu-img, by which scripts recognize them.

use ring3_block::{Error, Fault};

/// Returns qemu-img's words for an error, or those of the library if qemu-img has none.
pub(super) fn sentence(error: &Error) -> String {
    match error {
        Error::Missing { path } if path.to_string_lossy().contains("://") => error.to_string(),
        Error::Missing { path } => {
            let path = path.display();
            format!("Could not open '{path}': Could not open '{path}': No such file or directory")
        }
        Error::Permission { path, hint, .. } => {
            let path = path.display();
            format!("Could not open '{path}': Could not open '{path}': Permission denied ({hint})")
        }
        Error::InUse { path, writes } => {
            let path = path.display();
            let (lock, hint) = if *writes {
                ("\"write\"", "end that process, or open the image for reading")
            } else {
                (
                    "shared \"write\"",
                    "end that process, or read the image in its present state with -U (--force-share)",
                )
            };
            format!(
                "Could not open '{path}': Failed to get {lock} lock\nIs another process using the image [{path}]? ({hint})"
            )
        }
        Error::Backing { path, source } => {
            let source = sentence(source);
            format!("Could not open '{}': Could not open backing file: {source}", path.display())
        }
        Error::In {
            path,
            fault: fault @ (Fault::Damaged(_) | Fault::Refused(_) | Fault::Unsupported(_)),
        } => {
            format!("'{}': {fault}", path.display())
        }
        error => error.to_string(),
    }
}
