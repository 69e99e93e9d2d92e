//! Shows memory and numbers to people: `x`, `xp`, `print` and similar commands, in gdb's formats.

use std::fmt::Write;
use std::fs::File;
use std::io::Write as _;

use ring3_vm::inspect::{MemoryRange, READ_MAX};

use super::commands::exactly;
use crate::commands::Machine;
use crate::protocol::Failure;

/// The most bytes that are shown at once.
const SHOWN_MAX: usize = 64 << 10;

/// The form in which values are shown: `/COUNT FORMAT SIZE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Format {
    count: usize,
    /// One of x, d, u, o, c and i.
    letter: char,
    bytes: usize,
}

impl Format {
    /// Parses the format that the first argument may be, and returns it and the other arguments.
    fn take<'a, 'b>(arguments: &'b [&'a str]) -> Result<(Format, &'b [&'a str]), Failure> {
        let mut format = Format { count: 1, letter: 'x', bytes: 4 };
        let Some((text, rest)) = arguments
            .split_first()
            .and_then(|(first, rest)| Some((first.strip_prefix('/')?, rest)))
        else {
            return Ok((format, arguments));
        };
        let digits =
            text.len() - text.trim_start_matches(|digit: char| digit.is_ascii_digit()).len();
        if digits > 0 {
            format.count = text[..digits].parse().unwrap_or(usize::MAX);
        }
        for letter in text[digits..].chars() {
            match letter {
                'x' | 'd' | 'u' | 'o' | 'c' | 'i' => format.letter = letter,
                'b' => format.bytes = 1,
                'h' => format.bytes = 2,
                'w' => format.bytes = 4,
                'g' => format.bytes = 8,
                _ => {
                    return Err(Failure::generic(format!(
                        "'{letter}' is no format; there are x, d, u, o, c and i, with b, h, w or g"
                    )));
                }
            }
        }
        Ok((format, rest))
    }

    fn show(&self, value: u64) -> String {
        let bits = 8 * self.bytes as u32;
        let signed = (value << (64 - bits)) as i64 >> (64 - bits);
        match self.letter {
            'd' => signed.to_string(),
            'u' => value.to_string(),
            'o' => format!("{value:#0width$o}", width = 2 + bits.div_ceil(3) as usize),
            'c' => match u8::try_from(value) {
                Ok(byte) if byte.is_ascii_graphic() || byte == b' ' => {
                    format!("'{}'", char::from(byte))
                }
                _ => format!("'\\x{value:02x}'"),
            },
            _ => format!("{value:#0width$x}", width = 2 + 2 * self.bytes),
        }
    }
}

/// Parses a number in decimal, or in hexadecimal after 0x.
pub(super) fn number(text: &str) -> Option<i64> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let number = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(digits) if !digits.starts_with(['+', '-']) => {
            u64::from_str_radix(digits, 16).ok()?.cast_signed()
        }
        None if digits.bytes().all(|digit| digit.is_ascii_digit()) => digits.parse().ok()?,
        _ => return None,
    };
    Some(if is_negative { number.wrapping_neg() } else { number })
}

/// Computes a sum of numbers and registers, such as `$esp+0x10`.
fn value(machine: &Machine, text: &str) -> Result<u64, Failure> {
    let mut sum = 0_u64;
    let mut rest = text.replace(' ', "");
    if rest.is_empty() {
        return Err(Failure::generic("an address is missing"));
    }
    if !rest.starts_with(['+', '-']) {
        rest.insert(0, '+');
    }
    while !rest.is_empty() {
        let end = rest[1..].find(['+', '-']).map_or(rest.len(), |end| end + 1);
        let (term, sign) = (&rest[1..end], &rest[..1]);
        let term = match term.strip_prefix('$') {
            Some(name) => {
                let processor = machine.control.processor()?;
                let found = processor.registers.iter().find(|(known, _)| *known == name);
                found
                    .map(|(_, value)| *value)
                    .ok_or_else(|| Failure::generic(format!("unknown register: ${name}")))?
            }
            None => number(term)
                .ok_or_else(|| Failure::generic(format!("'{term}' is no number and no $register")))?
                .cast_unsigned(),
        };
        sum = if sign == "-" { sum.wrapping_sub(term) } else { sum.wrapping_add(term) };
        rest = rest[end..].to_owned();
    }
    Ok(sum)
}

/// Executes `x` and `xp`.
pub(super) fn examine(
    machine: &Machine,
    arguments: &[&str],
    is_linear: bool,
) -> Result<String, Failure> {
    let (format, rest) = Format::take(arguments)?;
    let address = value(machine, &rest.concat())?;
    if format.letter == 'i' {
        return disassemble(machine, address, is_linear, format.count);
    }
    let len = format.count.saturating_mul(format.bytes);
    if len > SHOWN_MAX {
        return Err(Failure::generic(format!(
            "{SHOWN_MAX} bytes are shown at most; pmemsave writes more"
        )));
    }
    let bytes = read(machine, MemoryRange { address, len, is_linear })?;
    let a_line = 16 / format.bytes;
    let mut text = String::new();
    for (line, values) in bytes.chunks(a_line * format.bytes).enumerate() {
        let at = address.wrapping_add((line * a_line * format.bytes) as u64);
        // Writing to a string cannot fail.
        let _ = write!(text, "{at:016x}:");
        for value in values.chunks(format.bytes) {
            let mut whole = [0; 8];
            whole[..value.len()].copy_from_slice(value);
            let _ = write!(text, " {}", format.show(u64::from_le_bytes(whole)));
        }
        text.push('\n');
    }
    Ok(text)
}

