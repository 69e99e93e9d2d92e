//! Tern's file system and its commands for files: ext2 with blocks of all sizes, disks that report errors,
//! archives.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::frames::Noise;
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
for command in ls 'ls -l' find du 'cp -r' 'tar cf /tar'; do
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
        [("ls", 1), ("ls -l", 1), ("find", 1), ("du", 1), ("cp -r", 1), ("tar cf /tar", 2)]
    {
        let name = command.split(' ').next().unwrap();
        let wanted = format!("{command}: {status} {name}: /mnt/many: Input or output error\r\n");
        assert!(shown.contains(&wanted), "{wanted}: {shown}");
    }
}

/// Executes GNU tar in `directory`; members belong to root, and come in the order of their names.
fn gnu_tar(directory: &Path, arguments: &[&str]) -> Vec<u8> {
    let mut tar = Command::new("tar");
    tar.args(["--owner=root:0", "--group=root:0", "--sort=name"]).args(arguments);
    output(tar.current_dir(directory).env("TZ", "UTC").env("LC_ALL", "C"))
}

/// Makes files of many kinds in `tree`.
fn make_tree(tree: &Path) {
    fs::create_dir_all(tree.join("folder/inner")).unwrap();
    fs::create_dir(tree.join("empty")).unwrap();
    fs::write(tree.join("nothing"), "").unwrap();
    fs::write(tree.join("folder/text"), "one line\n").unwrap();
    fs::write(tree.join("folder/inner/numbers"), Noise::new(1).bytes(70_000)).unwrap();
    // Of 512 and 513 bytes: the last block is full, or has one byte.
    fs::write(tree.join("full"), [7; 512]).unwrap();
    fs::write(tree.join("more"), [8; 513]).unwrap();
    let deep =
        tree.join("a-folder-with-a-name-of-some-length/and-another-one-within-it-that-is-as-long");
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("and-a-file-so-that-its-name-needs-both-fields"), "deep\n").unwrap();
    output(Command::new("chmod").arg("750").arg(tree.join("folder/text")));
    output(Command::new("touch").args(["-d", "2001-02-03 04:05:06 UTC"]).arg(tree.join("more")));
    fs::hard_link(tree.join("full"), tree.join("second-name")).unwrap();
}

/// What other kinds of files there are, which archives of the plain format cannot hold or hold with other
/// times.
fn add_to_tree(tree: &Path) {
    symlink("folder/text", tree.join("link")).unwrap();
    symlink("../../nowhere", tree.join("lost")).unwrap();
    let long = "a-long-name-".repeat(20);
    fs::write(tree.join(&long), "long\n").unwrap();
    fs::create_dir(tree.join(format!("{long}-folder"))).unwrap();
    fs::write(tree.join(format!("{long}-folder/{long}")), "longer\n").unwrap();
    output(Command::new("mkfifo").arg(tree.join("pipe")));
}

const ARCHIVES: &str = r"
cd /mnt && mkdir gnu pax ustar || exit 1
tar xf gnu.tar -C gnu && tar xzf pax.tar.gz -C pax && tar xf ustar.tar -C ustar || exit 1
tar tvf gnu.tar >list && tar tvzf pax.tar.gz >list-pax && tar tf gnu.tar full/folder >part || exit 1
cd ustar && tar cf ../own.tar plain && cat ../own.tar | tar tv >../list-own || exit 1
cd .. && gunzip -k random.gz && gunzip text.gz && zcat short.gz both.gz >several || exit 1
gunzip -c gnu.tar
echo status $?
ls -l gnu/full/pipe
";

