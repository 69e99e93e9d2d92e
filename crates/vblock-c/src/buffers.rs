//! The buffers that C programs fill and read.
//!
//! C has the address of a buffer while this library has its number, so bytes are only reached by pointers, and
//! never by references that outlive a call.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ptr::NonNull;

/// Upper bound of the bytes in a buffer.
const SIZE_MAX: usize = 32 << 20;
/// Upper bound of the bytes in buffers that nobody uses.
const SPARE_MAX: usize = 4 << 20;

/// A buffer.
#[derive(Debug)]
struct Buffer {
    len: usize,
    /// Number of operations that use it.
    users: usize,
    /// Whether C has given it back.
    is_returned: bool,
}

/// All buffers, by their addresses, which are also the references that C has.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    used: BTreeMap<usize, Buffer>,
    /// Addresses and lengths of buffers that nobody uses.
    spare: Vec<(usize, usize)>,
}

impl Buffers {
    /// Returns the address of a buffer of at least `size` bytes.
    pub(crate) fn get(&mut self, size: usize) -> Option<NonNull<u8>> {
        let len = size.max(1).next_multiple_of(4096);
        if len > SIZE_MAX {
            return None;
        }
        let (address, len) = match self.spare.iter().position(|spare| spare.1 >= len) {
            Some(at) => self.spare.swap_remove(at),
            None => (
                Box::into_raw(vec![0_u8; len].into_boxed_slice()).cast::<u8>().expose_provenance(),
                len,
            ),
        };
        self.used.insert(address, Buffer { len, users: 0, is_returned: false });
        NonNull::new(std::ptr::with_exposed_provenance_mut(address))
    }

    /// Gives a buffer back, as soon as no operation uses it. Does nothing if there is no such buffer.
    pub(crate) fn give_back(&mut self, address: usize) {
        if let Some(buffer) = self.used.get_mut(&address) {
            buffer.is_returned = true;
        }
        self.tidy(address);
    }

    /// Notes that an operation uses the first `len` bytes of a buffer. Returns false if it has not so many, or
    /// is not there.
    pub(crate) fn begin(&mut self, address: usize, len: usize) -> bool {
        match self.used.get_mut(&address) {
            Some(buffer) if !buffer.is_returned && len <= buffer.len => {
                buffer.users += 1;
                true
            }
            _ => false,
        }
    }

    /// Notes that an operation no longer uses a buffer.
    pub(crate) fn end(&mut self, address: usize) {
        if let Some(buffer) = self.used.get_mut(&address) {
            buffer.users -= 1;
        }
        self.tidy(address);
    }

    fn tidy(&mut self, address: usize) {
        let Some(buffer) = self.used.get(&address) else { return };
        if !buffer.is_returned || buffer.users > 0 {
            return;
        }
        let len = buffer.len;
        self.used.remove(&address);
        let spare: usize = self.spare.iter().map(|(_, len)| len).sum();
        if spare + len <= SPARE_MAX {
            self.spare.push((address, len));
        } else {
            free(address, len);
        }
    }

    /// Returns a copy of bytes of a buffer that an operation uses.
    pub(crate) fn read(&self, address: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        if self.holds(address, 0, len) {
            // SAFETY: the buffer has `len` bytes from its address on, which belong to this library's
            // allocation, and is not freed while it is in `used`. The new vector lies elsewhere. The header
            // forbids C to write to it during the operation; if it does, the bytes are unspecified.
            unsafe {
                let from = std::ptr::with_exposed_provenance::<u8>(address);
                std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), len);
            }
        }
        bytes
    }

    /// Copies `bytes` to a buffer that an operation uses.
    pub(crate) fn write(&self, address: usize, offset: usize, bytes: &[u8]) {
        if self.holds(address, offset, bytes.len()) {
            // SAFETY: as in `read`; the buffer has these bytes from `offset` on.
            unsafe {
                let to = std::ptr::with_exposed_provenance_mut::<u8>(address).add(offset);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            }
        }
    }

    fn holds(&self, address: usize, offset: usize, len: usize) -> bool {
        self.used.get(&address).is_some_and(|buffer| offset + len <= buffer.len)
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        let used = std::mem::take(&mut self.used).into_iter();
        let used = used.map(|(address, buffer)| (address, buffer.len));
        for (address, len) in used.chain(std::mem::take(&mut self.spare)) {
            free(address, len);
        }
    }
}

fn free(address: usize, len: usize) {
    let bytes = std::ptr::with_exposed_provenance_mut::<u8>(address);
    // SAFETY: address and length are those of a boxed slice that `Buffers::get` has made, and each is in one of
    // the two lists, from which it was just taken; so it is freed once.
    drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(bytes, len)) });
}
