//! Command lines of qemu-img from documentation, run by `ring3 img` and by the real qemu-img side by side.
//!
//! Each line is a case with its expected effect. Both run on copies of the same images and must end with the
//! same status, unless a row says otherwise.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// The expected effect of a line, beside its status.
enum Does {
    /// Both print the same words, in any order on a line.
    Words,
    /// Both print JSON in which these fields, named by their paths, are the same.
    Json(&'static [&'static str]),
    /// The disk in this file is the same afterwards, and qemu-img finds no error in ring3's.
    Disk(&'static str),
    /// ring3 prints this.
    Says(&'static str),
    /// Only the status counts.
    Ends,
}
use Does::{Disk, Ends, Json, Says, Words};

/// A line, the status of both, and its effect.
type Row = (&'static str, i32, Does);

const SECRET: &str = "--object secret,id=s,data=swordfish";

const ROWS: &[Row] = &[
    // create
    ("create disk.img 1G", 0, Words),
    ("create -f raw new.raw 10M", 0, Words),
    ("create -f qcow2 new.qcow2 20G", 0, Words),
    ("create -q -f qcow2 new.qcow2 20G", 0, Words),
    ("create -f qcow2 new.qcow2 1.5T", 0, Words),
    ("create -f qcow2 -o preallocation=metadata new.qcow2 8M", 0, Words),
    ("create -f qcow2 -o cluster_size=2M new.qcow2 1G", 0, Words),
    ("create -f qcow2 -o compat=0.10 new.qcow2 1G", 0, Words),
    ("create -f qcow2 -o lazy_refcounts=on,refcount_bits=8 new.qcow2 1G", 0, Words),
    ("create -f qcow2 -o compression_type=zstd new.qcow2 1G", 0, Words),
    ("create -f qcow2 -b base.qcow2 -F qcow2 new.qcow2", 0, Words),
    ("create -f qcow2 -F raw -b disk.raw new.qcow2 8G", 0, Words),
    ("create -o backing_file=base.qcow2,backing_fmt=qcow2 -f qcow2 new.qcow2", 0, Words),
    ("create -f qcow2 -u -b elsewhere.qcow2 -F qcow2 new.qcow2 1G", 0, Words),
    ("create -f qcow new.qcow 10M", 0, Words),
    ("create -f vpc -o subformat=fixed new.vhd 10M", 0, Ends),
    ("create -f vdi new.vdi 10M", 0, Ends),
    ("create -f vmdk new.vmdk 10M", 0, Ends),
    ("create -f qcow2 new.qcow2", 1, Says("Image creation needs a size parameter")),
    ("create -f qcow2 -b missing.qcow2 -F qcow2 new.qcow2", 1, Says("No such file or directory")),
    ("create -f qcow2 -o cluster_size=3 new.qcow2 1G", 1, Says("power of 2")),
    ("create -f qcow2 -o help", 0, Says("cluster_size=<size>")),
    ("create -f bochs -o nonsense=1 new.img 1G", 1, Ends),
    ("create", 1, Says("Expecting image file name")),
    ("--version", 0, Ends),
    ("--help", 0, Says("convert")),
    // info
    ("info disk.qcow2", 0, Says("virtual size: 8 MiB (8388608 bytes)")),
    ("info -f raw disk.qcow2", 0, Says("file format: raw")),
    (
        "info --output=json disk.qcow2",
        0,
        Json(&["/format", "/virtual-size", "/cluster-size", "/format-specific"]),
    ),
    (
        "info --output json overlay.qcow2",
        0,
        Json(&["/backing-filename", "/full-backing-filename", "/backing-filename-format"]),
    ),
    (
        "info --backing-chain --output=json overlay.qcow2",
        0,
        Json(&["/0/filename", "/1/filename", "/1/format"]),
    ),
    ("info -U --output json disk.vmdk", 0, Json(&["/format", "/virtual-size", "/cluster-size"])),
    ("info --output json disk.vhdx", 0, Json(&["/format", "/virtual-size", "/cluster-size"])),
    ("info --output json disk.hdd", 0, Json(&["/format", "/virtual-size"])),
    (
        "info --output json disk.luks",
        0,
        Json(&[
            "/format",
            "/virtual-size",
            "/encrypted",
            "/format-specific/data/uuid",
            "/format-specific/data/cipher-alg",
        ]),
    ),
    (
        "info --output json secret.qcow2",
        0,
        Json(&[
            "/encrypted",
            "/format-specific/data/encrypt/format",
            "/format-specific/data/encrypt/payload-offset",
        ]),
    ),
    (
        "info --output json --image-opts driver=qcow2,file.filename=disk.qcow2",
        0,
        Json(&["/format", "/virtual-size"]),
    ),
    (
        "info --output json 'json:{\"driver\":\"qcow2\",\"file\":{\"driver\":\"file\",\"filename\":\"disk.qcow2\"}}'",
        0,
        Json(&["/format", "/virtual-size"]),
    ),
    (
        "info missing.qcow2",
        1,
        Says(
            "Could not open 'missing.qcow2': Could not open 'missing.qcow2': No such file or directory",
        ),
    ),
    ("info -f qcow2 disk.raw", 1, Says("Image is not in qcow2 format")),
    // convert
    ("convert -f raw -O qcow2 disk.raw new.qcow2", 0, Disk("new.qcow2")),
    ("convert -O qcow2 disk.vmdk new.qcow2", 0, Disk("new.qcow2")),
    ("convert -f vmdk -O raw disk.vmdk new.raw", 0, Disk("new.raw")),
    ("convert -f vdi -O qcow2 disk.vdi new.qcow2", 0, Disk("new.qcow2")),
    ("convert -f vpc -O raw disk.vhd new.raw", 0, Disk("new.raw")),
    ("convert -f vhdx -O qcow2 disk.vhdx new.qcow2", 0, Disk("new.qcow2")),
    ("convert -f parallels -O qcow2 disk.hdd new.qcow2", 0, Disk("new.qcow2")),
    ("convert -c -f raw -O qcow2 disk.raw new.qcow2", 0, Disk("new.qcow2")),
    ("convert -c -O qcow2 -o compression_type=zstd disk.raw new.qcow2", 0, Disk("new.qcow2")),
    ("convert -p -f raw -O qcow2 disk.raw new.qcow2", 0, Says("(100.00/100%)")),
    ("convert -q -p -f raw -O qcow2 disk.raw new.qcow2", 0, Words),
    ("convert disk.qcow2 new.raw", 0, Disk("new.raw")),
    ("convert -O qcow2 -S 0 disk.raw new.qcow2", 0, Disk("new.qcow2")),
    ("convert -t none -T none -O qcow2 disk.qcow2 new.qcow2", 0, Disk("new.qcow2")),
    ("convert -W -m 16 -O qcow2 disk.qcow2 new.qcow2", 0, Disk("new.qcow2")),
    ("convert -n -O qcow2 disk.raw target.qcow2", 0, Disk("target.qcow2")),
    ("convert -n --target-is-zero -O qcow2 disk.raw target.qcow2", 0, Disk("target.qcow2")),
    ("convert -O qcow2 -B base.qcow2 -F qcow2 overlay.qcow2 new.qcow2", 0, Disk("new.qcow2")),
    (
        "convert -O qcow2 -o backing_file=base.qcow2,backing_fmt=qcow2 overlay.qcow2 new.qcow2",
        0,
        Disk("new.qcow2"),
    ),
    ("convert -l first -O raw snapshots.qcow2 new.raw", 0, Disk("new.raw")),
    ("convert -l snapshot.name=first -O raw snapshots.qcow2 new.raw", 0, Disk("new.raw")),
    ("convert -O raw disk.raw disk.qcow2 new.raw", 0, Disk("new.raw")),
    ("convert -r 1G -U -O qcow2 disk.raw new.qcow2", 0, Disk("new.qcow2")),
    (
        "convert -O raw --image-opts driver=qcow2,file.filename=disk.qcow2 new.raw",
        0,
        Disk("new.raw"),
    ),
    (
        "convert -O raw --image-opts driver=raw,offset=1M,size=2M,file.filename=disk.raw new.raw",
        0,
        Disk("new.raw"),
    ),
    (
        "convert SECRET -O raw --image-opts driver=luks,key-secret=s,file.filename=disk.luks new.raw",
        0,
        Disk("new.raw"),
    ),
    (
        "convert SECRET --image-opts -O qcow2 driver=qcow2,encrypt.key-secret=s,file.filename=secret.qcow2 new.qcow2",
        0,
        Disk("new.qcow2"),
    ),
    (
        "convert -O raw --image-opts driver=luks,key-secret=s,file.filename=disk.luks new.raw",
        1,
        Says("No secret with id 's'"),
    ),
    ("convert -O qcow2 disk.raw", 1, Says("Must specify image file name")),
    ("convert -n -O qcow2 disk.raw missing.qcow2", 1, Says("No such file or directory")),
    // compare
    ("compare disk.raw disk.qcow2", 0, Words),
    ("compare -f raw -F qcow2 disk.raw disk.qcow2", 0, Words),
    ("compare -s disk.raw disk.raw", 0, Words),
    ("compare disk.raw longer.raw", 0, Words),
    ("compare -s disk.raw longer.raw", 1, Words),
    ("compare -q disk.raw other.raw", 1, Words),
    ("compare disk.raw other.raw", 1, Words),
    ("compare disk.raw missing.raw", 2, Says("No such file or directory")),
    // check
    ("check disk.qcow2", 0, Says("No errors were found on the image.")),
    (
        "check -f qcow2 --output=json disk.qcow2",
        0,
        Json(&[
            "/check-errors",
            "/total-clusters",
            "/allocated-clusters",
            "/format",
            "/image-end-offset",
        ]),
    ),
    ("check -q disk.qcow2", 0, Words),
    ("check leaky.qcow2", 3, Says("1 leaked clusters were found on the image.")),
    (
        "check -r leaks leaky.qcow2",
        0,
        Says("The following inconsistencies were found and repaired:"),
    ),
    ("check -r all leaky.qcow2", 0, Ends),
    ("check broken.qcow2", 2, Says("errors were found on the image.")),
    ("check -r all broken.qcow2", 0, Disk("broken.qcow2")),
    ("check disk.raw", 63, Says("does not support checks")),
    // map
    ("map disk.qcow2", 0, Says("Offset          Length          Mapped to       File")),
    ("map --output=json overlay.qcow2", 0, Json(&["/0/start", "/0/depth", "/0/data", "/0/zero"])),
    (
        "map -f qcow2 --start-offset 1M --max-length 2M --output json disk.qcow2",
        0,
        Json(&["/0/start"]),
    ),
    // resize
    ("resize disk.qcow2 16M", 0, Words),
    ("resize disk.qcow2 +1G", 0, Disk("disk.qcow2")),
    ("resize -f raw disk.raw +10M", 0, Disk("disk.raw")),
    ("resize -q -f raw --preallocation=falloc disk.raw +1M", 0, Disk("disk.raw")),
    ("resize -f raw --shrink disk.raw 4M", 0, Disk("disk.raw")),
    ("resize --shrink disk.qcow2 -2M", 0, Disk("disk.qcow2")),
    ("resize disk.qcow2 4M", 1, Says("Use the --shrink option to perform a shrink operation.")),
    // snapshot
    ("snapshot -c before disk.qcow2", 0, Words),
    ("snapshot -l snapshots.qcow2", 0, Says("first")),
    ("snapshot -a first snapshots.qcow2", 0, Disk("snapshots.qcow2")),
    ("snapshot -d first snapshots.qcow2", 0, Disk("snapshots.qcow2")),
    ("snapshot -d missing snapshots.qcow2", 1, Ends),
    // rebase and commit
    ("rebase -b other.qcow2 -F qcow2 overlay.qcow2", 0, Disk("overlay.qcow2")),
    ("rebase -u -b base.qcow2 -F qcow2 overlay.qcow2", 0, Disk("overlay.qcow2")),
    ("rebase -p -b '' overlay.qcow2", 0, Disk("overlay.qcow2")),
    ("rebase -u -b '' overlay.qcow2", 0, Disk("overlay.qcow2")),
    ("commit overlay.qcow2", 0, Words),
    ("commit -q overlay.qcow2", 0, Disk("base.qcow2")),
    ("commit -d overlay.qcow2", 0, Disk("base.qcow2")),
    ("commit -b base.qcow2 top.qcow2", 0, Disk("base.qcow2")),
    ("commit -t writeback -b overlay.qcow2 top.qcow2", 0, Disk("overlay.qcow2")),
    ("commit disk.qcow2", 1, Says("Image does not have a backing file")),
    // measure
    ("measure -O raw --size 1G", 0, Words),
    ("measure -O qcow2 --size 10G", 0, Words),
    ("measure -O qcow2 disk.raw", 0, Words),
    ("measure -O qcow2 disk.vmdk", 0, Words),
    ("measure --output=json -O qcow2 disk.raw", 0, Json(&["/required", "/fully-allocated"])),
    ("measure -O qcow2 -o cluster_size=4k,refcount_bits=64 --size 3T", 0, Words),
    ("measure -O qcow2 -o preallocation=full --size 1G", 0, Words),
    ("measure -O raw disk.qcow2", 0, Words),
    ("measure -O vdi --size 1G", 1, Says("does not support size measurement")),
    // dd and bench
    ("dd if=disk.raw of=new.raw", 0, Disk("new.raw")),
    ("dd -f qcow2 -O raw bs=1M count=3 if=disk.qcow2 of=new.raw", 0, Disk("new.raw")),
    ("dd -f qcow2 -O raw bs=1M skip=5 if=disk.qcow2 of=new.raw", 0, Disk("new.raw")),
    // Versions of QEMU differ in the number of these blocks.
    ("dd -f raw -O raw bs=1M count=3 skip=1 if=disk.raw of=new.raw", 0, Ends),
    ("dd -O qcow2 bs=64k if=disk.raw of=new.qcow2", 0, Disk("new.qcow2")),
    ("dd bs=100 count=7 if=disk.raw of=new.raw", 0, Disk("new.raw")),
    ("dd if=disk.raw", 1, Says("Must specify both input and output file")),
    (
        "bench -c 100 -d 4 -f qcow2 disk.qcow2",
        0,
        Says("Sending 100 read requests, 4096 bytes each, 4 in parallel"),
    ),
    ("bench -w -c 10 -s 64k --pattern 7 -f raw disk.raw", 0, Disk("disk.raw")),
    ("bench -q -c 10 -t none -n disk.raw", 0, Ends),
];

/// Lines whose status differs in ring3, with both statuses and a part of ring3's output.
const OTHERS: &[(&str, i32, i32, &str)] = &[
    // A wrong command line is status 2 everywhere in ring3.
    ("create -f nonsense new.img 1G", 2, 1, "there is no image format"),
    ("info", 2, 1, "required arguments"),
    ("compare disk.raw", 2, 1, "required arguments"),
    ("resize disk.raw", 2, 1, "required arguments"),
    ("check -r foo disk.qcow2", 2, 1, "invalid value 'foo'"),
    // Not implemented, and named as such.
    ("amend -f qcow2 -o compat=1.1 disk.qcow2", 1, 0, "amend is not implemented"),
    ("bitmap --add disk.qcow2 b0", 1, 0, "bitmap is not implemented"),
    // The format of a backing file is detected and kept.
    ("create -f qcow2 -b base.qcow2 new.qcow2", 0, 1, "backing_fmt=qcow2"),
    // Encrypted images can only be read, and images of some other formats cannot be created.
    ("create SECRET -f luks -o key-secret=s,iter-time=100 new.luks 10M", 1, 0, "can only be read"),
    ("convert -O vhdx disk.raw new.vhdx", 1, 0, "can only be read"),
    ("resize disk.vhdx +1M", 1, 1, "VHDX images cannot be written"),
    // ring3 compares contents rather than allocation.
    ("compare -s disk.raw disk.qcow2", 0, 1, "Images are identical."),
];

/// Splits a line into words as a shell does, with single quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in line.replace("SECRET", SECRET).split('\'').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

fn run(program: &[&str], line: &[String], directory: &Path) -> Output {
    let (program, first) = program.split_first().unwrap();
    Command::new(program).args(first).args(line).current_dir(directory).output().unwrap()
}

fn qemu(line: &str, directory: &Path) {
    let output = run(&["qemu-img"], &words(line), directory);
    let said = String::from_utf8_lossy(&output.stderr);
    // qemu-img can fail to measure how fast it derives keys; see `.cargo/config.toml`.
    if said.contains("accurate CPU usage") {
        return qemu(line, directory);
    }
    assert!(output.status.success(), "qemu-img {line}: {said}");
}

/// Makes the images that lines name.
fn images(directory: &Path) {
    let path = |name: &str| directory.join(name);
    let piece =
        |at: usize| if at / 300_000 % 3 == 1 { 0 } else { (at / 7) as u8 ^ (at >> 12) as u8 };
    let mut disk: Vec<u8> = (0..8 << 20).map(piece).collect();
    std::fs::write(path("disk.raw"), &disk).unwrap();
    std::fs::write(path("longer.raw"), [disk.clone(), vec![0; 65536]].concat()).unwrap();
    disk[5_000_000] ^= 1;
    std::fs::write(path("other.raw"), &disk).unwrap();
    for (format, name) in [
        ("qcow2", "disk.qcow2"),
        ("qcow2", "base.qcow2"),
        ("qcow2", "target.qcow2"),
        ("vmdk", "disk.vmdk"),
        ("vdi", "disk.vdi"),
        ("vpc", "disk.vhd"),
        ("vhdx", "disk.vhdx"),
        ("parallels", "disk.hdd"),
    ] {
        qemu(&format!("convert -f raw -O {format} disk.raw {name}"), directory);
    }
    qemu("convert -f raw -O qcow2 other.raw other.qcow2", directory);
    qemu("create -q -f qcow2 target.qcow2 8M", directory);
    qemu("create -q -f qcow2 -b base.qcow2 -F qcow2 overlay.qcow2", directory);
    qemu("bench -q -w -c 20 -s 64k -o 1M --pattern 9 -f qcow2 overlay.qcow2", directory);
    qemu("create -q -f qcow2 -b overlay.qcow2 -F qcow2 top.qcow2", directory);
    qemu("bench -q -w -c 3 -s 64k -o 2M --pattern 5 -f qcow2 top.qcow2", directory);
    qemu("convert -f raw -O qcow2 disk.raw snapshots.qcow2", directory);
    qemu("snapshot -c first snapshots.qcow2", directory);
    qemu("bench -q -w -c 9 -s 64k --pattern 3 -f qcow2 snapshots.qcow2", directory);
    let secret = "convert SECRET -f raw -O";
    qemu(&format!("{secret} luks -o key-secret=s,iter-time=10 disk.raw disk.luks"), directory);
    let encrypt = "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10";
    qemu(&format!("{secret} qcow2 -o {encrypt} disk.raw secret.qcow2"), directory);
    let mut bytes = std::fs::read(path("disk.qcow2")).unwrap();
    let number = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let block = number(number(48));
    let end = bytes.len() / 65536;
    // One more cluster that is counted but not used, and one in use that is not counted.
    let mut leaky = bytes.clone();
    leaky.resize((end + 1) * 65536, 0);
    leaky[block + end * 2 + 1] = 1;
    std::fs::write(path("leaky.qcow2"), leaky).unwrap();
    let first = number(number(40)) & 0x00ff_ffff_ffff_fe00;
    let data = number(first) & 0x00ff_ffff_ffff_fe00;
    bytes[block + data / 65536 * 2 + 1] = 0;
    std::fs::write(path("broken.qcow2"), bytes).unwrap();
}

/// Images and those under them, the uppermost first.
const OVERLAYS: [(&str, &str); 2] =
    [("top.qcow2", "overlay.qcow2"), ("overlay.qcow2", "base.qcow2")];

/// Copies the images that `line` names, and those under them, to a new directory.
fn copy(from: &Path, line: &str) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    let mut names = line.to_owned();
    for (above, under) in OVERLAYS {
        if names.contains(above) {
            names.push_str(under);
        }
    }
    for entry in std::fs::read_dir(from).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if names.contains(&name) {
            std::fs::copy(from.join(&name), to.path().join(&name)).unwrap();
        }
    }
    to
}

