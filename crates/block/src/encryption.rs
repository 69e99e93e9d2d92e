//! Encrypted images, for reading: the LUKS format, version 1, and QEMU's older AES.
//!
//! * [`cipher`]: sectors in the clear; [`hash`]: what passwords and keys go through;
//! * [`luks`]: the header that keeps the key, and the format.

mod cipher;
mod hash;
pub(crate) mod luks;

use std::fmt;
use std::sync::Arc;

use cipher::{SECTOR, SectorCipher};

use crate::error::{Fault, Result};
use crate::storage::{Storage, read_padded};

/// A password. It is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<[u8]>);

impl Secret {
    /// That of these bytes.
    pub fn new(bytes: &[u8]) -> Secret {
        Secret(bytes.into())
    }

    /// The secret in `bytes`, which this one, a key of 32 bytes, has encrypted by AES in CBC mode with padding (RFC 5652, 6.3), from
    /// `vector` on, as QEMU's `secret` objects are with `keyid`. None where it is not so.
    pub fn decrypt(&self, bytes: &[u8], vector: [u8; 16]) -> Option<Secret> {
        let key: &[u8; 32] = self.bytes().try_into().ok()?;
        cipher::decrypt_padded(key, bytes, vector).map(|bytes| Secret::new(&bytes))
    }

    /// What it consists of.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// What is known of the password of an image that is opened.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Password<'a> {
    /// It is this one.
    Given(&'a Secret),
    /// It was not given.
    Missing,
    /// Nobody will read the disk: the image is only told about.
    NotNeeded,
}

/// How the sectors of an image are read.
#[derive(Debug)]
pub(crate) struct Encryption {
    /// What it is called: `aes` or `luks`.
    pub(crate) format: &'static str,
    /// The number of a sector is that of its place in the file, and not of that on the disk.
    by_place: bool,
    /// None where nobody will read the disk.
    cipher: Option<SectorCipher>,
}

impl Encryption {
    /// QEMU's older encryption: nothing in the image tells whether the password is right.
    pub(crate) fn aes(password: Password<'_>) -> Result<Encryption> {
        let cipher = password.of("aes")?.map(|secret| SectorCipher::old_aes(secret.bytes()));
        Ok(Encryption { format: "aes", by_place: false, cipher })
    }

    /// That of a LUKS header, with numbers by the place in the file.
    pub(crate) fn luks(
        header: &luks::Header,
        storage: &dyn Storage,
        password: Password<'_>,
    ) -> Result<Encryption> {
        let secret = password.of("luks")?;
        let cipher = secret.map(|secret| header.unlock(storage, secret)).transpose()?;
        Ok(Encryption { format: "luks", by_place: true, cipher })
    }

    /// Reads bytes `inside` a cluster that is at `at` of the file; on the disk they begin at `offset`.
    pub(crate) fn read(
        &self,
        storage: &dyn Storage,
        bytes: &mut [u8],
        at: u64,
        offset: u64,
        inside: u64,
    ) -> Result<()> {
        let damaged = || Fault::damaged(format!("a cluster at {at:#x}"));
        let start = at.checked_add(inside).ok_or_else(damaged)?;
        let first = if self.by_place { start } else { offset } / SECTOR;
        read_sectors(storage, self.cipher.as_ref(), bytes, start, first)
    }
}

/// Reads what is at `at` of the file, which is in the sector `first`, at the same place within it.
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
    // What is no whole sector is a part of such.
    let len = (before + bytes.len() as u64).next_multiple_of(SECTOR);
    let mut sectors = vec![0; len as usize];
    read_padded(storage, &mut sectors, at - before)?;
    cipher.decrypt(&mut sectors, first);
    bytes.copy_from_slice(&sectors[before as usize..][..bytes.len()]);
    Ok(())
}

impl<'a> Password<'a> {
    /// The password, none where none is needed.
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