/// Tern extracts what GNU tar and gzip have made, makes the same archives, and lists them in the same way.
#[test]
fn tar_and_gunzip_of_tern_agree_with_those_of_gnu() {
    if !has_tern() {
        return;
    }
    let directory = Directory::new();
    let root = directory.path("root");
    let trees = directory.path("trees");
    fs::create_dir(&root).unwrap();
    make_tree(&trees.join("plain"));
    make_tree(&trees.join("full"));
    add_to_tree(&trees.join("full"));
    let at = |name: &str| root.join(name).to_str().unwrap().to_owned();
    gnu_tar(&trees, &["--format=ustar", "-cf", &at("ustar.tar"), "plain"]);
    gnu_tar(&trees, &["--format=gnu", "-cf", &at("gnu.tar"), "full"]);
    gnu_tar(&trees, &["--format=pax", "-czf", &at("pax.tar.gz"), "full"]);
    // Data that is stored, that has fixed codes and that has codes of its own; two members in one file.
    let random = Noise::new(2).bytes(100_000);
    let text = "the same words again and again, and some others\n".repeat(5000);
    for (name, level, bytes) in [
        ("random", "-1", random.as_slice()),
        ("text", "-9", text.as_bytes()),
        ("short", "-6", b"ab"),
    ] {
        fs::write(root.join(name), bytes).unwrap();
        output(Command::new("gzip").args([level, &at(name)]));
    }
    let mut both = fs::read(root.join("text.gz")).unwrap();
    both.extend(fs::read(root.join("short.gz")).unwrap());
    fs::write(root.join("both.gz"), both).unwrap();
    fs::write(root.join("script"), ARCHIVES).unwrap();
    let disk = make_disk(&directory, 1024, &root);
    let Some(shown) = tern(SCRIPT, &["--hda", disk.to_str().unwrap()]) else { return };
    let end = "gunzip: gnu.tar: not in gzip format\r\nstatus 1\r\nprw-r--r-- ";
    assert!(shown.contains(end), "{shown}");
    check_disk(&disk);

    let copy = directory.path("copy");
    fs::create_dir(&copy).unwrap();
    output(
        system_program("debugfs").args(["-R", &format!("rdump / {}", copy.display())]).arg(&disk),
    );
    for (ours, theirs) in [("gnu/full", "full"), ("pax/full", "full"), ("ustar/plain", "plain")] {
        let (ours, theirs) = (copy.join(ours), trees.join(theirs));
        output(
            Command::new("diff")
                .args(["-r", "--no-dereference", "-x", "pipe"])
                .args([&ours, &theirs]),
        );
        let look = |tree: &Path| {
            let mut find = Command::new("find");
            find.arg(".").args(["-type", "f,d", "-printf", "%P %M %Ts\\n"]);
            let mut lines: Vec<_> = String::from_utf8(output(find.current_dir(tree)))
                .unwrap()
                .lines()
                .map(str::to_owned)
                .collect();
            lines.sort();
            lines
        };
        assert_eq!(look(&ours), look(&theirs));
    }
    let read = |name: &str| fs::read(copy.join(name)).unwrap();
    let theirs = gnu_tar(&trees, &["-tvf", &at("gnu.tar")]);
    assert_eq!(String::from_utf8(read("list")).unwrap(), String::from_utf8(theirs).unwrap());
    assert_eq!(read("list-pax"), gnu_tar(&trees, &["-tvzf", &at("pax.tar.gz")]));
    assert_eq!(read("part"), gnu_tar(&trees, &["-tf", &at("gnu.tar"), "full/folder"]));
    assert_eq!(read("list-own"), gnu_tar(&trees, &["-tvf", &at("ustar.tar")]));
    assert!(read("own.tar") == fs::read(root.join("ustar.tar")).unwrap(), "the archives differ");
    assert!(
        read("random") == random && read("random.gz") == fs::read(root.join("random.gz")).unwrap()
    );
    assert!(read("text") == text.as_bytes() && !copy.join("text.gz").exists());
    assert!(read("several") == ["ab", &text, "ab"].concat().as_bytes());
}

