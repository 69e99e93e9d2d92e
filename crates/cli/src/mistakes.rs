//! First mistakes: options and commands of QEMU, VirtualBox, User Mode Linux or containers, and what to type
//! instead.
//!
//! A valid command line never comes here. An invalid one is searched for a likely mistake: an option with one
//! hyphen, as QEMU has them; an option of another program; the name of a file instead of a command. And
//! `help` or `?` as the value of an option shows what values the option takes, as in QEMU.

mod others;
mod tables;

use std::error::Error as _;
use std::ffi::OsString;
use std::io::Write;
use std::num::{IntErrorKind, ParseIntError};
use std::path::Path;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use clap::{Arg, Command, CommandFactory, Parser};
use ring3_block::{Format, parse_size};

use crate::args::Arguments;
use tables::{COMMANDS, OPTIONS};

/// Parses the command line `words`, or ends the process with an error message.
pub(crate) fn parse(words: &[OsString]) -> Arguments {
    Arguments::try_parse_from(words).unwrap_or_else(|error| {
        if let Some(help) = help_on_a_value(&error, words) {
            show(&help);
        }
        explain(error, words).exit()
    })
}

/// Shows `help`, and ends the process.
fn show(help: &str) -> ! {
    // A reader that closes standard output does not want the rest.
    let _ = std::io::stdout().write_all(help.as_bytes());
    std::process::exit(0);
}

fn is_question(value: &str) -> bool {
    value == "help" || value == "?"
}

/// Returns the help on an option if its value is `help` or `?`, and `error` is about that value.
fn help_on_a_value(error: &Error, words: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else {
        return None;
    };
    // `--drive file=a,format=help` is not a question about drives.
    if !is_question(value) {
        return None;
    }
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else { return None };
    let command = command_of(words);
    let arg = command.get_arguments().find(|arg| arg.to_string() == *shown)?;
    Some(describe(arg))
}

/// Describes an option.
fn describe(arg: &Arg) -> String {
    let text = |text: Option<&StyledStr>| text.map(ToString::to_string).unwrap_or_default();
    let long = text(arg.get_long_help());
    let help = if long.is_empty() { text(arg.get_help()) } else { long };
    let mut all = format!("{arg}\n{}\n", help.trim_end());
    if arg.get_value_names().is_some_and(|names| names == ["FORMAT"]) {
        let names = Format::ALL.map(Format::name).join(", ");
        all.extend(["The formats are ", &*names, ".\n"]);
    }
    for value in arg.get_possible_values() {
        let help = text(value.get_help());
        all.push_str(format!("  {:12} {help}", value.get_name()).trim_end());
        all.push('\n');
    }
    all
}

/// Returns the command in `words`, as far as they name one.
fn command_of(words: &[OsString]) -> Command {
    let mut command = Arguments::command();
    command.build();
    for word in words.iter().skip(1).map_while(|word| word.to_str()) {
        match command.find_subcommand(word) {
            Some(found) => command = found.clone(),
            None => break,
        }
    }
    command
}

/// Returns `error`, or a better one if the mistake in `words` is known.
fn explain(error: Error, words: &[OsString]) -> Error {
    let texts: Vec<&str> = words.iter().skip(1).map(|word| word.to_str().unwrap_or("")).collect();
    let Some((first, rest)) = texts.split_first() else { return error };
    let of_another = word_of_another(&error, &texts, words);
    let reason = match error.kind() {
        _ if of_another.is_some() => of_another,
        _ if *first == "run" => {
            option_of_another(&error, rest).or_else(|| not_a_number(&error)).or_else(|| {
                named(&error)
                    .filter(|word| is_negative(word))
                    .map(|word| format!("{word}: {NO_NEGATIVES}"))
            })
        }
        _ if ["-help", "-version"].contains(first) => {
            Some(format!("{first} has one hyphen: the option here is --{}", name_of(first)))
        }
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion if is_of_qemu(first).is_none() => None,
        ErrorKind::InvalidSubcommand => command_of_another(named(&error).unwrap_or(first)),
        _ if first.starts_with('-') => Some(format!(
            "{first}: a machine's options come after the command: ring3 run {first} …"
        )),
        _ => None,
    };
    let Some(reason) = reason else { return error };
    // The mistake may have been parsed as a request for help or the version.
    let is_question = [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion].contains(&error.kind());
    let kind = if is_question { ErrorKind::UnknownArgument } else { error.kind() };
    command_of(words).error(kind, reason)
}

