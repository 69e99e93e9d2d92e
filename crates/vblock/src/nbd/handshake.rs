//! The handshake, in which a client chooses an export (doc/proto.md, "Fixed newstyle negotiation").

use std::io::{self, Read, Write};

use ring3_block::nbd::protocol::*;

use super::execution::PAYLOAD_MAX;
use super::{Export, Exports, take, wrong};

/// Upper bound of the bytes in an option.
const OPTION_MAX: u32 = 16 << 10;
/// Upper bound of the options before an export is chosen.
const OPTIONS_MAX: usize = 256;
/// The number of the only context for block status.
pub(super) const CONTEXT: u32 = 1;

/// The choice of a client.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) export: Export,
    /// Whether replies are structured.
    pub(super) structured: bool,
    /// Whether the client may ask what is allocated.
    pub(super) has_context: bool,
}

/// The options that were agreed upon so far.
#[derive(Debug, Default)]
struct Agreed {
    no_zeroes: bool,
    structured: bool,
    /// The name of the export for which the client wants to know what is allocated.
    context: Option<String>,
}

/// Answers options until the client has chosen an export. Returns None if the client ends the handshake, or
/// asks for an export that it cannot have and expects no refusal.
pub(super) fn shake_hands(
    stream: &mut (impl Read + Write),
    exports: &Exports,
) -> io::Result<Option<Chosen>> {
    let mut hello = MAGIC.to_vec();
    hello.extend((FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
    stream.write_all(&hello)?;
    let flags = number(&take(stream, 4)?);
    if flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
        return Err(wrong("unknown flags"));
    }
    let mut agreed = Agreed { no_zeroes: flags & u32::from(NO_ZEROES) != 0, ..Agreed::default() };
    for _ in 0..OPTIONS_MAX {
        let header = take(stream, 16)?;
        let (option, len) = (number(&header[8..]), number(&header[12..]));
        if header[..8] != MAGIC[8..] || len > OPTION_MAX {
            return Err(wrong("no option"));
        }
        let data = take(stream, len as usize)?;
        if let EXPORT_NAME = option {
            // The protocol has no way to refuse this option but to disconnect.
            let name = String::from_utf8_lossy(&data);
            let Some(export) = find(exports, &name) else { return Ok(None) };
            let mut answer = describe(&export).to_vec();
            if !agreed.no_zeroes {
                answer.extend([0; 124]);
            }
            stream.write_all(&answer)?;
            return Ok(Some(agreed.choose(export)));
        }
        let mut answer = Answer { option, bytes: Vec::new() };
        let goes_on = agreed.answer(&mut answer, &data, exports);
        stream.write_all(&answer.bytes)?;
        match goes_on {
            Next::Option => {}
            Next::Export(export) => return Ok(Some(agreed.choose(export))),
            Next::End => return Ok(None),
        }
    }
    Err(wrong("too many options"))
}

/// The step after an option.
enum Next {
    Option,
    Export(Export),
    End,
}

impl Agreed {
    fn choose(&self, export: Export) -> Chosen {
        let has_context = self.context.as_deref() == Some(export.device.name());
        Chosen { has_context, structured: self.structured, export }
    }

    fn answer(&mut self, answer: &mut Answer, data: &[u8], exports: &Exports) -> Next {
        match answer.option {
            ABORT => {
                answer.part(ACK, &[]);
                return Next::End;
            }
            LIST if data.is_empty() => {
                for name in exports.read().keys() {
                    answer.part(SERVER, &with_len(name));
                }
                answer.part(ACK, &[]);
            }
            STRUCTURED if data.is_empty() => {
                self.structured = true;
                answer.part(ACK, &[]);
            }
            INFO_ONLY | GO => {
                let Some((name, wanted)) = information(data) else {
                    answer.part(INVALID, b"the option is incomplete");
                    return Next::Option;
                };
                let Some(export) = find(exports, &name) else {
                    answer.part(
                        UNKNOWN,
                        b"there is no such export, or the client has no right to it",
                    );
                    return Next::Option;
                };
                answer.inform(&export, &wanted);
                if answer.option == GO {
                    return Next::Export(export);
                }
            }
            SET_META_CONTEXT if !self.structured => {
                answer.part(INVALID, b"ask for structured replies first");
            }
            LIST_META_CONTEXT | SET_META_CONTEXT => {
                let Some((name, queries)) = contexts(data) else {
                    answer.part(INVALID, b"the option is incomplete");
                    return Next::Option;
                };
                let Some(export) = find(exports, &name) else {
                    answer.part(
                        UNKNOWN,
                        b"there is no such export, or the client has no right to it",
                    );
                    return Next::Option;
                };
                let sets = answer.option == SET_META_CONTEXT;
                let lists_all = !sets && queries.is_empty();
                let matches = |query: &String| query == ALLOCATION || (!sets && query == "base:");
                let is_wanted = lists_all || queries.iter().any(matches);
                if sets {
                    self.context = is_wanted.then(|| export.device.name().to_owned());
                }
                if is_wanted {
                    let mut context = CONTEXT.to_be_bytes().to_vec();
                    context.extend(ALLOCATION.as_bytes());
                    answer.part(META_CONTEXT, &context);
                }
                answer.part(ACK, &[]);
            }
            LIST | STRUCTURED => answer.part(INVALID, b"the option has no data"),
            _ => answer.part(UNSUPPORTED, b"there is no such option"),
        }
        Next::Option
    }
}

/// The replies to an option, which go out together.
struct Answer {
    option: u32,
    bytes: Vec<u8>,
}

impl Answer {
    fn part(&mut self, kind: u32, data: &[u8]) {
        self.bytes.extend(OPTION_REPLY.to_be_bytes());
        self.bytes.extend(self.option.to_be_bytes());
        self.bytes.extend(kind.to_be_bytes());
        self.bytes.extend((data.len() as u32).to_be_bytes());
        self.bytes.extend(data);
    }

    fn inform(&mut self, export: &Export, wanted: &[u16]) {
        let mut info = INFO_EXPORT.to_be_bytes().to_vec();
        info.extend(describe(export));
        self.part(INFO, &info);
        if wanted.contains(&INFO_NAME) {
            let mut info = INFO_NAME.to_be_bytes().to_vec();
            info.extend(export.device.name().as_bytes());
            self.part(INFO, &info);
        }
        if wanted.contains(&INFO_BLOCK_SIZE) {
            let mut info = INFO_BLOCK_SIZE.to_be_bytes().to_vec();
            for bytes in [1, 4096, PAYLOAD_MAX] {
                info.extend(bytes.to_be_bytes());
            }
            self.part(INFO, &info);
        }
        self.part(ACK, &[]);
    }
}

/// Returns the size and the flags of an export.
fn describe(export: &Export) -> [u8; 10] {
    let rights =
        if export.writes { flag::TRIM | flag::WRITE_ZEROES | flag::FUA } else { flag::READ_ONLY };
    let flags = flag::HAS_FLAGS | flag::FLUSH | flag::DF | flag::MULTI_CONN | rights;
    let mut bytes = [0; 10];
    bytes[..8].copy_from_slice(&export.device.image().size().to_be_bytes());
    bytes[8..].copy_from_slice(&flags.to_be_bytes());
    bytes
}

/// Returns the export called `name`, or the only one if `name` is empty.
fn find(exports: &Exports, name: &str) -> Option<Export> {
    let exports = exports.read();
    let only = || exports.values().next().filter(|_| name.is_empty() && exports.len() == 1);
    exports.get(name).or_else(only).cloned()
}

/// Returns the name and the kinds of information in [`INFO_ONLY`] and [`GO`].
fn information(data: &[u8]) -> Option<(String, Vec<u16>)> {
    let (name, rest) = text(data)?;
    let (count, rest) = rest.split_first_chunk::<2>()?;
    let (kinds, left) = rest.as_chunks::<2>();
    let is_whole = kinds.len() == usize::from(u16::from_be_bytes(*count)) && left.is_empty();
    is_whole.then(|| (name, kinds.iter().map(|kind| u16::from_be_bytes(*kind)).collect()))
}

/// Returns the name and the queries in [`LIST_META_CONTEXT`] and [`SET_META_CONTEXT`].
fn contexts(data: &[u8]) -> Option<(String, Vec<String>)> {
    let (name, rest) = text(data)?;
    let (count, mut rest) = rest.split_first_chunk::<4>()?;
    let mut queries = Vec::new();
    for _ in 0..u32::from_be_bytes(*count) {
        let (query, behind) = text(rest)?;
        queries.push(query);
        rest = behind;
    }
    rest.is_empty().then_some((name, queries))
}

/// Splits off a text that is preceded by its length.
fn text(data: &[u8]) -> Option<(String, &[u8])> {
    let (len, rest) = data.split_first_chunk::<4>()?;
    let (text, rest) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
    Some((String::from_utf8_lossy(text).into_owned(), rest))
}

fn with_len(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().expect("four bytes"))
}
