//! The constants of the protocol (doc/proto.md of the NBD project), for clients and servers. All are
//! big-endian.
#![allow(missing_docs)]

/// The first bytes from a server: "NBDMAGIC" and "IHAVEOPT".
pub const MAGIC: &[u8; 16] = b"NBDMAGICIHAVEOPT";
/// The first bytes of a reply to an option.
pub const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
/// The first bytes of a request.
pub const REQUEST: u32 = 0x2560_9513;
/// The first bytes of a simple reply.
pub const SIMPLE_REPLY: u32 = 0x6744_6698;
/// The first bytes of each part of a structured reply.
pub const STRUCTURED_REPLY: u32 = 0x668e_33ef;

/// Handshake flag: the server answers all options.
pub const FIXED_NEWSTYLE: u16 = 1;
/// Handshake flag: no zeros follow the answer to [`EXPORT_NAME`].
pub const NO_ZEROES: u16 = 2;

// Options.
pub const EXPORT_NAME: u32 = 1;
pub const ABORT: u32 = 2;
pub const LIST: u32 = 3;
pub const INFO_ONLY: u32 = 6;
pub const GO: u32 = 7;
pub const STRUCTURED: u32 = 8;
pub const LIST_META_CONTEXT: u32 = 9;
pub const SET_META_CONTEXT: u32 = 10;

// Types of replies to options.
pub const ACK: u32 = 1;
pub const SERVER: u32 = 2;
pub const INFO: u32 = 3;
pub const META_CONTEXT: u32 = 4;
pub const UNSUPPORTED: u32 = 1 << 31 | 1;
pub const INVALID: u32 = 1 << 31 | 3;
pub const UNKNOWN: u32 = 1 << 31 | 6;

// Kinds of information.
pub const INFO_EXPORT: u16 = 0;
pub const INFO_NAME: u16 = 1;
pub const INFO_BLOCK_SIZE: u16 = 3;

/// Transmission flags.
pub mod flag {
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const FLUSH: u16 = 1 << 2;
    pub const FUA: u16 = 1 << 3;
    pub const TRIM: u16 = 1 << 5;
    pub const WRITE_ZEROES: u16 = 1 << 6;
    pub const DF: u16 = 1 << 7;
    pub const MULTI_CONN: u16 = 1 << 8;
    /// The flags for commands that clients here use.
    pub const USED: u16 = FLUSH | TRIM | WRITE_ZEROES;
}

/// Flags of a request.
pub mod request_flag {
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const ONE: u16 = 1 << 3;
}

/// Types of parts of a structured reply.
pub mod part {
    pub const NONE: u16 = 0;
    pub const DATA: u16 = 1;
    pub const HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR: u16 = 1 << 15;
    /// An error with its number and a text.
    pub const ERROR_MESSAGE: u16 = ERROR | 1;
}

/// Flag of the last part of a structured reply.
pub const DONE: u16 = 1;

/// The name of the context for block status that all servers use.
pub const ALLOCATION: &str = "base:allocation";
/// Flag of this context for ranges that take no room.
pub const HOLE: u32 = 1;
/// Flag of this context for ranges that read as zeros.
pub const READS_AS_ZERO: u32 = 2;

/// The type of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Read = 0,
    Write = 1,
    Disconnect = 2,
    Flush = 3,
    Trim = 4,
    WriteZeroes = 6,
    BlockStatus = 7,
}

impl Command {
    /// Returns the command with this number.
    pub fn of(number: u16) -> Option<Command> {
        use Command::{BlockStatus, Disconnect, Flush, Read, Trim, Write, WriteZeroes};
        let all = [Read, Write, Disconnect, Flush, Trim, WriteZeroes, BlockStatus];
        all.into_iter().find(|command| *command as u16 == number)
    }
}
