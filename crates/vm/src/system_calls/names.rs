//! The names of Linux's system calls and of its errors.

use std::collections::BTreeMap;

/// The tables; the beginning of the first one explains their form.
const I386: &str = include_str!("linux_i386.txt");
const X86_64: &str = include_str!("linux_x86_64.txt");

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

/// All names of a system.
#[derive(Debug)]
pub(super) struct Names {
    calls: BTreeMap<u64, NamedCall>,
    errors: BTreeMap<i64, &'static str>,
    /// The highest address of a program.
    last_address: u64,
}

impl Names {
    /// Returns those of Linux on i386.
    pub(super) fn of_i386() -> Names {
        let mut names = Names {
            calls: BTreeMap::new(),
            errors: BTreeMap::new(),
            last_address: u32::MAX.into(),
        };
        names.add(I386);
        names
    }

    /// Returns those of Linux on x86-64.
    pub(super) fn of_x86_64() -> Names {
        let mut names =
            Names { calls: BTreeMap::new(), last_address: u64::MAX, ..Names::of_i386() };
        names.add(X86_64);
        names
    }

    fn add(&mut self, table: &'static str) {
        for line in table.lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.split(' ');
            let Some((number, name)) = words.next().zip(words.next()) else { continue };
            if let Ok(number) = number.parse::<u64>() {
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
                self.calls.insert(number, NamedCall { name, arguments, returns_address });
            } else if let Ok(number) = number.parse() {
                self.errors.insert(number, name);
            }
        }
    }

    /// Returns the call with this number.
    pub(super) fn call(&self, number: u64) -> Option<&NamedCall> {
        self.calls.get(&number)
    }

    /// Describes the result of a call.
    pub(super) fn result(&self, number: u64, result: i64) -> String {
        match self.errors.get(&result) {
            Some(name) => format!("{result} {name}"),
            None if self.call(number).is_some_and(|call| call.returns_address) => {
                format!("{:#x}", result.cast_unsigned() & self.last_address)
            }
            None => result.to_string(),
        }
    }

    fn is_one_of(&self, number: u64, names: &[&str]) -> bool {
        self.call(number).is_some_and(|call| names.contains(&call.name))
    }

    /// Returns whether a call does not return to where it was made, unless it fails.
    pub(super) fn goes_elsewhere(&self, number: u64) -> bool {
        self.never_returns(number) || self.is_one_of(number, &["execve", "execveat"])
    }

    /// Returns whether a call does not return to where it was made even if it fails.
    pub(super) fn never_returns(&self, number: u64) -> bool {
        self.is_one_of(number, &["exit", "exit_group", "sigreturn", "rt_sigreturn"])
    }

    /// Returns whether a call makes a process.
    pub(super) fn makes_processes(&self, number: u64) -> bool {
        self.is_one_of(number, &["fork", "vfork", "clone", "clone3"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_whole() {
        let (i386, x86_64) = (Names::of_i386(), Names::of_x86_64());
        assert_eq!((i386.calls.len(), i386.errors.len()), (440, 130));
        assert_eq!((x86_64.calls.len(), x86_64.errors.len()), (362, 130));
        let of = |names: &Names, number| names.call(number).map(|call| call.name);
        assert_eq!([11, 1].map(|number| of(&i386, number)), [Some("execve"), Some("exit")]);
        assert_eq!([59, 60].map(|number| of(&x86_64, number)), [Some("execve"), Some("exit")]);
        for names in [i386, x86_64] {
            let all = |is: fn(&Names, u64) -> bool| {
                names.calls.keys().filter(|number| is(&names, **number)).count()
            };
            let (counts, processes) = (
                [all(Names::goes_elsewhere), all(Names::never_returns)],
                all(Names::makes_processes),
            );
            let has_old_signals = names.calls.values().any(|call| call.name == "sigreturn");
            let old = usize::from(has_old_signals);
            assert_eq!((counts, processes), ([5 + old, 3 + old], 4));
            assert!(names.calls.values().all(|call| call.arguments.len() <= 6));
            let bytes = |call: &NamedCall| call.arguments.last() == Some(&Argument::Bytes);
            assert!(!names.calls.values().any(bytes), "the number of bytes is missing");
        }
    }

    #[test]
    fn results_are_numbers_addresses_and_errors() {
        let names = Names::of_i386();
        assert_eq!(names.result(5, 3), "3");
        assert_eq!(names.result(5, -2), "-2 ENOENT");
        assert_eq!(names.result(192, 0xb7f0_0000_u32.cast_signed().into()), "0xb7f00000");
        assert_eq!(Names::of_x86_64().result(9, 0x7f00_b7f0_0000), "0x7f00b7f00000");
        assert_eq!(names.result(5, -600), "-600");
    }
}
