//! Messages of the domain name system (RFC 1035, 4).

use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::fields::Fields;

/// Upper bounds of a name: its labels with all jumps between them, and its length (2.3.4).
const STEPS_MAX: usize = 128;
const NAME_MAX: usize = 255;
/// Upper bound of the answers that are shown.
const ANSWERS_MAX: usize = 4;

/// Describes a message, if it is one.
pub(super) fn describe(payload: &[u8]) -> Option<String> {
    let mut fields = Fields::new(payload);
    let [id, flags, questions, answers, _, _] = [
        fields.word()?,
        fields.word()?,
        fields.word()?,
        fields.word()?,
        fields.word()?,
        fields.word()?,
    ];
    let mut at = 12;
    let mut text = format!("DNS {id}");
    if questions > 0 {
        let name = name(payload, &mut at)?;
        let kind = word(payload, at)?;
        at += 4;
        // Writing to a string cannot fail.
        let _ = write!(text, " {} {name}", kind_text(kind));
    }
    let is_answer = flags >> 15 != 0;
    if !is_answer {
        return Some(text + "?");
    }
    match flags & 0xf {
        0 => {}
        3 => text.push_str(", no such name"),
        code => {
            let _ = write!(text, ", error {code}");
        }
    }
    if questions == 1 {
        let shown =
            (0..usize::from(answers).min(ANSWERS_MAX)).map_while(|_| answer(payload, &mut at));
        for answer in shown.collect::<Vec<_>>() {
            let _ = write!(text, ", {answer}");
        }
    }
    if usize::from(answers) > ANSWERS_MAX {
        text.push_str(", ...");
    }
    Some(text)
}

/// Describes the resource record at `at`, and moves `at` behind it.
fn answer(message: &[u8], at: &mut usize) -> Option<String> {
    name(message, at)?;
    let kind = word(message, *at)?;
    let len = usize::from(word(message, *at + 8)?);
    let data = *at + 10;
    *at = data + len;
    let bytes = message.get(data..data + len)?;
    let value = match (kind, bytes) {
        (1, [a, b, c, d]) => Ipv4Addr::new(*a, *b, *c, *d).to_string(),
        (28, bytes) => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_string(),
        (2 | 5 | 12, _) => name(message, &mut { data })?,
        _ => format!("{len} bytes"),
    };
    Some(format!("{} {value}", kind_text(kind)))
}

fn kind_text(kind: u16) -> String {
    let known = match kind {
        1 => "A",
        2 => "NS",
        5 => "CNAME",
        6 => "SOA",
        12 => "PTR",
        15 => "MX",
        16 => "TXT",
        28 => "AAAA",
        33 => "SRV",
        255 => "ANY",
        _ => return format!("TYPE{kind}"),
    };
    known.to_owned()
}

fn word(message: &[u8], at: usize) -> Option<u16> {
    message.get(at..at.checked_add(2)?)?.try_into().ok().map(u16::from_be_bytes)
}

/// Reads the name at `at`, and moves `at` behind it. Parts of it may be elsewhere in the message (4.1.4).
fn name(message: &[u8], at: &mut usize) -> Option<String> {
    let mut text = String::new();
    let mut place = *at;
    let mut has_jumped = false;
    for _ in 0..STEPS_MAX {
        let len = *message.get(place)?;
        match len {
            0 => {
                if !has_jumped {
                    *at = place + 1;
                }
                return Some(if text.is_empty() { ".".to_owned() } else { text });
            }
            1..=63 => {
                let label = message.get(place + 1..place + 1 + usize::from(len))?;
                place += 1 + usize::from(len);
                let _ = write!(text, "{}.", label.escape_ascii());
            }
            0xc0.. => {
                if !has_jumped {
                    *at = place + 2;
                }
                has_jumped = true;
                place = usize::from(word(message, place)? & 0x3fff);
            }
            _ => return None,
        }
        if text.len() > 4 * NAME_MAX {
            return None;
        }
    }
    None
}
