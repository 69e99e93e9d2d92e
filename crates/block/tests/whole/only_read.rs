//! Tests of formats that are only read: images that qemu-img has made have the contents that were given to
//! it.

use std::path::Path;
use std::sync::OnceLock;

use crate::support::*;
use ring3_block::{Error, Fault, Format, Image, OpenOptions, Secret};

/// The formats with the arguments for `-o`, in the form that [`of_qemu`] expects.
const KINDS: [(&str, Format); 15] = [
    ("vhdx", Format::Vhdx),
    ("vhdx subformat=fixed", Format::Vhdx),
    ("vhdx block_size=1M", Format::Vhdx),
    ("vhdx block_size=256M", Format::Vhdx),
    ("parallels", Format::Parallels),
    ("parallels cluster_size=64k", Format::Parallels),
    ("luks", Format::Luks),
    ("luks cipher-alg=aes-128,cipher-mode=cbc,ivgen-alg=plain,hash-alg=ripemd160", Format::Luks),
    ("luks cipher-alg=aes-192,cipher-mode=xts,ivgen-alg=plain64,hash-alg=sha1", Format::Luks),
    (
        "luks cipher-alg=aes-256,cipher-mode=cbc,ivgen-alg=essiv,ivgen-hash-alg=sha256,hash-alg=sha224",
        Format::Luks,
    ),
    ("luks cipher-alg=aes-128,cipher-mode=xts,hash-alg=sha512", Format::Luks),
    ("luks hash-alg=sha384", Format::Luks),
    ("qcow2 encrypt.format=luks,extended_l2=on,cluster_size=16k", Format::Qcow2),
    ("qcow2 encrypt.format=aes,cluster_size=512", Format::Qcow2),
    ("qcow encrypt.format=aes", Format::Qcow),
];

fn with_password(format: Option<Format>) -> OpenOptions {
    OpenOptions { format, secret: Some(Secret::new(PASSWORD)), ..OpenOptions::default() }
}

/// Returns data with zeros in the middle and at the end.
fn contents() -> Vec<u8> {
    [pattern(0, 1_500_160, 7), vec![0; 3 << 20], pattern(9, 300_032, 8), vec![0; 700_416]].concat()
}

/// Puts an image of this kind, with [`contents`], at `path`. qemu-img makes it once for all tests, because it
/// computes for two seconds to measure how fast it derives the key of an encrypted image.
fn put_image(path: &Path, kind: &str) {
    static MADE: [OnceLock<Vec<u8>>; KINDS.len()] = [const { OnceLock::new() }; KINDS.len()];
    let index = KINDS.iter().position(|(name, _)| *name == kind).expect("a kind of the table");
    let made = MADE[index].get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        of_qemu(&path, kind, &contents());
        std::fs::read(path).unwrap()
    });
    std::fs::write(path, made).unwrap();
}

#[test]
fn images_of_qemu_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    let contents = contents();
    for (kind, format) in KINDS {
        put_image(&path, kind);
        for given in [Some(format), None] {
            let image = Image::open(&path, &with_password(given)).unwrap();
            assert_eq!(image.format(), format);
            let size = image.size() as usize;
            // A fixed VHDX disk has whole MiB, and so perhaps more bytes.
            assert!(size >= contents.len(), "{kind}: {size}");
            let bytes = read_all(&image);
            assert!(bytes[..contents.len()] == contents, "{kind}");
            assert!(bytes[contents.len()..].iter().all(|byte| *byte == 0), "{kind}");
            for (offset, len) in [
                (0, 1),
                (511, 2),
                (700, 70_001),
                (1_500_000, 400),
                (65_535, 65_538),
                (4_645_900, 9),
            ] {
                let mut part = vec![0; len];
                image.read_at(&mut part, offset as u64).unwrap();
                assert!(part == contents[offset..offset + len], "{kind} at {offset}");
            }
            let details = image.details();
            assert_eq!(
                details.is_encrypted,
                kind.contains("luks") || kind.contains("aes"),
                "{kind}"
            );
            let report = image.check(ring3_block::Repair::Nothing);
            assert!(report.is_err() || report.unwrap().is_sound(), "{kind}");
        }
    }
}

#[test]
fn read_only_formats_are_not_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    for (kind, format) in KINDS.into_iter().filter(|(kind, _)| !kind.contains("alg")) {
        put_image(&path, kind);
        let before = std::fs::read(&path).unwrap();
        for given in [Some(format), None] {
            let options = OpenOptions { writes: true, ..with_password(given) };
            let error = Image::open(&path, &options).unwrap_err();
            let is_so = matches!(error, Error::In { fault: Fault::OnlyRead(_), .. });
            assert!(is_so && error.to_string().contains("cannot be written"), "{kind}: {error}");
        }
        assert!(std::fs::read(&path).unwrap() == before, "{kind}");
    }
}

