//! The kernels that the book's chapter for authors of kernels builds and boots, with the commands printed there.

use std::process::Command;

use crate::support::{Directory, ring3};

/// The chapter.
const CHAPTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../book/src/kernels.md");
/// Where its commands are executed.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

#[test]
fn the_kernels_of_the_book_do_what_is_printed_there() {
    let chapter = std::fs::read_to_string(CHAPTER).unwrap();
    let sessions: Vec<_> = chapter.split("```console\n").skip(1).collect();
    assert_eq!(sessions.len(), 2, "one of 32 bits and one of 64");
    for session in sessions {
        does_what_is_printed(session.split_once("```").unwrap().0);
    }
}

fn does_what_is_printed(session: &str) {
    let mut lines = session.lines();
    let build = lines.next().unwrap().strip_prefix("$ gcc ").expect("the compiler comes first");
    let boot = lines.next().unwrap().strip_prefix("$ ring3 ").expect("then the boot");
    let (printed, _, status) = (lines.next(), lines.next(), lines.next());

    let directory = Directory::new();
    let kernel = directory.path("hello");
    let in_place = |words: &str| -> Vec<String> {
        let replace = |word: &str| match word {
            "hello" | "hello64" => kernel.display().to_string(),
            word => word.to_owned(),
        };
        words.split(' ').map(replace).collect()
    };
    let built = Command::new("gcc").args(in_place(build)).current_dir(ROOT).status().unwrap();
    assert!(built.success());
    for engine in ["translator", "interpreter"] {
        let output =
            ring3().args(in_place(boot)).args(["--engine", engine]).output().expect("it starts");
        assert_eq!(output.status.code(), status.map(|status| status.parse().unwrap()));
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text.lines().next(), printed, "{engine}");
    }
}