fn sorted(text: &[u8]) -> Vec<Vec<String>> {
    let text = String::from_utf8_lossy(text).into_owned();
    let line = |line: &str| {
        let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        words.sort();
        words
    };
    text.lines().map(line).collect()
}

/// Returns the difference from the expected effect of a line, if there is any.
fn fault(row: &Row, images: &Path) -> Option<String> {
    let (line, status, does) = row;
    let (ours, theirs) = (copy(images, line), copy(images, line));
    let words = words(line);
    let said = run(&[env!("CARGO_BIN_EXE_ring3"), "img"], &words, ours.path());
    let expected = run(&["qemu-img"], &words, theirs.path());
    let all = String::from_utf8_lossy(&[&said.stdout[..], &said.stderr[..]].concat()).into_owned();
    if said.status.code() != Some(*status) || expected.status.code() != Some(*status) {
        let (one, other) = (said.status, expected.status);
        let theirs = String::from_utf8_lossy(&expected.stderr);
        return Some(format!("ours {one}, qemu-img {other}, to be {status}: {all}; {theirs}"));
    }
    match does {
        Words if sorted(&said.stdout) != sorted(&expected.stdout) => {
            Some(format!("{all} in the place of {}", String::from_utf8_lossy(&expected.stdout)))
        }
        Json(fields) => {
            let parse = |output: &Output| serde_json::from_slice::<Value>(&output.stdout).unwrap();
            let (one, other) = (parse(&said), parse(&expected));
            fields.iter().find_map(|field| {
                let (one, other) = (one.pointer(field), other.pointer(field));
                let same = one == other && one.is_some();
                (!same).then(|| format!("{field} is {one:?} in the place of {other:?}"))
            })
        }
        Disk(name) => {
            let (one, other) = (ours.path().join(name), theirs.path().join(name));
            let (one, other) = (one.to_str().unwrap(), other.to_str().unwrap());
            let format = if name.ends_with("raw") { "raw" } else { "qcow2" };
            let compare = ["compare", "-f", format, "-F", format, one, other];
            let compared = Command::new("qemu-img").args(compare).output().unwrap();
            let mut said = String::from_utf8_lossy(&compared.stdout).into_owned();
            if said.contains("size mismatch") {
                return Some(said);
            }
            if format == "qcow2" {
                let checked = Command::new("qemu-img").args(["check", one]).output().unwrap();
                if checked.status.success() && compared.status.success() {
                    return None;
                }
                said += &String::from_utf8_lossy(&checked.stdout);
            }
            (!compared.status.success()).then_some(said)
        }
        Says(text) if !all.contains(text) => Some(format!("{all} does not say {text:?}")),
        Words | Says(_) | Ends => None,
    }
}

