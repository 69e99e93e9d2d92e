//! The names of Linux's system calls and of its errors.

use std::collections::BTreeMap;

/// The table; its beginning explains its form.
const TABLE: &str = include_str!("linux_i386.txt");

/// How an argument is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Argument {
    /// As a decimal number.
    Number,
    /// As a hexadecimal number.
    Word,
    /// As an octal number.
    Permissions,
    /// As the string at this address.
    String,
    /// As the bytes at this address; the next argument is their number.
    Bytes,
}

/// A system call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamedCall {
    pub(super) name: &'static str,
    pub(super) arguments: Vec<Argument>,
    returns_address: bool,
}

/// All names.
#[derive(Debug)]
pub(super) struct Names {
    calls: BTreeMap<u32, NamedCall>,
    errors: BTreeMap<i32, &'static str>,
}

impl Names {
    pub(super) fn new() -> Names {
        let mut names = Names { calls: BTreeMap::new(), errors: BTreeMap::new() };
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.split(' ');
            let Some((number, name)) = words.next().zip(words.next()) else { continue };
            if let Ok(number) = number.parse::<u32>() {
                let letters = words.next().unwrap_or_default();
                let arguments = letters.chars().map(|letter| match letter {
                    'd' => Argument::Number,
                    'o' => Argument::Permissions,
                    's' => Argument::String,
                    'b' => Argument::Bytes,
                    _ => Argument::Word,
                });
                let arguments = arguments.collect();
                let returns_address = words.next().is_some();
                names.calls.insert(number, NamedCall { name, arguments, returns_address });
            } else if let Ok(number) = number.parse() {
                names.errors.insert(number, name);
            }
        }
        names
    }

    /// Returns the call with this number.
    pub(super) fn call(&self, number: u32) -> Option<&NamedCall> {
        self.calls.get(&number)
    }

    /// Describes the result of a call.
    pub(super) fn result(&self, number: u32, result: i32) -> String {
        match self.errors.get(&result) {
            Some(name) => format!("{result} {name}"),
            None if self.call(number).is_some_and(|call| call.returns_address) => {
                format!("{result:#x}")
            }
            None => result.to_string(),
        }
    }
}

/// Returns whether a call does not return to where it was made: exit, execve, sigreturn, rt_sigreturn,
/// exit_group, execveat.
pub(super) fn goes_elsewhere(number: u32) -> bool {
    never_returns(number) || matches!(number, 11 | 358)
}

/// Returns whether a call does not return to where it was made even if it fails: those without execve and
/// execveat.
pub(super) fn never_returns(number: u32) -> bool {
    matches!(number, 1 | 119 | 173 | 252)
}

/// Returns whether a call makes a process: fork, clone, vfork, clone3.
pub(super) fn makes_processes(number: u32) -> bool {
    matches!(number, 2 | 120 | 190 | 435)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_whole() {
        let names = Names::new();
        assert_eq!((names.calls.len(), names.errors.len()), (440, 130));
        let of = |number| names.call(number).map(|call| call.name);
        assert_eq!(
            [1, 119, 173, 252].map(of),
            [Some("exit"), Some("sigreturn"), Some("rt_sigreturn"), Some("exit_group")]
        );
        assert_eq!(
            [2, 120, 190, 435, 11, 358].map(of),
            [
                Some("fork"),
                Some("clone"),
                Some("vfork"),
                Some("clone3"),
                Some("execve"),
                Some("execveat")
            ]
        );
        assert!(names.calls.values().all(|call| call.arguments.len() <= 6));
        let bytes = |call: &NamedCall| call.arguments.last() == Some(&Argument::Bytes);
        assert!(!names.calls.values().any(bytes), "the number of bytes is missing");
    }

    #[test]
    fn results_are_numbers_addresses_and_errors() {
        let names = Names::new();
        assert_eq!(names.result(5, 3), "3");
        assert_eq!(names.result(5, -2), "-2 ENOENT");
        assert_eq!(names.result(192, 0xb7f0_0000_u32.cast_signed()), "0xb7f00000");
        assert_eq!(names.result(5, -600), "-600");
    }
}
