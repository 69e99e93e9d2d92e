//! `--object secret,…`: passwords by their names, as QEMU has them.

use std::fs;
use std::str::FromStr;

use ring3_block::Secret;
use thiserror::Error;

use crate::qemu::properties::Properties;

/// Bytes of the largest password that is read from a file.
const MAX: u64 = 1 << 20;

/// An `--object`.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    pub(crate) id: String,
    pub(crate) secret: Secret,
}

/// Why an `--object` is refused.
#[derive(Debug, Error)]
pub(crate) enum BadObject {
    #[error(
        "give secret,id=NAME,file=FILE or secret,id=NAME,data=TEXT, and format=base64 where it is that"
    )]
    Unknown,
    #[error("\"{0}\" is missing by name: give the password itself, as file=FILE or data=TEXT")]
    Missing(String),
    #[error("{0} cannot be read: {1}")]
    File(String, std::io::Error),
    #[error("{0} has more than {MAX} bytes, which is no password")]
    Large(String),
    #[error("the password is not in base64")]
    Base64,
}

impl FromStr for Object {
    type Err = BadObject;

    fn from_str(text: &str) -> Result<Object, BadObject> {
        let properties = Properties::parse(text, Some("qom-type"));
        let (mut id, mut bytes, mut is_base64) = (None, None, false);
        for (key, value) in properties.iter() {
            match (key, value) {
                ("qom-type", "secret") | ("format", "raw") => {}
                ("id", value) => id = Some(value.to_owned()),
                ("data", value) => bytes = Some(value.as_bytes().to_vec()),
                ("file", value) => bytes = Some(read(value)?),
                ("format", "base64") => is_base64 = true,
                ("keyid" | "iv", _) => return Err(BadObject::Missing(key.to_owned())),
                _ => return Err(BadObject::Unknown),
            }
        }
        let (Some(id), Some(bytes)) = (id, bytes) else { return Err(BadObject::Unknown) };
        let bytes = if is_base64 { base64(&bytes).ok_or(BadObject::Base64)? } else { bytes };
        Ok(Object { id, secret: Secret::new(&bytes) })
    }
}

fn read(name: &str) -> Result<Vec<u8>, BadObject> {
    let fails = |error| BadObject::File(name.to_owned(), error);
    if fs::metadata(name).map_err(fails)?.len() > MAX {
        return Err(BadObject::Large(name.to_owned()));
    }
    fs::read(name).map_err(fails)
}

/// The bytes that `text` stands for (RFC 4648, 4); white space means nothing.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let text: Vec<u8> = text.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let end = text.iter().position(|byte| *byte == b'=').unwrap_or(text.len());
    let padding = &text[end..];
    let is_padding = padding.len() <= 2 && padding.iter().all(|byte| *byte == b'=');
    if !text.len().is_multiple_of(4) || !is_padding {
        return None;
    }
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for byte in &text[..end] {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read() {
        for (text, bytes) in
            [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9v\nYmE=\n", "fooba")]
        {
            assert_eq!(base64(text.as_bytes()).unwrap(), bytes.as_bytes(), "{text}");
        }
        for bad in ["Z", "Zg=", "Zg===", "Z=g=", "Zm9*"] {
            assert_eq!(base64(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn objects_are_read() {
        let object: Object = "secret,id=a,data=b,,c".parse().unwrap();
        assert_eq!((object.id.as_str(), object.secret), ("a", Secret::new(b"b,c")));
        let object: Object = "qom-type=secret,id=a,format=base64,data=Zm9v".parse().unwrap();
        assert_eq!(object.secret, Secret::new(b"foo"));
        for bad in [
            "secret",
            "secret,id=a",
            "secret,data=x",
            "rng,id=a",
            "secret,id=a,data=x,keyid=b",
            "secret,id=a,file=/nowhere",
        ] {
            assert!(bad.parse::<Object>().is_err(), "{bad}");
        }
    }
}
