//! Reads the files of the vectors: chunks of a tag, a length and a body, compressed by gzip. The README
//! beside them describes them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;

/// The registers of a processor state.
pub(crate) const REGISTERS: [&str; 14] =
    ["ax", "bx", "cx", "dx", "cs", "ss", "ds", "es", "sp", "bp", "si", "di", "ip", "flags"];

/// The indices of some registers.
pub(crate) const CX: usize = 2;
pub(crate) const SS: usize = 5;
pub(crate) const SP: usize = 8;
pub(crate) const IP: usize = 12;
pub(crate) const FLAGS: usize = 13;

/// Registers and memory before a test, or their differences after it.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The registers in the order of [`REGISTERS`].
    pub(crate) registers: [Option<u16>; REGISTERS.len()],
    pub(crate) memory: BTreeMap<u32, u8>,
}

/// A test: one instruction, followed by HLT.
#[derive(Debug, Default)]
pub(crate) struct Test {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// The bytes of the instruction and the HLT.
    pub(crate) bytes: Vec<u8>,
    pub(crate) initial: State,
    pub(crate) last: State,
    /// The vector of the exception that the instruction raised.
    pub(crate) exception: Option<u8>,
    /// The hash of the test in hexadecimal digits.
    pub(crate) hash: String,
}

impl Test {
    /// Returns the contents of register `number` after the test.
    pub(crate) fn last_register(&self, number: usize) -> u16 {
        self.last.registers[number].or(self.initial.registers[number]).unwrap_or_default()
    }
}

/// The folder of the vectors.
pub(crate) fn folder() -> PathBuf {
    let shared = std::env::var_os("RING3_SHARED").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    shared.join("data/sst-80286-real")
}

/// Returns the forms that have files, in order, each with its file.
pub(crate) fn files(folder: &Path) -> BTreeMap<String, PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the folder of the vectors");
    entries
        .map(|entry| entry.expect("an entry of the folder").path())
        .filter_map(|path| {
            let form = path.file_name()?.to_str()?.strip_suffix(".moo.gz")?.to_owned();
            Some((form, path))
        })
        .collect()
}

/// Returns the hashes of tests that are known to be wrong.
pub(crate) fn revoked(folder: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(folder.join("revocation_list.txt")).unwrap_or_default();
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}

/// Reads the tests of a file.
pub(crate) fn read(path: &Path) -> Vec<Test> {
    let mut bytes = Vec::new();
    let file = File::open(path).expect("a file of vectors");
    GzDecoder::new(file).read_to_end(&mut bytes).expect("gzip");
    Chunks(&bytes).filter(|(tag, _)| tag == b"TEST").map(|(_, body)| test(body)).collect()
}

/// A sequence of chunks.
struct Chunks<'a>(&'a [u8]);

impl<'a> Iterator for Chunks<'a> {
    type Item = ([u8; 4], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (tag, rest) = self.0.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (body, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
        self.0 = rest;
        Some((*tag, body))
    }
}

fn test(body: &[u8]) -> Test {
    let mut test = Test { index: dword(body), ..Test::default() };
    for (tag, body) in Chunks(&body[4..]) {
        match &tag {
            b"NAME" => test.name = String::from_utf8_lossy(&body[4..]).into_owned(),
            b"BYTS" => test.bytes = body[4..].to_vec(),
            b"INIT" => test.initial = state(body),
            b"FINA" => test.last = state(body),
            b"EXCP" => test.exception = body.first().copied(),
            b"HASH" => {
                let digits: Vec<_> = body.iter().map(|byte| format!("{byte:02x}")).collect();
                test.hash = digits.concat();
            }
            _ => {}
        }
    }
    test
}

fn state(body: &[u8]) -> State {
    let mut state = State::default();
    for (tag, body) in Chunks(body) {
        match &tag {
            b"REGS" => {
                let mut words =
                    body.chunks_exact(2).map(|word| u16::from_le_bytes([word[0], word[1]]));
                let mask = words.next().expect("a mask of registers");
                for (number, register) in state.registers.iter_mut().enumerate() {
                    *register = if mask >> number & 1 == 1 { words.next() } else { None };
                }
            }
            b"RAM " => {
                let entries = body[4..].chunks_exact(5);
                state.memory = entries.map(|entry| (dword(entry), entry[4])).collect();
            }
            _ => {}
        }
    }
    state
}

fn dword(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(*bytes.first_chunk().expect("four bytes"))
}
