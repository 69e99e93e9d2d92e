//! LUKS, version 1 ("LUKS On-Disk Format Specification", version 1.2.3): a header with the key of the disk,
//! which each of up to eight passwords unlocks, followed by the encrypted sectors. Numbers are big-endian.

use super::cipher::{SECTOR, SectorCipher};
use super::hash::Hash;
use super::{Password, Secret, read_sectors};
use crate::bytes::{be16, be32};
use crate::error::{Fault, Result};
use crate::format::{Below, Details, Driver, Extent, Kind};
use crate::storage::{Storage, read_padded};

/// The first bytes of the header, and the version.
const MAGIC: &[u8; 8] = b"LUKS\xba\xbe\0\x01";
/// Number of bytes in the header.
const LEN: usize = 592;
/// Offset of the slots in the header, and the length of each.
const SLOTS: usize = 208;
const SLOT_LEN: usize = 48;
/// Marks a slot that is in use.
const ACTIVE: u32 = 0x00ac_71f3;
/// Number of stripes into which a key is split. Nobody uses another number.
const STRIPES: u32 = 4000;
/// Upper bound of the iterations of PBKDF2 for all slots together, which take about half a minute. Two
/// seconds are usual.
const ITERATIONS_MAX: u64 = 1 << 26;

/// The header of an encrypted image.
#[derive(Debug)]
pub(crate) struct Header {
    /// Offset of the header in the file.
    at: u64,
    cipher: String,
    mode: String,
    hash_name: String,
    hash: Hash,
    /// Offset of the sectors from the header.
    payload: u64,
    key_len: usize,
    digest: [u8; 20],
    digest_salt: [u8; 32],
    digest_iterations: u32,
    uuid: String,
    slots: Vec<Slot>,
}

/// A slot, from which a password gets the key.
#[derive(Debug)]
struct Slot {
    number: usize,
    iterations: u32,
    salt: [u8; 32],
    /// Offset of the stripes from the header.
    at: u64,
}

/// Returns whether `head` is the beginning of an image of this format.
pub(crate) fn is_one(head: &[u8]) -> bool {
    head.starts_with(&MAGIC[..6])
}

/// Returns the text in `bytes`, which a zero byte ends.
fn text(bytes: &[u8], what: &str) -> Result<String> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let text = std::str::from_utf8(&bytes[..end]).ok().filter(|text| text.is_ascii());
    text.map(str::to_owned).ok_or_else(|| Fault::damaged(format!("{what} is not text")))
}

impl Header {
    /// Reads the header at byte `at` of the file. The header and its slots have `room` bytes.
    pub(crate) fn read(storage: &dyn Storage, at: u64, room: u64) -> Result<Header> {
        let mut head = vec![0; LEN];
        read_padded(storage, &mut head, at)?;
        if !is_one(&head) {
            return Err(Fault::refused("it is not a LUKS image"));
        }
        if head[..8] != MAGIC[..] {
            let version = be16(&head, 6);
            return Err(Fault::unsupported(format!(
                "only version 1 of LUKS is supported, not version {version}; change it with \"cryptsetup convert\""
            )));
        }
        let hash_name = text(&head[72..104], "the name of its hash")?;
        let hash = Hash::of_name(&hash_name).ok_or_else(|| {
            Fault::unsupported(format!("its key is hashed by the unknown function {hash_name:?}"))
        })?;
        let key_len = be32(&head, 108) as usize;
        if !(16..=64).contains(&key_len) {
            return Err(Fault::damaged(format!("a key cannot have {key_len} bytes")));
        }
        let payload = u64::from(be32(&head, 104)) * SECTOR;
        let mut header = Header {
            at,
            cipher: text(&head[8..40], "the name of its cipher")?,
            mode: text(&head[40..72], "the mode of its cipher")?,
            hash_name,
            hash,
            payload,
            key_len,
            digest: head[112..132].try_into().expect("20 bytes"),
            digest_salt: head[132..164].try_into().expect("32 bytes"),
            digest_iterations: be32(&head, 164),
            uuid: text(&head[168..208], "its UUID")?,
            slots: Vec::new(),
        };
        let mut iterations = u64::from(header.digest_iterations);
        for (number, slot) in head[SLOTS..].chunks_exact(SLOT_LEN).enumerate() {
            if be32(slot, 0) != ACTIVE {
                continue;
            }
            let at = u64::from(be32(slot, 40)) * SECTOR;
            let end = at + header.stripes_len() as u64;
            if be32(slot, 44) != STRIPES || at < LEN as u64 || end > payload.min(room) {
                return Err(Fault::damaged(format!(
                    "key slot {number} cannot have {} stripes at {at:#x}",
                    be32(slot, 44)
                )));
            }
            let salt = slot[8..40].try_into().expect("32 bytes");
            iterations += u64::from(be32(slot, 4));
            header.slots.push(Slot { number, iterations: be32(slot, 4), salt, at });
        }
        let is_none = header.slots.iter().any(|slot| slot.iterations == 0);
        if iterations > ITERATIONS_MAX || header.digest_iterations == 0 || is_none {
            return Err(Fault::damaged(format!(
                "its password needs {iterations} iterations; at most {ITERATIONS_MAX} are supported"
            )));
        }
        Ok(header)
    }