/// Returns the answer to a word in place of a command.
fn command_of_another(word: &str) -> Option<String> {
    if let Some((_, here)) = COMMANDS.iter().find(|(names, _)| names.contains(&word)) {
        return Some(format!("ring3 has no command \"{word}\": {here}"));
    }
    if Path::new(word).exists() && !Path::new(word).is_dir() {
        return Some(format!("\"{word}\" is a file, not a command: ring3 run {word} boots it"));
    }
    None
}

/// Returns the word that `error` is about.
fn named(error: &Error) -> Option<&str> {
    let context = [ContextKind::InvalidSubcommand, ContextKind::InvalidArg]
        .into_iter()
        .find_map(|kind| error.get(kind))?;
    if let ContextValue::String(word) = context { Some(word) } else { None }
}

/// Returns the answer to a word after a command other than `run`.
fn word_of_another(error: &Error, texts: &[&str], words: &[OsString]) -> Option<String> {
    let command = command_of(words);
    let path = command.get_bin_name()?.strip_prefix("ring3 ").filter(|path| *path != "run")?;
    let behind = texts.get(path.split(' ').count()..)?;
    let known = |word: &str| {
        let words = others::words_of(path);
        let name = name_of(word);
        words.iter().find(|(names, _)| names.contains(&name)).map(|(_, here)| *here)
    };
    let answer =
        |word: &str, here: &str| Some(format!("\"ring3 {path}\" does not take {word}: {here}"));
    match error.kind() {
        ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand | ErrorKind::DisplayHelp => {
            // clap reads a long option with one hyphen as several short ones.
            let of_qemu = behind.iter().find_map(is_of_qemu);
            if let Some((word, here)) = of_qemu.and_then(|word| Some((word, known(word)?))) {
                return answer(word, here);
            }
            if error.kind() == ErrorKind::DisplayHelp {
                return None;
            }
            let word = named(error)?;
            if let Some(here) = known(word) {
                return answer(word, here);
            }
            match path {
                "man" => answer(word, "all pages go to one directory: ring3 man DIRECTORY"),
                _ if word == "help" => {
                    answer(word, &format!("\"ring3 {path} --help\" shows its help"))
                }
                _ if is_negative(word) => answer(word, NO_NEGATIVES),
                "bench cpu" | "bench exits" if !word.starts_with('-') => {
                    answer(word, &format!("give --only {word}, if there is such a measurement"))
                }
                "vblock" if Path::new(word).exists() => answer(
                    word,
                    &format!(
                        "ring3 vblock --device disk,file={word} --client me=disk:rw --nbd me=nbd.sock serves it"
                    ),
                ),
                _ => None,
            }
        }
        ErrorKind::MissingRequiredArgument if path == "vblock ctl" => Some(format!(
            "give the server's socket and a command: ring3 vblock ctl PATH query-devices; \"ring3 {path} --help\" lists the others"
        )),
        ErrorKind::ValueValidation => {
            let [file, size] = behind.last_chunk()?;
            let is_turned = path == "img create"
                && named(error) == Some("[SIZE]")
                && parse_size(file).is_some();
            if is_turned {
                return Some(format!(
                    "the file comes before the size: ring3 img create {size} {file}"
                ));
            }
            not_a_number(error)
        }
        _ => None,
    }
}

const NO_NEGATIVES: &str = "negative numbers are not allowed";

fn is_negative(word: &str) -> bool {
    word.strip_prefix('-').is_some_and(|rest| rest.parse::<f64>().is_ok())
}

/// Returns the answer to a value that must be a whole number but is not.
fn not_a_number(error: &Error) -> Option<String> {
    let source = error.source()?.downcast_ref::<ParseIntError>()?;
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else {
        return None;
    };
    let option = named(error)?;
    Some(match source.kind() {
        IntErrorKind::Zero => format!("{option} must be at least 1"),
        IntErrorKind::PosOverflow => format!("{value} is too large a number for {option}"),
        _ => format!("{value} is not a whole number from 0 on, as {option} needs"),
    })
}