/// Returns the next instructions of the processor. At other addresses this fails.
fn disassemble(
    machine: &Machine,
    address: u64,
    is_linear: bool,
    count: usize,
) -> Result<String, Failure> {
    let processor = machine.control.processor()?;
    let next = processor.registers.iter().find(|(name, _)| *name == "pc").map(|(_, at)| *at);
    let ip = processor.registers.iter().find(|(name, _)| *name == "eip").map(|(_, at)| *at);
    if is_linear && (Some(address) == next || Some(address) == ip) {
        let lines = processor.instructions.iter().take(count);
        return Ok(lines.map(|line| format!("0x{line}")).collect::<Vec<_>>().join("\n"));
    }
    Err(Failure::generic("instructions are shown at $eip alone: x/16i $eip"))
}

fn read(machine: &Machine, range: MemoryRange) -> Result<Vec<u8>, Failure> {
    machine
        .control
        .read_memory(range)?
        .ok_or_else(|| Failure::generic(format!("Cannot access memory at {:#x}", range.address)))
}

/// Executes `print`.
pub(super) fn print(machine: &Machine, arguments: &[&str]) -> Result<String, Failure> {
    let (format, rest) = Format::take(arguments)?;
    Ok(match format.letter {
        'x' => format!("{:#x}", value(machine, &rest.concat())?),
        _ => Format { bytes: 8, ..format }.show(value(machine, &rest.concat())?),
    })
}

/// Executes `gva2gpa`.
pub(super) fn translate(machine: &Machine, arguments: &[&str]) -> Result<String, Failure> {
    let address = value(machine, &arguments.concat())?;
    Ok(match machine.control.physical(address)? {
        Some(physical) => format!("gpa: {physical:#x}"),
        None => "Unmapped".to_owned(),
    })
}

/// Executes `memsave` and `pmemsave`.
pub(super) fn save(
    machine: &Machine,
    arguments: &[&str],
    is_linear: bool,
) -> Result<String, Failure> {
    let [address, size, file] = exactly(arguments)?;
    let (address, size) = (value(machine, address)?, value(machine, size)?);
    write_to(machine, address, size, is_linear, file.as_ref())?;
    Ok(String::new())
}

/// Writes `size` bytes from `address` on into the file at `path`.
pub(crate) fn write_to(
    machine: &Machine,
    address: u64,
    size: u64,
    is_linear: bool,
    path: &std::path::Path,
) -> Result<(), Failure> {
    let failed = |error| Failure::generic(format!("{}: {error}", path.display()));
    // A size beyond all addresses is a mistake.
    if size > 1 << 32 {
        return Err(Failure::generic("the size is larger than 4 GiB"));
    }
    let mut file = File::create(path).map_err(failed)?;
    let mut done = 0;
    while done < size {
        let len = (size - done).min(READ_MAX as u64) as usize;
        let range = MemoryRange { address: address.wrapping_add(done), len, is_linear };
        file.write_all(&read(machine, range)?).map_err(failed)?;
        done += len as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_read() {
        let take = |text: &'static str| Format::take(&[text, "0"]).map(|(format, _)| format);
        assert_eq!(take("/16xb"), Ok(Format { count: 16, letter: 'x', bytes: 1 }));
        assert_eq!(take("/dg"), Ok(Format { count: 1, letter: 'd', bytes: 8 }));
        assert_eq!(take("0"), Ok(Format { count: 1, letter: 'x', bytes: 4 }));
        assert!(take("/4z").is_err());
        assert_eq!(take("/99999999999999999999999x").unwrap().count, usize::MAX);
    }

    #[test]
    fn values_are_shown() {
        let show = |letter, bytes, value| Format { count: 1, letter, bytes }.show(value);
        assert_eq!(show('x', 4, 0x1234), "0x00001234");
        assert_eq!(show('d', 1, 0xff), "-1");
        assert_eq!(show('u', 2, 0xffff), "65535");
        assert_eq!(show('c', 1, 0x41), "'A'");
        assert_eq!(show('d', 8, u64::MAX), "-1");
    }

    #[test]
    fn numbers_are_read() {
        assert_eq!(number("0x10"), Some(16));
        assert_eq!(number("-5"), Some(-5));
        for text in ["", "x", "0x", "1x", "0x-1", "--1"] {
            assert_eq!(number(text), None, "{text}");
        }
    }
}