    fn stripes_len(&self) -> usize {
        self.key_len * STRIPES as usize
    }

    /// Returns the cipher of the disk, whose key the password `secret` unlocks.
    pub(super) fn unlock(&self, storage: &dyn Storage, secret: &Secret) -> Result<SectorCipher> {
        for slot in &self.slots {
            let mut stripes = vec![0; self.stripes_len()];
            read_padded(storage, &mut stripes, self.at + slot.at)?;
            let mut key = vec![0; self.key_len];
            self.hash.derive(secret.bytes(), &slot.salt, slot.iterations, &mut key);
            // The stripes may end within a sector.
            let len = stripes.len();
            stripes.resize(len.next_multiple_of(SECTOR as usize), 0);
            SectorCipher::new(&self.cipher, &self.mode, &key)?.decrypt(&mut stripes, 0);
            let key = self.hash.merge(&stripes[..len], self.key_len);
            let mut digest = [0; 20];
            self.hash.derive(&key, &self.digest_salt, self.digest_iterations, &mut digest);
            if digest == self.digest {
                tracing::debug!("the password opens key slot {}", slot.number);
                return SectorCipher::new(&self.cipher, &self.mode, &key);
            }
        }
        Err(Fault::refused("Invalid password, cannot unlock any keyslot"))
    }

    /// Returns the header's properties, in the words of qemu-img.
    pub(crate) fn specific(&self) -> Vec<(&'static str, String)> {
        let (mode, vector) = self.mode.split_once('-').unwrap_or((&self.mode, ""));
        let vector = vector.split_once(':').map_or(vector, |(vector, _)| vector);
        vec![
            ("ivgen alg", vector.to_owned()),
            ("hash alg", self.hash_name.clone()),
            ("cipher alg", format!("{}-{}", self.cipher, self.cipher_bits())),
            ("uuid", self.uuid.clone()),
            ("cipher mode", mode.to_owned()),
            ("payload offset", self.payload.to_string()),
            ("master key iters", self.digest_iterations.to_string()),
        ]
    }

    /// Returns the number of bits in the cipher's key. In XTS mode the key consists of two.
    fn cipher_bits(&self) -> usize {
        if self.mode.starts_with("xts") { self.key_len * 4 } else { self.key_len * 8 }
    }
}

/// An image of this format.
#[derive(Debug)]
pub(crate) struct Luks {
    storage: Box<dyn Storage>,
    header: Header,
    /// The cipher. None if nobody will read the disk.
    cipher: Option<SectorCipher>,
    size: u64,
}

impl Luks {
    /// Opens the image in `storage`.
    pub(crate) fn open(storage: Box<dyn Storage>, password: Password<'_>) -> Result<Luks> {
        let file = storage.size()?;
        let header = Header::read(&*storage, 0, file)?;
        let secret = password.of("luks")?;
        let cipher = secret.map(|secret| header.unlock(&*storage, secret)).transpose()?;
        let size = file.checked_sub(header.payload).ok_or_else(|| {
            Fault::damaged(format!(
                "its data begin at {:#x}, after the end of the file",
                header.payload
            ))
        })?;
        Ok(Luks { storage, header, cipher, size: size / SECTOR * SECTOR })
    }
}

impl Driver for Luks {
    fn size(&self) -> u64 {
        self.size
    }

    fn extent(&self, offset: u64, max: u64) -> Result<Extent> {
        // Sectors that were never written do not decrypt to zeros.
        Ok(Extent { kind: Kind::Data { at: Some(self.header.payload + offset) }, len: max })
    }

    fn read(&self, bytes: &mut [u8], offset: u64, _below: &dyn Below) -> Result<()> {
        // Sectors are numbered from the beginning of the payload.
        let at = self.header.payload + offset;
        read_sectors(&*self.storage, self.cipher.as_ref(), bytes, at, offset / SECTOR)
    }

    fn write(&self, _bytes: &[u8], _offset: u64, _below: &dyn Below) -> Result<()> {
        Err(Fault::ReadOnly)
    }

    fn write_zeroes(&self, _offset: u64, _len: u64, _below: &dyn Below) -> Result<()> {
        Err(Fault::ReadOnly)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn details(&self) -> Details {
        Details { specific: self.header.specific(), is_encrypted: true, ..Details::default() }
    }

    fn allocated(&self) -> Option<u64> {
        self.storage.allocated()
    }
}
