//! The documents' statements about the source tree and the program are true.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::ring3;

/// Returns the root directory of the source tree.
fn tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the names in a directory of the source tree.
fn names(directory: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(tree().join(directory)).expect("a directory of the tree");
    entries.map(|entry| entry.unwrap().file_name().into_string().expect("a name")).collect()
}

/// Returns all pages for people: those at the tree's root, and the book's chapters.
fn pages() -> Vec<PathBuf> {
    let top = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"].map(|page| tree().join(page));
    let book = names("book/src").into_iter().map(|page| tree().join("book/src").join(page));
    top.into_iter().chain(book.filter(|page| page.extension().is_some_and(|e| e == "md"))).collect()
}

/// Returns whether `name` has the extension `kind`.
fn is_of_kind(name: &str, kind: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == kind)
}

/// Returns the parts of `text` between back quotes, except in code blocks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    let prose = text.split("```").step_by(2);
    prose.flat_map(|prose| prose.split('`').skip(1).step_by(2))
}

#[test]
fn the_architecture_can_be_read_in_a_sitting() {
    let page = read(&tree().join("ARCHITECTURE.md"));
    assert!(page.lines().count() <= 200, "{} lines", page.lines().count());
    for line in page.lines() {
        assert!(line.chars().count() <= 100, "longer than 100 columns: {line}");
    }
}

/// Where Cargo does not look for examples in the documentation of code, there are none.
#[test]
fn examples_in_documentation_are_tested() {
    for name in names("crates") {
        let root = tree().join("crates").join(&name);
        if !read(&root.join("Cargo.toml")).contains("doctest = false") {
            continue;
        }
        let mut folders = vec![root.join("src")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("a directory of the tree") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let text = read(&path);
                    let mut lines = text.lines().map(str::trim_start);
                    let is_example =
                        |line: &str| line.starts_with("/// ```") || line.starts_with("//! ```");
                    assert!(!lines.any(is_example), "{}: remove `doctest = false`", path.display());
                }
            }
        }
    }
}

#[test]
fn crates_use_only_crates_below_them() {
    let page = read(&tree().join("ARCHITECTURE.md"));
    let layers = page.split_once("```text\n").expect("the list of crates").1;
    let layers = layers.split_once("```").expect("its end").0;
    let crates: Vec<&str> =
        layers.lines().map(|line| line.split(' ').next().expect("a name")).collect();
    let listed: BTreeSet<String> = crates.iter().map(|&name| name.to_owned()).collect();
    assert_eq!(listed, names("crates"), "the page does not list the crates of the tree");
    for (place, (name, line)) in crates.iter().zip(layers.lines()).enumerate() {
        let directory = tree().join("crates").join(name);
        let manifest = read(&directory.join("Cargo.toml"));
        let used = manifest.split_once("[dependencies]").map_or("", |(_, rest)| rest);
        let used = used.split("\n[").next().unwrap_or_default();
        for line in used.lines().filter_map(|line| line.strip_prefix("ring3-")) {
            let used = line.split(['.', ' ']).next().expect("a name");
            let at = crates.iter().position(|name| *name == used);
            let at = at.unwrap_or_else(|| panic!("the page does not list {used}"));
            assert!(at > place, "{name} uses {used}, which is not below it");
        }
        let root = ["src/lib.rs", "src/main.rs"].map(|root| directory.join(root));
        let root = root.iter().find(|root| root.exists()).expect("the crate's root");
        let forbids = read(root).contains("#![forbid(unsafe_code)]");
        assert_ne!(forbids, line.ends_with("unsafe"), "the mark of {name}");
    }
}

#[test]
fn files_that_pages_name_are_there() {
    for page in pages() {
        if page.ends_with("CHANGELOG.md") {
            continue; // It mentions files that no longer exist.
        }
        let text = read(&page);
        for name in quoted(&text) {
            // `src/lib.rs` stands for the root of each crate.
            let is_source = is_of_kind(name, "rs") && name.contains('/') && name != "src/lib.rs";
            let in_tree = ["crates", "."].map(|directory| tree().join(directory).join(name));
            assert!(
                !is_source || in_tree.iter().any(|path| path.exists()),
                "{}: there is no {name}",
                page.display()
            );
        }
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            if file.is_empty() || target.contains("://") {
                continue;
            }
            let path = page.parent().expect("a directory").join(file);
            assert!(path.exists(), "{}: {target} leads to nothing", page.display());
        }
    }
}

#[test]
fn the_book_has_all_its_chapters() {
    let summary = read(&tree().join("book/src/SUMMARY.md"));
    for page in names("book/src").iter().filter(|page| is_of_kind(page, "md")) {
        let is_listed = page == "SUMMARY.md" || summary.contains(&format!("({page})"));
        assert!(is_listed, "SUMMARY.md does not list {page}");
    }
}

/// Returns the options that `ring3 COMMAND --help` lists.
fn options(command: &str) -> BTreeSet<String> {
    let help = ring3().args([command, "--help"]).output().expect("the program starts");
    let help = String::from_utf8(help.stdout).expect("help is text");
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let words = lines.flat_map(|line| line.split([' ', ',', '=', '[']).collect::<Vec<_>>());
    words.filter(|word| word.starts_with("--")).map(str::to_owned).collect()
}

#[test]
fn the_book_describes_every_option() {
    for (command, chapters) in [
        ("run", ["command-line.md", "images.md", "repetition.md", "network.md"].as_slice()),
        ("switch", &["network.md"]),
        ("vblock", &["vblock.md", "images.md"]),
        ("supervisor", &["supervisor.md"]),
        ("ctl", &["supervisor.md"]),
        ("bench", &["benchmarks.md"]),
        ("netmodel", &["netmodel.md"]),
    ] {
        let text: String =
            chapters.iter().map(|page| read(&tree().join("book/src").join(page))).collect();
        let untold: Vec<String> = options(command)
            .into_iter()
            .filter(|option| option != "--help" && !text.contains(option.as_str()))
            .collect();
        assert!(untold.is_empty(), "{chapters:?} do not mention {untold:?} of ring3 {command}");
    }
}