#[test]
fn nothing_is_read_without_the_password() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    for (kind, format) in
        KINDS.into_iter().filter(|(kind, _)| kind.contains("aes-128") || kind.contains("encrypt"))
    {
        put_image(&path, kind);
        let format = Some(format);
        let error = Image::open(&path, &OpenOptions { format, ..OpenOptions::default() });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("Parameter 'key-secret' is required for cipher"), "{kind}: {error}");
        let wrong = OpenOptions { secret: Some(Secret::new(b"wrong")), ..with_password(format) };
        let opened = Image::open(&path, &wrong);
        if kind.contains("format=aes") {
            // The image cannot tell that the password is wrong.
            let mut bytes = vec![0; 4096];
            opened.unwrap().read_at(&mut bytes, 0).unwrap();
            assert!(bytes != contents()[..4096], "{kind}");
        } else {
            let error = opened.unwrap_err().to_string();
            assert!(error.contains("Invalid password, cannot unlock any keyslot"), "{error}");
        }
        let telling = OpenOptions { format, is_for_telling: true, ..OpenOptions::default() };
        let image = Image::open(&path, &telling).unwrap();
        assert!(image.details().is_encrypted && image.size() >= 1 << 20);
        assert!(image.read_at(&mut [0; 512], 0).is_err());
        assert!(!format!("{:?}", with_password(None)).contains("correct"));
    }
}

#[test]
fn a_second_password_opens_it_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    put_image(&path, "luks");
    let secret = |id: &str, data: &str| format!("secret,id={id},data={data}");
    qemu_img(&[
        "amend",
        "--object",
        &secret("old", std::str::from_utf8(PASSWORD).unwrap()),
        "--object",
        &secret("new", "second"),
        "-o",
        "state=active,new-secret=new,iter-time=100",
        "--image-opts",
        &format!("driver=luks,key-secret=old,file.filename={}", text(&path)),
    ]);
    for password in [PASSWORD, b"second"] {
        let options = OpenOptions { secret: Some(Secret::new(password)), ..with_password(None) };
        let image = Image::open(&path, &options).unwrap();
        assert!(read_all(&image) == contents());
    }
}

#[test]
fn an_encrypted_image_can_be_a_backing_file() {
    let directory = tempfile::tempdir().unwrap();
    let (path, above) = (directory.path().join("image"), directory.path().join("above"));
    put_image(&path, "qcow2 encrypt.format=luks,extended_l2=on,cluster_size=16k");
    let mut new = options(Format::Qcow2, contents().len() as u64, &[]);
    new.backing = Some(backing(&path, "qcow2"));
    make(&above, &new);
    let image = Image::open(&above, &with_password(None)).unwrap();
    assert!(read_all(&image) == contents());
}

#[test]
fn a_header_that_needs_endless_computation_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    put_image(&path, "luks");
    let good = std::fs::read(&path).unwrap();
    let refused = |at: usize, value: u32| {
        let mut bytes = good.clone();
        bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
        std::fs::write(&path, bytes).unwrap();
        Image::open(&path, &with_password(Some(Format::Luks))).unwrap_err().to_string()
    };
    // The iterations of the digest and of the first slot, the number of stripes, the length of the key, and
    // the offsets of the stripes and of the disk.
    for (at, value) in [
        (164, u32::MAX),
        (164, 0),
        (212, u32::MAX),
        (212, 0),
        (252, u32::MAX),
        (252, 1),
        (108, 0),
        (108, 1 << 30),
        (248, u32::MAX),
        (248, 0),
        (104, u32::MAX),
    ] {
        let error = refused(at, value);
        assert!(error.contains("damaged"), "{at}: {error}");
    }
}

/// Returns the 64-bit little-endian number at `at`.
fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Puts the checksum of `bytes` at their byte 4, where all structures of VHDX have it.
fn seal(bytes: &mut [u8]) {
    bytes[4..8].fill(0);
    let checksum = crc32c::crc32c(bytes);
    bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
}

