//! `-add-fd`: open files that the parent process passes to the program, and that other options name as
//! `/dev/fdset/SET`.

use super::properties::Properties;
use super::{Reason, Translation, reason};

/// The beginning of a set's name in other options.
const SETS: &str = "/dev/fdset/";
/// The directory in which the host shows this process's descriptors.
const DESCRIPTORS: &str = "/proc/self/fd/";

/// A set of descriptors. In QEMU the use of the file selects one of several; here each set has one.
#[derive(Debug, PartialEq, Eq)]
struct Set {
    number: u32,
    descriptor: u32,
}

impl Set {
    fn parse(value: &str) -> Result<Set, Reason> {
        let mut properties = Properties::parse(value, None);
        let set = properties.take("set").and_then(|text| text.parse().ok());
        let descriptor = properties.take("fd").and_then(|text| text.parse().ok());
        properties.take("opaque");
        properties.finish("set, fd and opaque")?;
        match (set, descriptor) {
            (Some(number), Some(descriptor)) => Ok(Set { number, descriptor }),
            _ => reason("give both numbers: set=SET,fd=DESCRIPTOR"),
        }
    }
}

/// `-add-fd`, after [`replaced`] has used it.
pub(super) fn add(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let Set { number, .. } = Set::parse(value)?;
    if all.fd_sets.contains(&number) {
        return Err(format!(
            "set {number} has a descriptor already: give each descriptor its own set"
        ));
    }
    all.fd_sets.push(number);
    Ok(())
}

/// Returns `arguments` with the paths of descriptors in place of the names of sets. A set may be defined
/// after it is named.
pub(super) fn replaced(arguments: &[&str]) -> Vec<String> {
    let values = arguments.windows(2).filter(|pair| ["-add-fd", "--add-fd"].contains(&pair[0]));
    // Errors are reported where the option is read.
    let sets: Vec<_> = values.filter_map(|pair| Set::parse(pair[1]).ok()).collect();
    arguments.iter().map(|argument| replace(argument, &sets)).collect()
}

fn replace(argument: &str, sets: &[Set]) -> String {
    let mut parts = argument.split(SETS);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(part.len());
        let (number, rest) = part.split_at(digits);
        let set = sets.iter().find(|set| number.parse() == Ok(set.number));
        let place = set.map(|set| format!("{DESCRIPTORS}{}", set.descriptor));
        text += &place.unwrap_or_else(|| format!("{SETS}{number}"));
        text += rest;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_may_be_used_before_they_are_defined() {
        let line = "a=/dev/fdset/1,b=/dev/fdset/12 -add-fd set=1,fd=7,opaque=x /dev/fdset/1 -add-fd set=12,fd=3";
        let words: Vec<_> = line.split(' ').collect();
        let replaced = replaced(&words);
        assert_eq!(replaced[0], "a=/proc/self/fd/7,b=/proc/self/fd/3");
        assert_eq!(replaced[3], "/proc/self/fd/7");
        assert_eq!(replace("/dev/fdset/2,/dev/fdset/", &[]), "/dev/fdset/2,/dev/fdset/");
        for wrong in ["", "set=1", "fd=1", "set=-1,fd=2", "set=1,fd=x", "set=1,fd=2,mode=3"] {
            assert!(Set::parse(wrong).is_err(), "{wrong}");
        }
    }
}
