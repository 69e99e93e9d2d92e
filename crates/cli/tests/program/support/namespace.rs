//! Network namespaces, in which servers can have any addresses and ports.

use std::process::{Command, Stdio};

/// Returns whether users may create namespaces. If not, this prints a note, and the test passes.
pub(crate) fn has_namespaces() -> bool {
    let status = in_namespace("true").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let is_there = status.is_ok_and(|status| status.success());
    if !is_there {
        ring3_skipped::host("this user can make no namespaces (unshare -r -m -n)");
    }
    is_there
}

/// Returns a shell's `script` in namespaces of its own, in which it is root. All its processes end with it.
pub(crate) fn in_namespace(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args([
        "-r",
        "-m",
        "-n",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "sh",
        "-ec",
    ]);
    command.arg(format!("ip link set lo up; {script}"));
    command
}
