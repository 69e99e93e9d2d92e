//! Decryption of sectors.

use std::fmt;

use aes::cipher::array::Array;
use aes::cipher::consts::U16;
use aes::cipher::{Block, BlockCipherDecrypt, BlockCipherEncrypt, BlockSizeUser, KeyInit};
use aes::{Aes128, Aes192, Aes256};
use xts_mode::Xts128;

use super::hash::Hash;
use crate::error::{Fault, Result};

/// Number of bytes in a sector, each of which is encrypted separately.
pub(crate) const SECTOR: u64 = 512;

/// A cipher with its key.
pub(crate) struct SectorCipher {
    mode: Box<dyn Mode>,
    vector: Vector,
}

impl fmt::Debug for SectorCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SectorCipher")
    }
}

/// The rule by which a sector's number gives the initialization vector.
enum Vector {
    /// The vector is the low 32 bits of the number.
    Plain,
    /// The vector is the number.
    Plain64,
    /// The vector is the number, encrypted with the hash of the key.
    Essiv(Box<Aes256>),
}

impl Vector {
    fn of(&self, number: u64) -> [u8; 16] {
        let number = if matches!(self, Vector::Plain) { number & 0xffff_ffff } else { number };
        let mut vector = [0; 16];
        vector[..8].copy_from_slice(&number.to_le_bytes());
        if let Vector::Essiv(cipher) = self {
            let mut block = Array(vector);
            cipher.encrypt_block(&mut block);
            vector = block.0;
        }
        vector
    }
}

/// A mode of operation of a block cipher.
trait Mode: Send + Sync {
    fn decrypt(&self, sector: &mut [u8], vector: [u8; 16]);
}

impl<C> Mode for Xts128<C>
where
    C: BlockSizeUser<BlockSize = U16> + BlockCipherEncrypt + BlockCipherDecrypt + Send + Sync,
{
    fn decrypt(&self, sector: &mut [u8], vector: [u8; 16]) {
        self.decrypt_sector(sector, Array(vector));
    }
}

/// Cipher block chaining.
struct Cbc<C>(C);

impl<C> Mode for Cbc<C>
where
    C: BlockSizeUser<BlockSize = U16> + BlockCipherDecrypt + Send + Sync,
{
    fn decrypt(&self, sector: &mut [u8], vector: [u8; 16]) {
        let before: Vec<u8> = vector.into_iter().chain(sector.iter().copied()).collect();
        let (blocks, _) = Block::<C>::slice_as_chunks_mut(sector);
        self.0.decrypt_blocks(blocks);
        sector.iter_mut().zip(before).for_each(|(byte, other)| *byte ^= other);
    }
}

/// Decrypts `bytes` with AES-256 in CBC mode, and removes the padding. Returns None if they are not whole
/// blocks, or do not end with 1 to 16 bytes of padding.
pub(super) fn decrypt_padded(key: &[u8; 32], bytes: &[u8], vector: [u8; 16]) -> Option<Vec<u8>> {
    if !bytes.len().is_multiple_of(16) {
        return None;
    }
    let mut clear = bytes.to_vec();
    Cbc(cipher::<Aes256>(key)).decrypt(&mut clear, vector);
    let count = usize::from(*clear.last()?);
    let end = clear.len() - count.min(clear.len());
    let is_padding =
        (1..=16).contains(&count) && clear[end..].iter().all(|byte| usize::from(*byte) == count);
    is_padding.then(|| clear[..end].to_vec())
}

fn cipher<C: KeyInit>(key: &[u8]) -> C {
    C::new_from_slice(key).expect("the key is as long as the cipher's")
}

fn xts<C>(key: &[u8]) -> Box<dyn Mode>
where
    C: KeyInit + BlockSizeUser<BlockSize = U16> + BlockCipherEncrypt + BlockCipherDecrypt,
    C: Send + Sync + 'static,
{
    let (data, tweak) = key.split_at(key.len() / 2);
    Box::new(Xts128::<C>::new(cipher(data), cipher(tweak)))
}

impl SectorCipher {
    /// Returns the cipher of a LUKS header by its name, its mode (`xts-plain64`, `cbc-essiv:sha256`) and its
    /// key.
    pub(super) fn new(name: &str, mode: &str, key: &[u8]) -> Result<SectorCipher> {
        let unknown = || {
            Fault::unsupported(format!(
                "it is encrypted by {name}-{mode} with a key of {} bits, which is not supported; AES is, with xts or cbc, and with \
                 plain, plain64 or essiv:sha256",
                key.len() * 8
            ))
        };
        let (mode_name, vector) = mode.split_once('-').ok_or_else(unknown)?;
        let vector = match vector {
            "plain" => Vector::Plain,
            "plain64" => Vector::Plain64,
            "essiv:sha256" => Vector::Essiv(Box::new(cipher(&Hash::Sha256.digest(&[key])))),
            _ => return Err(unknown()),
        };
        let mode: Box<dyn Mode> = match (name, mode_name, key.len()) {
            ("aes", "xts", 32) => xts::<Aes128>(key),
            ("aes", "xts", 48) => xts::<Aes192>(key),
            ("aes", "xts", 64) => xts::<Aes256>(key),
            ("aes", "cbc", 16) => Box::new(Cbc(cipher::<Aes128>(key))),
            ("aes", "cbc", 24) => Box::new(Cbc(cipher::<Aes192>(key))),
            ("aes", "cbc", 32) => Box::new(Cbc(cipher::<Aes256>(key))),
            _ => return Err(unknown()),
        };
        Ok(SectorCipher { mode, vector })
    }

    /// Returns the cipher of QEMU's older encryption, whose key is the first 16 bytes of the password.
    pub(super) fn old_aes(password: &[u8]) -> SectorCipher {
        let mut key = [0; 16];
        let len = password.len().min(key.len());
        key[..len].copy_from_slice(&password[..len]);
        SectorCipher { mode: Box::new(Cbc(cipher::<Aes128>(&key))), vector: Vector::Plain64 }
    }

    /// Decrypts whole sectors. The first of them has the number `first`.
    pub(crate) fn decrypt(&self, bytes: &mut [u8], first: u64) {
        for (sector, number) in bytes.chunks_exact_mut(SECTOR as usize).zip(first..) {
            self.mode.decrypt(sector, self.vector.of(number));
        }
    }
}