/// Returns the answer to an unknown option after `run`.
fn option_of_another(error: &Error, words: &[&str]) -> Option<String> {
    if let Some(word) = words.iter().enumerate().find_map(|(at, word)| {
        let is_value = at > 0 && words[at - 1] == "--append";
        is_of_qemu(word).filter(|_| !is_value)
    }) {
        let name = name_of(word);
        let as_qemu = format!("\"ring3 qemu {word} …\" takes QEMU's command lines unchanged");
        if is_option(name) {
            return Some(format!(
                "{word} has one hyphen, as in QEMU: the option here is --{name}, and {as_qemu}"
            ));
        }
        let known = known(name).unwrap_or("there is no such option");
        return Some(format!("{word}: {known}. Options have two hyphens here; {as_qemu}"));
    }
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return None };
    Some(format!("\"ring3 run\" has no option {word}: {}", known(name_of(word))?))
}

/// Returns `word` if it is an option with one hyphen and more than one letter.
fn is_of_qemu<'a>(word: &&'a str) -> Option<&'a str> {
    let name = word.strip_prefix('-').filter(|name| !name.starts_with('-'))?;
    let is_name = name.len() > 1 && name.starts_with(|letter: char| letter.is_ascii_alphabetic());
    // -m512 and -m=1G are valid.
    let is_size = name
        .strip_prefix('m')
        .is_some_and(|size| size.starts_with(|digit: char| digit.is_ascii_digit() || digit == '='));
    (is_name && !is_size).then_some(*word)
}

/// Returns the name of an option, without hyphens and value.
fn name_of(word: &str) -> &str {
    let name = word.trim_start_matches('-');
    name.split_once('=').map_or(name, |(name, _)| name)
}

/// Returns whether `ring3 run` has an option `--name`.
fn is_option(name: &str) -> bool {
    let run = command_of(&["ring3".into(), "run".into()]);
    run.get_arguments().any(|arg| arg.get_long() == Some(name))
}

/// Returns what to use here for an option of another program.
fn known(name: &str) -> Option<&'static str> {
    OPTIONS.iter().find(|(names, _)| names.contains(&name)).map(|(_, here)| *here)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_name_occurs_twice_or_is_an_option_of_the_command() {
        let mut seen = HashSet::new();
        for name in OPTIONS.iter().flat_map(|(names, _)| *names) {
            assert!(seen.insert(name), "{name} is there twice");
            assert!(!is_option(name), "--{name} is an option");
        }
        let command = Arguments::command();
        for name in COMMANDS.iter().flat_map(|(names, _)| *names) {
            assert!(seen.insert(name) || OPTIONS.iter().any(|(names, _)| names.contains(name)));
            assert!(command.find_subcommand(name).is_none(), "{name} is a command");
        }
    }

    /// Checks that answers recommend only options that exist.
    #[test]
    fn the_options_that_are_named_exist() {
        let all = OPTIONS.iter().chain(COMMANDS).map(|(_, here)| *here);
        for word in all.flat_map(str::split_whitespace) {
            let word = word.trim_matches(|letter: char| !letter.is_alphanumeric() && letter != '-');
            if let Some(name) = word.strip_prefix("--") {
                assert!(is_option(name) || name == "version", "--{name}");
            }
        }
    }

    /// Checks that no word for a command is listed twice. A word may be an option of the command only if it
    /// lacks the hyphens and the answer gives them.
    #[test]
    fn no_word_for_another_command_is_an_option_of_it() {
        for path in others::PATHS {
            let words: Vec<OsString> =
                ["ring3"].into_iter().chain(path.split(' ')).map(Into::into).collect();
            let command = command_of(&words);
            let mut seen = HashSet::new();
            let words = others::words_of(path).iter();
            for (name, answer) in
                words.flat_map(|(names, answer)| names.iter().map(move |name| (name, answer)))
            {
                assert!(seen.insert(name), "{path}: {name} is there twice");
                let is_option = command.get_arguments().any(|arg| {
                    arg.get_long() == Some(name)
                        || arg.get_short().is_some_and(|letter| letter.to_string() == *name)
                });
                // "bench disk" is a command, and also a word for the other benchmarks.
                let is_command = command.find_subcommand(name).is_some() && path != "bench";
                let is_answered = answer.contains(&format!("--{name}"));
                assert!((!is_option || is_answered) && !is_command, "{path}: {name}");
            }
        }
    }

    #[test]
    fn options_with_one_hyphen_are_found() {
        for word in ["-kernel", "-hda", "-memory", "-m64k"] {
            assert_eq!(is_of_qemu(&word).is_some(), word != "-m64k", "{word}");
        }
        for word in ["-m", "-m=1G", "--kernel", "-", "--", "-1", "disk"] {
            assert_eq!(is_of_qemu(&word), None, "{word}");
        }
    }
}
