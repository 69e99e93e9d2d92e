//! Passwords by name, as in QEMU: `-object secret`, and `ring3 img --object secret`.

use std::fs;
use std::str::FromStr;

use ring3_block::Secret;
use thiserror::Error;

use crate::qemu::properties::Properties;

/// Bytes of the largest password that is read from a file.
const MAX: u64 = 1 << 20;

/// A `secret` object. Its file is read when the password is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SecretObject {
    pub(crate) id: String,
    source: Source,
    is_base64: bool,
    /// The id of the key, and the initialization vector, if the password is encrypted.
    key: Option<(String, [u8; 16])>,
}

/// The source of the password.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    File(String),
    Data(Secret),
}

/// The reasons why a `secret` object is refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum BadSecret {
    #[error(
        "give secret,id=NAME,file=FILE or secret,id=NAME,data=TEXT, and format=base64 if it is in base64"
    )]
    Unknown,
    #[error("format must be raw or base64, not \"{0}\"")]
    Format(String),
    #[error(
        "an encrypted password needs an initialization vector of 16 bytes: add iv=, in base64, to keyid="
    )]
    Vector,
    #[error("No secret with id '{0}': give secret,id={0},file=FILE before it")]
    Missing(String),
    #[error("cannot read {0}: {1}")]
    File(String, String),
    #[error("{0} has more than {MAX} bytes, too many for a password")]
    Large(String),
    #[error("the password {0} is not in base64")]
    Base64(String),
    #[error("the password {0} is not encrypted by {1}, a key of 32 bytes")]
    Encrypted(String, String),
}

impl SecretObject {
    /// Returns the object with these properties, among which `qom-type` is no more.
    pub(crate) fn of(properties: &Properties) -> Result<SecretObject, BadSecret> {
        let (mut id, mut source, mut is_base64) = (None, None, false);
        let (mut key, mut vector) = (None, None);
        for (name, value) in properties.iter() {
            match name {
                "id" => id = Some(value.to_owned()),
                "data" => source = Some(Source::Data(Secret::new(value.as_bytes()))),
                "file" => source = Some(Source::File(value.to_owned())),
                "format" if value == "raw" => is_base64 = false,
                "format" if value == "base64" => is_base64 = true,
                "format" => return Err(BadSecret::Format(value.to_owned())),
                "keyid" => key = Some(value.to_owned()),
                "iv" => vector = base64(value.as_bytes()).and_then(|bytes| bytes.try_into().ok()),
                _ => return Err(BadSecret::Unknown),
            }
        }
        let (Some(id), Some(source)) = (id, source) else { return Err(BadSecret::Unknown) };
        let key = key.map(|key| Ok((key, vector.ok_or(BadSecret::Vector)?))).transpose()?;
        Ok(SecretObject { id, source, is_base64, key })
    }

    /// Returns the password. Its key is among the objects `before`.
    fn secret(&self, before: &[SecretObject]) -> Result<Secret, BadSecret> {
        let secret = match &self.source {
            Source::Data(secret) => secret.clone(),
            Source::File(name) => Secret::new(&read(name)?),
        };
        let secret = if self.is_base64 {
            let bytes = base64(secret.bytes()).ok_or_else(|| BadSecret::Base64(self.id.clone()))?;
            Secret::new(&bytes)
        } else {
            secret
        };
        let Some((key, vector)) = &self.key else { return Ok(secret) };
        let clear = find(before, key)?.decrypt(secret.bytes(), *vector);
        clear.ok_or_else(|| BadSecret::Encrypted(self.id.clone(), key.clone()))
    }
}

/// Returns the password with the id `id`. The key of each object is among those before it, as in QEMU.
pub(crate) fn find(objects: &[SecretObject], id: &str) -> Result<Secret, BadSecret> {
    let place = objects.iter().position(|object| object.id == id);
    let place = place.ok_or_else(|| BadSecret::Missing(id.to_owned()))?;
    objects[place].secret(&objects[..place])
}

impl FromStr for SecretObject {
    type Err = BadSecret;

    fn from_str(text: &str) -> Result<SecretObject, BadSecret> {
        let mut properties =
            Properties::parse_either(text, Some("qom-type")).map_err(|_| BadSecret::Unknown)?;
        match properties.take("qom-type").as_deref() {
            Some("secret") => SecretObject::of(&properties),
            _ => Err(BadSecret::Unknown),
        }
    }
}

fn read(name: &str) -> Result<Vec<u8>, BadSecret> {
    let fails = |error: std::io::Error| BadSecret::File(name.to_owned(), error.to_string());
    if fs::metadata(name).map_err(fails)?.len() > MAX {
        return Err(BadSecret::Large(name.to_owned()));
    }
    fs::read(name).map_err(fails)
}

/// Decodes base64 (RFC 4648, 4). White space is skipped.
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

    fn secret(text: &str) -> Result<Secret, BadSecret> {
        text.parse::<SecretObject>()?.secret(&[])
    }

    #[test]
    fn objects_are_read() {
        let object: SecretObject = "secret,id=a,data=b,,c".parse().unwrap();
        assert_eq!((object.id.as_str(), object.secret(&[])), ("a", Ok(Secret::new(b"b,c"))));
        for text in [
            "qom-type=secret,id=a,format=base64,data=Zm9v",
            r#"{"qom-type":"secret","id":"a","data":"foo"}"#,
            "secret,id=a,format=raw,data=foo",
        ] {
            assert_eq!(secret(text), Ok(Secret::new(b"foo")), "{text}");
        }
        for bad in [
            "secret",
            "secret,id=a",
            "secret,data=x",
            "rng,id=a",
            "secret,id=a,data=x,keyid=b",
            "secret,id=a,data=x,keyid=b,iv=Zm9v",
            "secret,id=a,data=x,format=hex",
            "secret,id=a,file=/nowhere",
            "secret,id=a,data=x,format=base64",
        ] {
            assert!(secret(bad).is_err(), "{bad}");
        }
    }

    /// The encrypted text was made by: openssl enc -aes-256-cbc -K (32 times 31) -iv (16 times 32).
    #[test]
    fn encrypted_objects_are_read_by_keys_before_them() {
        let read = |texts: &[&str]| {
            let objects: Vec<SecretObject> =
                texts.iter().map(|text| text.parse().unwrap()).collect();
            find(&objects, "a")
        };
        let key = "secret,id=k,data=11111111111111111111111111111111";
        let encrypted = "secret,id=a,keyid=k,iv=MjIyMjIyMjIyMjIyMjIyMg==,format=base64,data=7BhTeH/M80a+LUQic2oVgg==";
        assert_eq!(read(&[key, encrypted]), Ok(Secret::new(b"swordfish")));
        assert_eq!(read(&[encrypted, key]), Err(BadSecret::Missing("k".to_owned())));
        let wrong = "secret,id=k,data=1111111111111111111111111111111";
        assert_eq!(
            read(&[wrong, encrypted]),
            Err(BadSecret::Encrypted("a".to_owned(), "k".to_owned()))
        );
        let itself = "secret,id=a,keyid=a,iv=MjIyMjIyMjIyMjIyMjIyMg==,data=x";
        assert_eq!(read(&[itself]), Err(BadSecret::Missing("a".to_owned())));
    }
}