const HOSTILE: &str = r"
mkdir -p /mnt/in/side /mnt/noisy && cd /mnt/in/side || exit 1
tar xf ../../evil.tar
echo status $?
cd /mnt
for file in noise/*.tar; do
    tar xf $file -C noisy 2>/dev/null
    [ $? -le 2 ] || echo bad $file
done
for file in noise/*.gz; do
    gunzip $file 2>/dev/null
    [ $? -le 1 ] || echo bad $file
    [ -f $file ] && [ -f ${file%.gz} ] && echo half $file
done
ls / /tmp | grep escaped || echo nothing has escaped
";

/// Names that go up, names from the root, symbolic links on the way, hard links to what is outside: nothing
/// leaves the directory, and tar says so. Damaged files of both kinds end with an error, too, and with
/// nothing half made.
#[test]
fn hostile_archives_stay_in_their_directory() {
    if !has_tern() {
        return;
    }
    let directory = Directory::new();
    let root = directory.path("root");
    let work = directory.path("work");
    fs::create_dir_all(root.join("noise")).unwrap();
    fs::create_dir(&work).unwrap();
    for name in ["file", "secret"] {
        fs::write(work.join(name), "hostile\n").unwrap();
    }
    fs::hard_link(work.join("secret"), work.join("taken")).unwrap();
    symlink("/tmp", work.join("link")).unwrap();
    symlink("..", work.join("up")).unwrap();
    let archive = root.join("evil.tar").to_str().unwrap().to_owned();
    gnu_tar(&work, &["-cPf", &archive, "link", "up"]);
    for name in
        ["../escaped", "/tmp/escaped", "a/../../escaped", "link/escaped", "up/escaped", "/good"]
    {
        gnu_tar(&work, &["-rPf", &archive, &format!("--transform=s,^file$,{name},"), "file"]);
    }
    let hard = "--transform=flags=h;s,^secret$,../evil.tar,";
    gnu_tar(&work, &["-rPf", &archive, hard, "secret", "taken"]);

    let fine = fs::read(&archive).unwrap();
    let plain = Noise::new(3).bytes(3000);
    fs::write(work.join("plain"), [plain, b"many words, many words\n".repeat(300)].concat())
        .unwrap();
    output(Command::new("gzip").arg(work.join("plain")));
    let packed = fs::read(work.join("plain.gz")).unwrap();
    let mut noise = Noise::new(4);
    for number in 0..60 {
        for (bytes, suffix) in [(&fine, "tar"), (&packed, "gz")] {
            let mut bytes = bytes.clone();
            if number % 3 == 0 {
                bytes.truncate(noise.below(bytes.len()));
            }
            // The first bytes say what it is.
            for _ in 0..=noise.below(4) {
                if let Some(last) = bytes.len().checked_sub(11) {
                    bytes[10 + noise.below(last + 1)] ^= 1 << noise.below(8);
                }
            }
            fs::write(root.join(format!("noise/{number}.{suffix}")), bytes).unwrap();
        }
    }
    fs::write(root.join("script"), HOSTILE).unwrap();
    let disk = make_disk(&directory, 1024, &root);
    let Some(shown) = tern(SCRIPT, &["--hda", disk.to_str().unwrap()]) else { return };
    let shown = shown.replace("\r\n", "\n");
    check_disk(&disk);
    for (name, reason) in [
        ("../escaped", "its name leads out of the directory; it is left out"),
        ("a/../../escaped", "its name leads out of the directory; it is left out"),
        ("link/escaped", "it would go through a symbolic link; it is left out"),
        ("up/escaped", "it would go through a symbolic link; it is left out"),
        ("taken", "it is a link to what is not inside; it is left out"),
    ] {
        assert!(shown.contains(&format!("tar: {name}: {reason}\n")), "{name}: {shown}");
    }
    assert!(shown.contains("status 2\n") && shown.contains("nothing has escaped\n"), "{shown}");
    assert!(!shown.contains("bad noise") && !shown.contains("half noise"), "{shown}");
    // "/tmp/escaped" and "/good" are below the directory.
    let list = |path: &str| {
        let mut debugfs = system_program("debugfs");
        String::from_utf8(output(debugfs.args(["-R", &format!("ls -p {path}")]).arg(&disk)))
            .unwrap()
    };
    assert!(list("/in/side/tmp").contains("/escaped/") && list("/in/side").contains("/good/"));
    for outside in ["/", "/in"] {
        assert!(!list(outside).contains("/escaped/"), "{outside}");
    }
}
