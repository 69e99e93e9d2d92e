//! The hashes that headers name, and the functions of LUKS that use them.

use pbkdf2::pbkdf2_hmac;
use ripemd::Ripemd160;
use sha1::Sha1;
use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};

/// A hash function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hash {
    Sha1,
    Sha224,
    Sha256,
    Sha384,
    Sha512,
    Ripemd160,
}

impl Hash {
    /// Returns the hash function called `name`.
    pub(super) fn of_name(name: &str) -> Option<Hash> {
        Some(match name {
            "sha1" => Hash::Sha1,
            "sha224" => Hash::Sha224,
            "sha256" => Hash::Sha256,
            "sha384" => Hash::Sha384,
            "sha512" => Hash::Sha512,
            "ripemd160" | "rmd160" => Hash::Ripemd160,
            _ => return None,
        })
    }

    /// Returns the hash of `parts`, joined together.
    pub(super) fn digest(self, parts: &[&[u8]]) -> Vec<u8> {
        fn of<D: Digest>(parts: &[&[u8]]) -> Vec<u8> {
            let mut digest = D::new();
            for part in parts {
                digest.update(part);
            }
            digest.finalize().to_vec()
        }
        match self {
            Hash::Sha1 => of::<Sha1>(parts),
            Hash::Sha224 => of::<Sha224>(parts),
            Hash::Sha256 => of::<Sha256>(parts),
            Hash::Sha384 => of::<Sha384>(parts),
            Hash::Sha512 => of::<Sha512>(parts),
            Hash::Ripemd160 => of::<Ripemd160>(parts),
        }
    }

    /// Fills `key` by PBKDF2 (RFC 8018, 5.2) with HMAC.
    pub(super) fn derive(self, password: &[u8], salt: &[u8], iterations: u32, key: &mut [u8]) {
        match self {
            Hash::Sha1 => pbkdf2_hmac::<Sha1>(password, salt, iterations, key),
            Hash::Sha224 => pbkdf2_hmac::<Sha224>(password, salt, iterations, key),
            Hash::Sha256 => pbkdf2_hmac::<Sha256>(password, salt, iterations, key),
            Hash::Sha384 => pbkdf2_hmac::<Sha384>(password, salt, iterations, key),
            Hash::Sha512 => pbkdf2_hmac::<Sha512>(password, salt, iterations, key),
            Hash::Ripemd160 => pbkdf2_hmac::<Ripemd160>(password, salt, iterations, key),
        }
    }

    /// Joins the stripes into which a key of `len` bytes was split ("LUKS On-Disk Format Specification",
    /// version 1.2.3, 2.4).
    pub(super) fn merge(self, stripes: &[u8], len: usize) -> Vec<u8> {
        let mut key = vec![0; len];
        let count = stripes.len() / len;
        for (index, stripe) in stripes.chunks_exact(len).enumerate() {
            key.iter_mut().zip(stripe).for_each(|(byte, other)| *byte ^= other);
            if index + 1 < count {
                self.diffuse(&mut key);
            }
        }
        key
    }

    /// Replaces each piece, which is as long as the hash, by its hash, so that each bit depends on all bits
    /// of the piece.
    fn diffuse(self, key: &mut [u8]) {
        let len = self.digest(&[]).len();
        for (piece, number) in key.chunks_mut(len).zip(0_u32..) {
            let digest = self.digest(&[&number.to_be_bytes(), piece]);
            piece.copy_from_slice(&digest[..piece.len()]);
        }
    }
}
