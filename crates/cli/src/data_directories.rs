//! The directories in which the host keeps data files of programs, by the XDG Base Directory Specification.

use std::env;
use std::path::PathBuf;

/// Returns the user's own directory, and those of the system if the environment names some.
pub(crate) fn data_directories() -> (Option<PathBuf>, Vec<PathBuf>) {
    let dirs = env::var_os("XDG_DATA_DIRS")
        .map(|dirs| env::split_paths(&dirs).filter(|dir| dir.is_absolute()).collect())
        .unwrap_or_default();
    let home = env::var_os("XDG_DATA_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".local/share")));
    (home, dirs)
}
