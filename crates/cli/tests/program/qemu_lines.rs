//! Command lines of QEMU from documentation: each is run unchanged, with the result and the messages of the
//! table.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Directory, HALT_FOR_EVER, kernel};

const TABLE: &str = include_str!("qemu_lines/table.txt");

/// A line of the table.
struct Case {
    outcome: String,
    /// The beginnings of the messages.
    named: Vec<String>,
    words: Vec<String>,
}

/// Splits a line into words as a shell does, with quotation marks of both kinds.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for character in line.chars() {
        match (quote, character) {
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (Some(open), character) if character == open => quote = None,
            (None, ' ') => words.extend(word.take()),
            (_, character) => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
}

fn cases() -> Vec<Case> {
    let lines = TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', 'f']));
    lines
        .map(|line| {
            let (head, command) = line.split_once(": qemu").unwrap_or_else(|| panic!("{line}"));
            let (outcome, named) = head.split_once(" [").unwrap_or((head, "]"));
            let named = named.trim_end_matches(']').split("; ").filter(|name| !name.is_empty());
            Case {
                outcome: outcome.to_owned(),
                named: named.map(|name| name.replace('\'', "")).collect(),
                words: words(&format!("qemu{command}")),
            }
        })
        .collect()
}

/// Returns the names of files in the table, and their contents.
fn files() -> HashMap<&'static str, Vec<u8>> {
    let mut files = HashMap::new();
    for line in TABLE.lines().filter_map(|line| line.strip_prefix("files ")) {
        let (kind, names) = line.split_once(": ").unwrap();
        let contents = match kind {
            "disk" => vec![0; 1 << 20],
            "cdrom" => vec![0; 64 << 10],
            "diskette" => vec![0; 1_474_560],
            "kernel" => kernel(HALT_FOR_EVER),
            "text" => b"text\n".to_vec(),
            _ => panic!("{line}"),
        };
        files.extend(names.split(' ').map(|name| (name, contents.clone())));
    }
    files
}

/// Asserts that each of `named` begins one of `lines`, and that there are no others.
#[track_caller]
fn told_of(lines: &[&str], named: &[String], line: &str) {
    let all = lines.join("\n");
    for name in named {
        assert!(
            lines.iter().any(|said| said.starts_with(name.as_str())),
            "{line}\n{name} is not in:\n{all}"
        );
    }
    assert_eq!(lines.len(), named.len(), "{line}\n{all}");
}

/// Runs one case in `directory`, which contains the files and the programs.
fn run(case: &Case, directory: &Path) {
    let Case { outcome, named, words } = case;
    let line = words.join(" ");
    let output = Command::new(directory.join(&words[0]))
        .args(&words[1..])
        .arg("-dry-run")
        .current_dir(directory)
        .env_remove("RING3_LOG")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    let status = output.status.code();
    match outcome.as_str() {
        "ok" | "warns" => {
            assert_eq!(status, Some(0), "{line}\n{errors}");
            let warnings: Vec<_> =
                errors.lines().filter_map(|line| line.strip_prefix("ring3: warning: ")).collect();
            told_of(&warnings, named, &line);
        }
        "refuses" => {
            assert_eq!(status, Some(2), "{line}\n{errors}");
            let lines: Vec<_> = errors.lines().collect();
            let refusals: Vec<_> = match lines.as_slice() {
                [only] => vec![only.strip_prefix("ring3: ").unwrap()],
                [_, refusals @ ..] => refusals.iter().map(|line| line.trim_start()).collect(),
                [] => vec![],
            };
            told_of(&refusals, named, &line);
        }
        "tells" => {
            let text = String::from_utf8(output.stdout).unwrap();
            assert_eq!((status, errors.as_str()), (Some(0), ""), "{line}");
            assert!(named.iter().all(|part| text.contains(part)), "{line}\n{text}");
        }
        _ => panic!("{outcome}"),
    }
}

#[test]
fn command_lines_from_documentation_behave_as_the_table_says() {
    let directory = Directory::new();
    for (name, contents) in files() {
        directory.file(name, &contents);
    }
    for program in ["qemu-system-i386", "qemu-system-x86_64"] {
        symlink(env!("CARGO_BIN_EXE_ring3"), directory.path(program)).unwrap();
    }
    let cases = cases();
    assert!(cases.len() >= 100, "{}", cases.len());
    let home = fs::canonicalize(directory.path(".")).unwrap();
    let mut failures = Vec::new();
    for case in &cases {
        let ran = std::panic::catch_unwind(|| run(case, &home));
        if ran.is_err() {
            failures.push(case.words.join(" "));
        }
    }
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

/// ring3 knows every option of the installed QEMU.
#[test]
fn every_option_of_the_installed_qemu_is_known() {
    let output = |program: &mut Command| {
        program
            .arg("-help")
            .output()
            .ok()
            .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let Some(theirs) = output(&mut Command::new("qemu-system-i386")) else {
        ring3_skipped::package("qemu-system-i386 is missing: install the package qemu-system-x86");
        return;
    };
    let ours = output(crate::support::ring3().arg("qemu")).unwrap();
    let is_known = |name: &str| ours.lines().any(|line| line.split(' ').next() == Some(name));
    let options = theirs.lines().filter(|line| line.starts_with('-'));
    let options = options.filter_map(|line| line.split([' ', '\t']).next());
    let names = options.flat_map(|names| names.split('/')).map(|name| name.replace("--", "-"));
    let missing: Vec<_> =
        names.filter(|name| !is_known(name) && name != "-h" && name != "-version").collect();
    assert!(missing.is_empty(), "{missing:?}");
}
