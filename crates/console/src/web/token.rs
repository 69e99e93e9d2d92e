//! The secret that a page has to know.

use std::fmt::{self, Debug, Formatter};
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use ctutils::CtEq;
use rustix::process::geteuid;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::Error;

/// The random bytes in a token.
const BYTES: usize = 32;
/// The digits of a token.
const DIGITS: usize = 2 * BYTES;
/// The rights of others to the file with a token.
const RIGHTS_OF_OTHERS: u32 = 0o077;

/// See the module.
#[derive(Clone)]
pub(super) struct Token(String);

impl Debug for Token {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Makes a new one.
    pub(super) fn random() -> Result<Token, Error> {
        let mut bytes = [0; BYTES];
        // getrandom(2) never returns a part of so few.
        getrandom(&mut bytes, GetRandomFlags::empty())
            .map_err(|error| Error::Host(error.into()))?;
        Ok(Token(bytes.map(|byte| format!("{byte:02x}")).concat()))
    }

    /// Returns the one in the file at `path`, to which nobody else may have rights. Makes the file if it is not there.
    pub(super) fn in_file(path: &Path) -> Result<Token, Error> {
        let failed = |source| Error::TokenFile { path: path.to_owned(), source };
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        match made {
            Ok(mut file) => {
                let token = Token::random()?;
                file.write_all(format!("{}\n", token.0).as_bytes()).map_err(failed)?;
                return Ok(token);
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error)),
        }
        read(path).map_err(failed)
    }

    /// Returns whether somebody knows it. How long this takes says nothing of it.
    pub(super) fn is(&self, given: &str) -> bool {
        self.0.as_bytes().ct_eq(given.as_bytes()).to_bool()
    }

    /// Returns it as a part of the address that is told to the person.
    pub(super) fn text(&self) -> &str {
        &self.0
    }
}

fn read(path: &Path) -> io::Result<Token> {
    let file = fs::File::open(path)?;
    let found = file.metadata()?;
    let is_own = found.uid() == geteuid().as_raw() && found.mode() & RIGHTS_OF_OTHERS == 0;
    if !found.is_file() || !is_own {
        return Err(io::Error::other("it must be a file that belongs to you alone (mode 600)"));
    }
    let mut text = String::new();
    file.take(DIGITS as u64 + 2).read_to_string(&mut text)?;
    let text = text.trim_end();
    if text.len() != DIGITS || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(io::Error::other("there is no token in it; remove it, and it will be made"));
    }
    Ok(Token(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_the_whole_token_is_one() {
        let token = Token::random().unwrap();
        assert_eq!(token.text().len(), DIGITS);
        assert!(token.is(token.text()));
        for wrong in ["", "x", &token.text()[1..], &format!("{}0", token.text())] {
            assert!(!token.is(wrong), "{wrong}");
        }
        assert!(!token.is(Token::random().unwrap().text()));
        assert!(!format!("{token:?}").contains(token.text()));
    }

    #[test]
    fn a_token_stays_in_a_file_of_ones_own() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let first = Token::in_file(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(Token::in_file(&path).unwrap().is(first.text()));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(Token::in_file(&path).unwrap_err().to_string().contains("belongs to you alone"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "short").unwrap();
        assert!(Token::in_file(&path).unwrap_err().to_string().contains("no token in it"));
        assert!(Token::in_file(&directory.path().join("no/token")).is_err());
    }
}
