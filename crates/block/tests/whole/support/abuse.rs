//! Everything that can be done with an image, whatever it contains.

use std::path::Path;

use ring3_block::storage::Memory;
use ring3_block::{Backing, Format, Image, OpenOptions, Repair, Secret, SnapshotAct};

/// Calls all methods of an image. Each step may fail.
pub(crate) fn use_all(bytes: &[u8], format: Format) {
    let name = Path::new("image");
    for writes in [false, true] {
        let storage = Box::new(Memory::new(bytes.to_vec()));
        let options = OpenOptions {
            format: Some(format),
            writes,
            // Files that the image names are the subject of another test.
            no_external_files: true,
            backing: Backing::Ignore,
            secret: Some(Secret::new(b"correct horse")),
            ..OpenOptions::default()
        };
        let Ok(image) = Image::in_storage(storage, name, &options) else { continue };
        let size = image.size();
        let mut buffer = vec![0; 70_000];
        for offset in [0, 1 << 16, size / 2, size.saturating_sub(70_000)] {
            let len = size.saturating_sub(offset).min(70_000) as usize;
            let _ = image.read_at(&mut buffer[..len], offset);
            if len > 0 {
                let _ = image.map(offset, size);
            }
            if writes {
                let _ = image.write_at(&buffer[..len], offset);
                let _ = image.write_zeroes(offset, len as u64 / 2);
                let _ = image.discard(offset, len as u64);
            }
        }
        let _ = image.details();
        let _ = image.check(Repair::Nothing);
        if writes {
            let _ = image.flush();
            let _ = image.check(Repair::Leaks);
            let _ = image.check(Repair::All);
            if let Some(snapshot) = image.snapshots().first() {
                let _ = image.snapshot(&SnapshotAct::Apply(snapshot.id.clone()));
                let _ = image.snapshot(&SnapshotAct::Delete(snapshot.id.clone()));
            }
            let _ = image.resize(size.saturating_add(1 << 20).min(1 << 30));
            let _ = image.make_empty();
        }
    }
}
