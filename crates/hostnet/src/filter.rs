//! Filters that select packets by expressions of tcpdump (pcap-filter(7)), which libpcap compiles and
//! executes.

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_uint};
use std::fmt;
use std::ptr::NonNull;

use libc::timeval;
use libloading::Library;
use thiserror::Error;

use crate::library::{NoLibrary, Wanted};

const LIBPCAP: Wanted = Wanted {
    what: "a capture filter",
    library: "libpcap",
    package: "libpcap0.8",
    names: &["libpcap.so.0.8", "libpcap.so.1"],
};

/// The link type of Ethernet.
const LINK_TYPE: c_int = 1;
/// The most bytes of a packet that a filter examines; this covers all of them.
const SNAPSHOT: c_int = 262_144;

/// Says that the broadcast addresses of the network are unknown.
const NETMASK_UNKNOWN: u32 = u32::MAX;

/// `struct pcap`, which is opaque outside the library.
#[repr(C)]
struct PcapHandle([u8; 0]);

/// `struct bpf_program`.
#[repr(C)]
struct Program {
    len: c_uint,
    instructions: *mut u8,
}

/// `struct pcap_pkthdr`.
#[repr(C)]
struct PacketHeader {
    time: timeval,
    captured: u32,
    len: u32,
}

type OpenDead = unsafe extern "C" fn(c_int, c_int) -> *mut PcapHandle;
type Compile =
    unsafe extern "C" fn(*mut PcapHandle, *mut Program, *const c_char, c_int, u32) -> c_int;
type GetError = unsafe extern "C" fn(*mut PcapHandle) -> *mut c_char;
type OfflineFilter =
    unsafe extern "C" fn(*const Program, *const PacketHeader, *const c_uchar) -> c_int;
type FreeCode = unsafe extern "C" fn(*mut Program);
type Close = unsafe extern "C" fn(*mut PcapHandle);

/// Why a filter cannot be made.
#[derive(Debug, Error)]
pub enum FilterError {
    /// libpcap is missing.
    #[error(transparent)]
    NoLibrary(#[from] NoLibrary),
    /// The expression is invalid.
    #[error("\"{expression}\" is not a capture filter: {reason}; see \"man pcap-filter\"")]
    Expression {
        /// The expression.
        expression: String,
        /// The explanation of libpcap.
        reason: String,
    },
}

/// A compiled expression.
pub struct CaptureFilter {
    program: Program,
    expression: String,
    run: OfflineFilter,
    free: FreeCode,
    /// The library that contains the functions.
    _library: Library,
}

// SAFETY: a program is not changed once it is compiled, and `pcap_offline_filter` has no other state.
unsafe impl Send for CaptureFilter {}
// SAFETY: as above.
unsafe impl Sync for CaptureFilter {}

impl CaptureFilter {
    /// Compiles `expression` for Ethernet frames.
    pub fn new(expression: &str) -> Result<CaptureFilter, FilterError> {
        let refused = |reason: &str| FilterError::Expression {
            expression: expression.to_owned(),
            reason: reason.to_owned(),
        };
        let text = CString::new(expression).map_err(|_| refused("there is a zero in it"))?;
        let library = LIBPCAP.load()?;
        let missing = |error| FilterError::NoLibrary(LIBPCAP.missing(error));
        // SAFETY: the types are those of pcap.h.
        let (open, compile, error, run, free, close) = unsafe {
            (
                *library.get::<OpenDead>("pcap_open_dead").map_err(missing)?,
                *library.get::<Compile>("pcap_compile").map_err(missing)?,
                *library.get::<GetError>("pcap_geterr").map_err(missing)?,
                *library.get::<OfflineFilter>("pcap_offline_filter").map_err(missing)?,
                *library.get::<FreeCode>("pcap_freecode").map_err(missing)?,
                *library.get::<Close>("pcap_close").map_err(missing)?,
            )
        };
        // SAFETY: any numbers are allowed.
        let handle = NonNull::new(unsafe { open(LINK_TYPE, SNAPSHOT) });
        let handle = handle.ok_or_else(|| refused("there is no memory for it"))?;
        let mut program = Program { len: 0, instructions: std::ptr::null_mut() };
        // SAFETY: the handle is open, the text ends with a zero, and the program is ours.
        let status = unsafe {
            compile(handle.as_ptr(), &raw mut program, text.as_ptr(), 1, NETMASK_UNKNOWN)
        };
        // SAFETY: the handle is open, and the text of the error exists until the handle is closed.
        let reason =
            unsafe { CStr::from_ptr(error(handle.as_ptr())) }.to_string_lossy().into_owned();
        // SAFETY: the handle is not used after this.
        unsafe { close(handle.as_ptr()) };
        if status != 0 {
            return Err(refused(&reason));
        }
        let expression = expression.to_owned();
        Ok(CaptureFilter { program, expression, run, free, _library: library })
    }

    /// Returns whether `frame` matches the expression.
    pub fn matches(&self, frame: &[u8]) -> bool {
        let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        let time = timeval { tv_sec: 0, tv_usec: 0 };
        let header = PacketHeader { time, captured: len, len };
        // SAFETY: the program was compiled, and the frame has as many bytes as the header says.
        unsafe { (self.run)(&raw const self.program, &raw const header, frame.as_ptr()) != 0 }
    }
}

impl Drop for CaptureFilter {
    fn drop(&mut self) {
        // SAFETY: the program was compiled and is not used after this.
        unsafe { (self.free)(&raw mut self.program) };
    }
}

impl fmt::Debug for CaptureFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CaptureFilter").field(&self.expression).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_choose_frames() {
        let mut frame = vec![0xff; 42];
        frame[12..14].copy_from_slice(&[8, 6]);
        let arp = CaptureFilter::new("arp").unwrap();
        assert!(arp.matches(&frame) && !arp.matches(&frame[..13]) && !arp.matches(&[]));
        assert!(CaptureFilter::new("ether broadcast and not ip").unwrap().matches(&frame));
        frame[12..14].copy_from_slice(&[8, 0]);
        assert!(!arp.matches(&frame));
    }

    #[test]
    fn an_invalid_expression_is_reported() {
        for bad in ["no such thing", "tcp port", "a\0b"] {
            let error = CaptureFilter::new(bad).unwrap_err().to_string();
            assert!(error.contains("is not a capture filter"), "{error}");
        }
    }
}
