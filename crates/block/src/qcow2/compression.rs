//! Compressed clusters.

use std::io::{self, Read};

use flate2::{Compress, Decompress, FlushCompress, FlushDecompress, Status};
use ruzstd::decoding::StreamingDecoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use super::header::Compression;
use crate::error::{Fault, Result};

/// Upper bound of a zstd window that is accepted: more than the largest clusters need.
const WINDOW_MAX: u64 = 8 << 20;

/// Fills `cluster` from `packed`. Anything may follow the compressed bytes.
pub(super) fn unpack(kind: Compression, packed: &[u8], cluster: &mut [u8]) -> Result<()> {
    let failed =
        |error: String| Fault::damaged(format!("a compressed cluster cannot be read: {error}"));
    match kind {
        Compression::Zlib => {
            let mut inflate = Decompress::new(false);
            let status = inflate.decompress(packed, cluster, FlushDecompress::Finish);
            let filled = inflate.total_out() == cluster.len() as u64;
            match status {
                Ok(Status::Ok | Status::StreamEnd | Status::BufError) if filled => Ok(()),
                Ok(_) => Err(failed("it is too short".to_owned())),
                Err(error) => Err(failed(error.to_string())),
            }
        }
        Compression::Zstd => {
            check_window(packed).map_err(|error| failed(error.to_owned()))?;
            let mut decoder =
                StreamingDecoder::new(packed).map_err(|error| failed(error.to_string()))?;
            decoder.read_exact(cluster).map_err(|error: io::Error| failed(error.to_string()))
        }
    }
}

/// Refuses frames for which the decoder would need too much memory (RFC 8878, 3.1.1.1).
fn check_window(frame: &[u8]) -> Result<(), &'static str> {
    let [_, _, _, _, descriptor, window, ..] = *frame else { return Err("it is too short") };
    // A frame that is a single segment states its length instead of a window.
    let single = descriptor & 0x20 != 0;
    let wanted = if single {
        let len = [1, 2, 4, 8][usize::from(descriptor >> 6)];
        let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
        let field = frame.get(5 + dictionary..5 + dictionary + len).ok_or("it is too short")?;
        field.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    } else {
        1_u64 << (10 + (window >> 3)).min(63)
    };
    if wanted > WINDOW_MAX { Err("it wants too much memory") } else { Ok(()) }
}

/// Returns `cluster` in compressed form, or None if that is not shorter.
pub(super) fn pack(kind: Compression, cluster: &[u8]) -> Option<Vec<u8>> {
    let packed = match kind {
        Compression::Zlib => {
            // This is raw deflate. The specification limits its window to 4 KiB, which this compressor cannot
            // do. But readers unpack a whole cluster at once, so all bytes that they have unpacked serve as
            // the window.
            let mut deflate = Compress::new(flate2::Compression::default(), false);
            let mut packed = vec![0; cluster.len()];
            match deflate.compress(cluster, &mut packed, FlushCompress::Finish) {
                Ok(Status::StreamEnd) => packed.truncate(deflate.total_out() as usize),
                _ => return None,
            }
            packed
        }
        Compression::Zstd => compress_to_vec(cluster, CompressionLevel::Fastest),
    };
    (packed.len() < cluster.len()).then_some(packed)
}
