//! Gives the program its version: that of the crate and, if it is built from a git checkout, the commit.

use std::process::Command;

/// Returns git's output for `arguments`, without the end of the line. Returns `None` outside of a checkout,
/// or without git.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// Returns whether this crate is part of the checkout that git finds, rather than a package that was unpacked
/// below another project.
fn is_in_checkout() -> bool {
    git(&["ls-files", "--error-unmatch", "build.rs"]).is_some()
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let mut version = env!("CARGO_PKG_VERSION").to_owned();
    if is_in_checkout() {
        // git appends commits and changes of branch to this file.
        if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
            println!("cargo::rerun-if-changed={log}");
        }
        if let Some(commit) = git(&["rev-parse", "--short=9", "HEAD"]) {
            // Build metadata (Semantic Versioning 2.0.0, item 10).
            version += "+g";
            version += &commit;
        }
    }
    println!("cargo::rustc-env=RING3_VERSION={version}");
}
