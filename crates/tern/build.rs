//! Builds Tern from the sources in `guest/`, with `make` and the host's C compiler. Without these, the crate
//! is empty, and cargo prints a warning.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What `guest/Makefile` reads. The programs for other purposes in `guest/` are not part of Tern.
const SOURCES: [&str; 11] = [
    "Makefile", "include", "kernel", "lib", "servers", "drivers", "commands", "etc", "suite",
    "tests", "tools",
];

fn main() {
    let guest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", guest.join(source).display());
    }
    println!("cargo::rustc-check-cfg=cfg(has_tern)");
    match make(&guest, &out.join("tern")) {
        Ok(()) => println!("cargo::rustc-cfg=has_tern"),
        Err(reason) => println!(
            "cargo::warning=Tern, the system that `ring3 run` boots by default, is left out: {reason}"
        ),
    }
}

/// Builds Tern in the folder `build`.
///
/// # Errors
/// What is missing on this host.
///
/// # Panics
/// When the sources do not compile: that is a mistake in them.
fn make(guest: &Path, build: &Path) -> Result<(), String> {
    fs::create_dir_all(build).map_err(|error| format!("{}: {error}", build.display()))?;
    for (program, needed) in [("make", "--version"), ("gcc", "-m32")] {
        let check: &[&str] =
            if program == "gcc" { &[needed, "-E", "-xc", "/dev/null"] } else { &[needed] };
        let found =
            Command::new(program).args(check).stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            return Err(format!("{program} is needed to build it"));
        }
    }
    let jobs = env::var("NUM_JOBS").unwrap_or_else(|_| "1".into());
    let status = Command::new("make")
        // Not those of a make that runs cargo.
        .env_remove("MAKEFLAGS")
        .env_remove("MFLAGS")
        .arg("--silent")
        .arg(format!("--jobs={jobs}"))
        .arg("-C")
        .arg(guest)
        .arg(format!("BUILD={}", build.display()))
        .status()
        .map_err(|error| format!("make cannot be started: {error}"))?;
    assert!(status.success(), "guest/ does not compile");
    Ok(())
}
