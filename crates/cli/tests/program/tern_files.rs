//! Tern's file system and its commands for files: ext2 with blocks of all sizes, disks that report errors,
//! archives.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::support::{Directory, output, read_ext2, ring3, system_program};
use crate::tern::{has_tern, tern};

/// Makes a disk with an ext2 of blocks of so many bytes, which has the files of `root`.
fn make_disk(directory: &Directory, block_bytes: u32, root: &Path) -> PathBuf {
    let disk = directory.path("disk");
    File::create(&disk).unwrap().set_len(32 << 20).unwrap();
    let mut make = system_program("mke2fs");
    make.args(["-q", "-F", "-t", "ext2", "-b", &block_bytes.to_string(), "-d"]);
    output(make.arg(root).arg(&disk));
    disk
}

fn check_disk(disk: &Path) {
    output(system_program("e2fsck").args(["-f", "-n"]).arg(disk));
}

/// Executes the file `script` of the disk.
const SCRIPT: &str = "mount /dev/hda /mnt && sh /mnt/script";

const WRITES: &str = r"
cd /mnt && mkdir -p a/b many && cp -r /bin a/b/bin || exit 1
for i in $(seq 1 500); do echo $i >many/a-name-of-some-length-$i; done
cp given a/copy && rm -r a/b/bin && cat a/copy a/copy a/copy >large &&
    dd if=given of=holes bs=1024 seek=9000 2>/dev/null && rm many/*[02468] || exit 1
echo $(ls many | wc -l) are left
";

/// Files that are copied, a directory of several blocks, a file with indirect blocks and holes, and most of
/// it removed again: e2fsck finds nothing wrong, and the host reads what is left.
#[test]
fn tern_writes_ext2_with_blocks_of_all_sizes() {
    if !has_tern() {
        return;
    }
    for bytes in [1024, 2048, 4096] {
        let directory = Directory::new();
        let root = directory.path("root");
        fs::create_dir(&root).unwrap();
        let text = "what the host has written\n".repeat(20_000);
        fs::write(root.join("given"), &text).unwrap();
        fs::write(root.join("script"), WRITES).unwrap();
        let disk = make_disk(&directory, bytes, &root);
        let Some(shown) = tern(SCRIPT, &["--hda", disk.to_str().unwrap()]) else { return };
        check_disk(&disk);
        assert!(shown.contains("250 are left\r\n"), "{bytes}: {shown}");
        assert!(read_ext2(&disk, "/a/copy") == text.as_bytes(), "{bytes}");
        assert!(read_ext2(&disk, "/large") == text.repeat(3).as_bytes(), "{bytes}");
        let holes = read_ext2(&disk, "/holes");
        assert!(holes[..9000 * 1024].iter().all(|byte| *byte == 0), "{bytes}");
        assert!(&holes[9000 * 1024..] == text.as_bytes(), "{bytes}");
        assert_eq!(read_ext2(&disk, "/many/a-name-of-some-length-499"), b"499\n");
    }
}

/// The clusters of a qcow2 image are as small as blocks of the file system, so one block can be made
/// unreadable.
const CLUSTER: u64 = 512;

/// Lets the entry of the table for the cluster at `offset` of the disk lead behind the end of the image.
fn damage(image: &Path, offset: u64) {
    let mut bytes = fs::read(image).unwrap();
    let word =
        |bytes: &[u8], at: u64| u64::from_be_bytes(bytes[at as usize..][..8].try_into().unwrap());
    // docs/interop/qcow2.txt in QEMU's source.
    let entries = CLUSTER / 8;
    let first_table = word(&bytes, 40);
    let second = word(&bytes, first_table + offset / CLUSTER / entries * 8) & 0x00ff_ffff_ffff_fe00;
    let at = second + offset / CLUSTER % entries * 8;
    assert!(word(&bytes, at) != 0, "the cluster is there");
    let outside = (1_u64 << 63) | ((bytes.len() as u64 + (1 << 30)) / CLUSTER * CLUSTER);
    bytes[at as usize..][..8].copy_from_slice(&outside.to_be_bytes());
    fs::write(image, bytes).unwrap();
}

const READS: &str = r#"
for command in ls 'ls -l' find du 'cp -r'; do
    to=
    [ "$command" = 'cp -r' ] && to=/copy
    $command /mnt/many $to >/list 2>/said
    echo "$command: $? $(cat /said)"
done
"#;

/// A directory of several blocks, one of which cannot be read: commands say so, and end with another status
/// than 0.
#[test]
fn commands_of_tern_say_that_a_directory_cannot_be_read() {
    if !has_tern() {
        return;
    }
    let directory = Directory::new();
    let root = directory.path("root");
    fs::create_dir_all(root.join("many")).unwrap();
    for number in 0..200 {
        fs::write(root.join(format!("many/a-name-of-some-length-{number}")), "").unwrap();
    }
    fs::write(root.join("script"), READS).unwrap();
    let disk = make_disk(&directory, 1024, &root);
    let block = output(system_program("debugfs").args(["-R", "bmap /many 3"]).arg(&disk));
    let block: u64 = String::from_utf8(block).unwrap().trim().parse().unwrap();
    let image = directory.path("image");
    let mut convert = ring3();
    convert.args(["img", "convert", "-O", "qcow2", "-o", "cluster_size=512"]);
    output(convert.args([&disk, &image]));
    damage(&image, block * 1024);
    let drive = format!("file={},format=qcow2,if=ide", image.display());
    let Some(shown) = tern(SCRIPT, &["--drive", &drive]) else { return };
    for (command, status) in
        [("ls", 1), ("ls -l", 1), ("find", 1), ("du", 1), ("cp -r", 1)]
    {
        let name = command.split(' ').next().unwrap();
        let wanted = format!("{command}: {status} {name}: /mnt/many: Input or output error\r\n");
        assert!(shown.contains(&wanted), "{wanted}: {shown}");
    }
}