/// One test, because it takes qemu-img two seconds to make each of the encrypted images.
#[test]
fn command_lines_do_the_same_as_in_qemu_or_differ_as_described() {
    let images_are = tempfile::tempdir().unwrap();
    images(images_are.path());
    all_do_the_same(images_are.path());
    others_differ_as_described(images_are.path());
}

fn all_do_the_same(images: &Path) {
    assert!(ROWS.len() >= 60);
    let faults: Vec<String> = ROWS
        .iter()
        .filter_map(|row| fault(row, images).map(|fault| format!("{}\n    {fault}", row.0)))
        .collect();
    assert!(faults.is_empty(), "{} lines:\n{}", faults.len(), faults.join("\n"));
}

fn others_differ_as_described(images: &Path) {
    for (line, ours, theirs, says) in OTHERS {
        let (here, there) = (copy(images, line), copy(images, line));
        let said = run(&[env!("CARGO_BIN_EXE_ring3"), "img"], &words(line), here.path());
        let expected = run(&["qemu-img"], &words(line), there.path());
        let all =
            String::from_utf8_lossy(&[&said.stdout[..], &said.stderr[..]].concat()).into_owned();
        assert_eq!(said.status.code(), Some(*ours), "{line}: {all}");
        let reason = String::from_utf8_lossy(&expected.stderr);
        let is_too_quick = reason.contains("accurate CPU usage");
        assert!(expected.status.code() == Some(*theirs) || is_too_quick, "{line}: {reason}");
        assert!(all.contains(says), "{line}: {all}");
    }
}
