//! The messages before requests: doc/proto.md, "Handshake phase". Numbers are big-endian.

use std::io;

use super::protocol::*;
use super::replies::{PARTS_MAX, REPLY_MAX, Wire, refused, wrong};
use super::stream::send;
use crate::bytes::{be32, be64};

/// The largest block size that is accepted.
const BLOCK_MAX: u32 = 64 << 10;

/// The server's description of an export.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Export {
    pub(super) size: u64,
    flags: u16,
    /// Number of bytes in a block. Requests must be for whole blocks.
    pub(super) block: u64,
    /// The number of the context by which the server tells what is allocated, if it does.
    pub(super) allocation: Option<u32>,
}

impl Export {
    pub(super) fn is_read_only(&self) -> bool {
        self.flags & flag::READ_ONLY != 0
    }

    pub(super) fn can_flush(&self) -> bool {
        self.flags & flag::FLUSH != 0
    }

    pub(super) fn can_trim(&self) -> bool {
        self.flags & flag::TRIM != 0
    }

    pub(super) fn can_write_zeroes(&self) -> bool {
        self.flags & flag::WRITE_ZEROES != 0
    }

    /// Returns whether a user of `before` can use this export instead.
    pub(super) fn can_replace(&self, before: &Export) -> bool {
        self.size == before.size
            && before.flags & !self.flags & flag::USED == 0
            && (self.is_read_only() == before.is_read_only())
            && self.block <= before.block
            && (before.allocation.is_none() || self.allocation == before.allocation)
    }
}

/// Performs the "Newstyle negotiation" for the export called `name`, and returns its description.
pub(super) fn greet(wire: &mut Wire, name: &str) -> io::Result<Export> {
    let hello: [u8; 18] = wire.take()?;
    if hello[..16] != *MAGIC {
        return Err(wrong("it does not begin as a newstyle server"));
    }
    let flags = u16::from_be_bytes([hello[16], hello[17]]);
    if flags & FIXED_NEWSTYLE == 0 {
        return Err(refused("is too old: it has no fixed newstyle negotiation"));
    }
    let ours = flags & (FIXED_NEWSTYLE | NO_ZEROES);
    send(&wire.stream, &u32::from(ours).to_be_bytes(), &[])?;
    let mut export = Export { block: 1, ..Export::default() };
    if say_option(wire, STRUCTURED, &[], |_, _| Ok(()))? {
        let mut data = with_len(name);
        data.extend(1_u32.to_be_bytes());
        data.extend(with_len(ALLOCATION));
        say_option(wire, SET_META_CONTEXT, &data, |kind, data| {
            if kind == META_CONTEXT && data.len() >= 4 && &data[4..] == ALLOCATION.as_bytes() {
                export.allocation = Some(be32(data, 0));
            }
            Ok(())
        })?;
    }
    let mut data = with_len(name);
    data.extend([0, 1]);
    data.extend(INFO_BLOCK_SIZE.to_be_bytes());
    let mut is_known = false;
    let goes = say_option(wire, GO, &data, |kind, data| {
        let of = data.get(..2).map(|kind| u16::from_be_bytes([kind[0], kind[1]]));
        match (kind, of, data.len()) {
            (INFO, Some(INFO_EXPORT), 12) => {
                is_known = true;
                export.size = be64(data, 2);
                export.flags = u16::from_be_bytes([data[10], data[11]]);
            }
            (INFO, Some(INFO_BLOCK_SIZE), 14) => {
                let block = be32(data, 2);
                if !block.is_power_of_two() || block > BLOCK_MAX {
                    return Err(wrong(format!("blocks of {block} bytes")));
                }
                export.block = u64::from(block);
            }
            _ => {}
        }
        Ok(())
    })?;
    if !goes {
        send_option(wire, EXPORT_NAME, name.as_bytes())?;
        let answer: [u8; 10] = wire.take()?;
        export.size = be64(&answer, 0);
        export.flags = u16::from_be_bytes([answer[8], answer[9]]);
        if ours & NO_ZEROES == 0 {
            wire.take::<124>()?;
        }
    } else if !is_known {
        return Err(wrong("it does not tell the size of the export"));
    }
    if i64::try_from(export.size).is_err() || !export.size.is_multiple_of(export.block) {
        return Err(wrong(format!(
            "an export of {} bytes in blocks of {}",
            export.size, export.block
        )));
    }
    Ok(export)
}

fn send_option(wire: &mut Wire, option: u32, data: &[u8]) -> io::Result<()> {
    let mut bytes = MAGIC[8..].to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    send(&wire.stream, &bytes, &[])
}

/// Sends an option, and calls `each` for the replies before the acknowledgement. Returns false if the server
/// does not know the option.
fn say_option(
    wire: &mut Wire,
    option: u32,
    data: &[u8],
    mut each: impl FnMut(u32, &[u8]) -> io::Result<()>,
) -> io::Result<bool> {
    send_option(wire, option, data)?;
    for _ in 0..PARTS_MAX {
        let header: [u8; 20] = wire.take()?;
        let (kind, len) = (be32(&header, 12), be32(&header, 16));
        if be64(&header, 0) != OPTION_REPLY || be32(&header, 8) != option || len > REPLY_MAX {
            return Err(wrong("a reply to an option"));
        }
        let data = wire.take_vec(len)?;
        match kind {
            ACK => return Ok(true),
            UNSUPPORTED => return Ok(false),
            error if error & 1 << 31 != 0 => {
                let says = String::from_utf8_lossy(&data).into_owned();
                return Err(refused(&format!(
                    "refuses the export: {}",
                    if says.is_empty() { format!("error {error:#x}") } else { says }
                )));
            }
            kind => each(kind, &data)?,
        }
    }
    Err(wrong("too many replies to an option"))
}

fn with_len(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}