/// Changes that are only in the log are seen, and the file does not change.
#[test]
fn the_log_of_a_vhdx_image_is_applied_in_memory() {
    const SEQUENCE: u64 = 0x1_0000_0007;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    of_qemu(&path, "vhdx block_size=1M", &contents());
    let mut bytes = std::fs::read(&path).unwrap();
    let header = [65536, 131072].into_iter().max_by_key(|at| le64(&bytes, at + 8)).unwrap();
    let log = le64(&bytes, header + 72) as usize;
    let bat = (0..8).map(|index| 196_608 + 16 + index * 32).find(|at| bytes[*at] == 0x66).unwrap();
    let table = le64(&bytes, bat + 16) as usize;
    // The first page of the table of blocks moves into the log, which also fills the next page with zeros.
    let page = bytes[table..table + 4096].to_vec();
    bytes[table..table + 4096].fill(0);
    bytes[table + 4096..table + 8192].fill(0xee);
    let guid = [0x5a; 16];
    let file = (bytes.len() as u64).to_le_bytes();
    let (mut entry, mut data) = (vec![0; 4096], vec![0; 4096]);
    let mut put = |at: usize, part: &[u8]| entry[at..at + part.len()].copy_from_slice(part);
    put(0, b"loge");
    put(8, &8192_u32.to_le_bytes());
    put(16, &SEQUENCE.to_le_bytes());
    put(24, &2_u32.to_le_bytes());
    put(32, &guid);
    put(48, &file);
    put(56, &file);
    put(64, b"desc");
    put(68, &page[4092..]);
    put(72, &page[..8]);
    put(80, &(table as u64).to_le_bytes());
    put(88, &SEQUENCE.to_le_bytes());
    put(96, b"zero");
    put(104, &4096_u64.to_le_bytes());
    put(112, &(table as u64 + 4096).to_le_bytes());
    put(120, &SEQUENCE.to_le_bytes());
    data[..4].copy_from_slice(b"data");
    data[4..8].copy_from_slice(&((SEQUENCE >> 32) as u32).to_le_bytes());
    data[8..4092].copy_from_slice(&page[8..4092]);
    data[4092..].copy_from_slice(&(SEQUENCE as u32).to_le_bytes());
    entry.extend(data);
    seal(&mut entry);
    bytes[log..log + entry.len()].copy_from_slice(&entry);
    bytes[header + 48..header + 64].copy_from_slice(&guid);
    seal(&mut bytes[header..header + 4096]);
    std::fs::write(&path, &bytes).unwrap();

    let image = Image::open(&path, &with_password(Some(Format::Vhdx))).unwrap();
    assert!(read_all(&image)[..contents().len()] == contents());
    assert!(image.details().dirty);
    drop(image);
    assert!(std::fs::read(&path).unwrap() == bytes, "the file is as it was");
    // QEMU applies the log to the file, and then reads the same contents.
    let copy = directory.path().join("copy");
    qemu_img(&["check", "-q", "-r", "all", "-f", "vhdx", text(&path)]);
    qemu_img(&["convert", "-f", "vhdx", "-O", "raw", text(&path), text(&copy)]);
    assert!(std::fs::read(&copy).unwrap()[..contents().len()] == contents());
    // An invalid entry is ignored, so the table is empty.
    bytes[log + 100] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let image = Image::open(&path, &with_password(Some(Format::Vhdx))).unwrap();
    assert!(read_all(&image).iter().all(|byte| *byte == 0));
}

/// There are two kinds of Parallels images, and qemu-img only makes the newer one.
#[test]
fn older_parallels_images_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    let contents = contents();
    of_qemu(&path, "parallels cluster_size=64k", &contents);
    let mut bytes = std::fs::read(&path).unwrap();
    if bytes.starts_with(b"WithouFreSpacExt") {
        // Entries of this kind count blocks, and those of the older kind count sectors.
        bytes[..16].copy_from_slice(b"WithoutFreeSpace");
        let count = u32::from_le_bytes(bytes[32..36].try_into().unwrap()) as usize;
        for entry in bytes[64..64 + count * 4].chunks_exact_mut(4) {
            let block = u32::from_le_bytes(entry.try_into().unwrap());
            entry.copy_from_slice(&(block * 128).to_le_bytes());
        }
        // The bits above the 32 bits of the size have no meaning.
        bytes[40..44].fill(0xff);
        std::fs::write(&path, &bytes).unwrap();
    }
    let copy: &Path = &directory.path().join("copy");
    qemu_img(&["convert", "-f", "parallels", "-O", "raw", text(&path), text(copy)]);
    let image = Image::open(&path, &OpenOptions::default()).unwrap();
    assert_eq!(image.format(), Format::Parallels);
    assert!(read_all(&image) == std::fs::read(copy).unwrap());
    assert!(read_all(&image)[..contents.len()] == contents);
}
