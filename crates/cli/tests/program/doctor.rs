//! `ring3 doctor` reports what the host permits.

use std::process::{Command, Output};

use crate::support::ring3;

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("it is text")
}

/// Both forms must name the engine that really runs.
#[test]
fn the_diagnosis_is_right() {
    let output = ring3().arg("doctor").output().unwrap();
    let said = text(&output);
    let parts = ["BMI2", "FSGSBASE", "memfd", "vm.max_map_count", "ulimit -v", "KVM: not needed"];
    let of_rights = ["Landlock: ", "seccomp: ", "ping by this user: ", "--sandbox auto"];
    for part in parts.iter().chain(&of_rights) {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    let has_translator = said.contains("--engine auto chooses the translator\n");
    assert_eq!(output.status.code(), Some(i32::from(!has_translator)), "{said}");
    assert_eq!(said.contains("\nmissing "), !has_translator, "{said}");

    let output = ring3().args(["doctor", "--output", "json"]).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["engine"] == "translator", has_translator, "{json}");
    assert_eq!(json["reason"].is_null(), has_translator, "{json}");
    let checks = json["checks"].as_array().unwrap();
    assert_eq!(checks.len(), said.lines().count() - 1);
}

#[test]
fn too_few_addresses_are_reported() {
    let program = ring3();
    let output = Command::new("sh")
        .args(["-c", "ulimit -v 1000000; exec \"$0\" doctor"])
        .arg(program.get_program())
        .output()
        .unwrap();
    let said = text(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("poor     addresses (ulimit -v): 976 MiB; ulimit -v unlimited"),
        "{said}"
    );
    assert!(said.contains("--engine auto chooses the interpreter: "), "{said}");
}

#[test]
fn machines_that_fit_and_that_do_not_are_told_apart() {
    let small = ring3().args(["doctor", "-m", "1M"]).output().unwrap();
    let said = text(&small);
    assert!(said.contains("\nok       memory of the host (with swap): "), "{said}");
    assert!(said.contains("\n1 machine with 1 MiB fits into this host\n"), "{said}");
    let large =
        ring3().args(["doctor", "-m", "32G", "--count", "1000", "--output", "json"]).output();
    let large = large.unwrap();
    assert_eq!(large.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_slice(&large.stdout).unwrap();
    assert_eq!(json["machines"]["fits"], false, "{json}");
    let checks = json["checks"].as_array().unwrap();
    assert!(checks.iter().any(|check| check["state"] == "short"), "{json}");
    let elsewhere =
        ring3().args(["doctor", "-m", "1M", "--memory-path", "/proc"]).output().unwrap();
    let said = text(&elsewhere);
    assert_eq!(elsewhere.status.code(), Some(1), "{said}");
    assert!(said.contains("\nshort    file system of --memory-path: cannot use /proc"), "{said}");
}
