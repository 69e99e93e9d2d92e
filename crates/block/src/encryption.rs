//! Encrypted images, for reading: the LUKS format, version 1, and QEMU's older AES.
//!
//! * [`cipher`]: decryption of sectors; [`hash`]: functions for passwords and keys;
//! * [`luks`]: the header that contains the key, and the format.

mod cipher;
mod hash;
pub(crate) mod luks;

use std::fmt;
use std::sync::Arc;

use cipher::{SECTOR, SectorCipher};

use crate::error::{Fault, Result};
use crate::storage::{Storage, read_padded};

/// A password. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<[u8]>);

impl Secret {
    /// Returns a password of these bytes.
    pub fn new(bytes: &[u8]) -> Secret {
        Secret(bytes.into())
    }

    /// Decrypts `bytes` with this secret, a key of 32 bytes. They were encrypted by AES in CBC mode with
    /// padding (RFC 5652, 6.3) and the initialization vector `vector`, like those of QEMU's `secret` objects
    /// with `keyid`. Returns None if they were not.
    pub fn decrypt(&self, bytes: &[u8], vector: [u8; 16]) -> Option<Secret> {
        let key: &[u8; 32] = self.bytes().try_into().ok()?;
        cipher::decrypt_padded(key, bytes, vector).map(|bytes| Secret::new(&bytes))
    }

    /// Returns the password's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The password of an image that is opened, as far as it is known.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Password<'a> {
    /// This password was given.
    Given(&'a Secret),
    /// No password was given.
    Missing,
    /// No password is needed, since nobody will read the disk.
    NotNeeded,
}

/// The method by which an image's sectors are decrypted.
#[derive(Debug)]
pub(crate) struct Encryption {
    /// The method's name: `aes` or `luks`.
    pub(crate) format: &'static str,
    /// Whether sectors are numbered by their offset in the file, instead of that on the disk.
    by_place: bool,
    /// The cipher. None if nobody will read the disk.
    cipher: Option<SectorCipher>,
}

impl Encryption {
    /// Returns QEMU's older encryption, which cannot tell whether the password is right.
    pub(crate) fn aes(password: Password<'_>) -> Result<Encryption> {
        let cipher = password.of("aes")?.map(|secret| SectorCipher::old_aes(secret.bytes()));
        Ok(Encryption { format: "aes", by_place: false, cipher })
    }

    /// Returns the encryption of a LUKS header, which numbers sectors by their offset in the file.
    pub(crate) fn luks(
        header: &luks::Header,
        storage: &dyn Storage,
        password: Password<'_>,
    ) -> Result<Encryption> {
        let secret = password.of("luks")?;
        let cipher = secret.map(|secret| header.unlock(storage, secret)).transpose()?;
        Ok(Encryption { format: "luks", by_place: true, cipher })
    }

    /// Reads bytes from offset `inside` of a cluster on, which is at `at` of the file. On the disk they begin
    /// at `offset`.
    pub(crate) fn read(
        &self,
        storage: &dyn Storage,
        bytes: &mut [u8],
        at: u64,
        offset: u64,
        inside: u64,
    ) -> Result<()> {
        let damaged = || Fault::damaged(format!("no cluster can be at {at:#x}"));
        let start = at.checked_add(inside).ok_or_else(damaged)?;
        let first = if self.by_place { start } else { offset } / SECTOR;
        read_sectors(storage, self.cipher.as_ref(), bytes, start, first)
    }
}

/// Reads bytes at `at` of the file and decrypts them. `first` is the number of the sector that contains the
/// first one.
fn read_sectors(
    storage: &dyn Storage,
    cipher: Option<&SectorCipher>,
    bytes: &mut [u8],
    at: u64,
    first: u64,
) -> Result<()> {
    let cipher = cipher.ok_or_else(|| Fault::refused("it was opened without its password"))?;
    let before = at % SECTOR;
    if before == 0 && (bytes.len() as u64).is_multiple_of(SECTOR) {
        read_padded(storage, bytes, at)?;
        cipher.decrypt(bytes, first);
        return Ok(());
    }
    // Bytes that are not whole sectors are read and decrypted with the sectors that contain them.
    let len = (before + bytes.len() as u64).next_multiple_of(SECTOR);
    let mut sectors = vec![0; len as usize];
    read_padded(storage, &mut sectors, at - before)?;
    cipher.decrypt(&mut sectors, first);
    bytes.copy_from_slice(&sectors[before as usize..][..bytes.len()]);
    Ok(())
}

impl<'a> Password<'a> {
    /// Returns the password, or None if none is needed.
    pub(crate) fn of(self, format: &str) -> Result<Option<&'a Secret>> {
        match self {
            Password::Given(secret) => Ok(Some(secret)),
            Password::NotNeeded => Ok(None),
            Password::Missing => Err(Fault::refused(format!(
                "it is encrypted ({format}) and needs a password: Parameter 'key-secret' is required for cipher (ring3 img: \
                 --object secret,id=NAME,file=FILE and --image-opts with key-secret=NAME; a drive: password-file=FILE, or in ring3 qemu \
                 -object secret,id=NAME,file=FILE and key-secret=NAME)"
            ))),
        }
    }
}
