//! Room that images take, room that is missing, and data that cannot be read: `ring3 img` compared with
//! qemu-img.

use std::os::unix::fs::MetadataExt;
use std::process::{Command, Output};

use crate::support::images::Place;

/// Bytes of the disks, not a multiple of the bytes that an L2 table describes.
const SIZE: u64 = 10 << 20;

/// Returns the bytes that a file takes on the host.
fn taken(place: &Place, name: &str) -> u64 {
    std::fs::metadata(place.path(name)).unwrap().blocks() * 512
}

/// Both programs run `line`, with `NEW` for the name of the new or changed image, and must end alike. Returns
/// the names of their images.
fn both(place: &Place, line: &str) -> Option<[&'static str; 2]> {
    let ours =
        place.run(env!("CARGO_BIN_EXE_ring3"), &format!("img {}", line.replace("NEW", "ours")));
    let theirs = place.run("qemu-img", &line.replace("NEW", "theirs"));
    let text = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let is_done = theirs.status.success();
    assert_eq!(ours.status.success(), is_done, "{line}: {} {}", text(&ours), text(&theirs));
    if !is_done {
        assert_eq!(
            (ours.status.code(), text(&ours).lines().count()),
            (Some(1), 1),
            "{line}: {}",
            text(&ours)
        );
    }
    is_done.then_some(["ours", "theirs"])
}

#[test]
fn images_take_as_much_space_as_those_of_qemu_img() {
    let data = [vec![7; 3_000_000], vec![0; SIZE as usize - 3_000_000]].concat();
    for format in ["raw", "qcow2"] {
        for mode in ["off", "metadata", "falloc", "full"] {
            for (line, is_grown) in [
                ("create -q -f FORMAT -o preallocation=MODE NEW 10M", false),
                ("convert -f raw -O FORMAT -o preallocation=MODE data NEW", false),
                ("resize -q -f FORMAT --preallocation=MODE NEW 10M", true),
                ("resize -q -f FORMAT --preallocation=MODE NEW +6M", true),
            ] {
                let place = Place::new();
                place.write("data", &data);
                if is_grown {
                    for name in ["ours", "theirs"] {
                        place.qemu(&format!("create -q -f {format} {name} 4M"));
                        let mut write = Command::new("qemu-io");
                        write.args(["-f", format, "-c", "write -P 7 0 3000000", name]);
                        assert!(
                            write.current_dir(place.directory()).output().unwrap().status.success()
                        );
                    }
                }
                let line = line.replace("FORMAT", format).replace("MODE", mode);
                let Some([ours, theirs]) = both(&place, &line) else {
                    assert_eq!((format, mode), ("raw", "metadata"), "{line}");
                    assert_eq!(place.files().contains(&"ours".to_owned()), is_grown, "{line}");
                    continue;
                };
                if line.starts_with("create") {
                    place.write("data", &vec![0; SIZE as usize]);
                }
                place.qemu(&format!("compare -f {format} -F raw {ours} data"));
                if format == "qcow2" {
                    place.qemu(&format!("check -f qcow2 {ours}"));
                }
                // Tables may be in other places, and the file system may round up to its own blocks.
                let (here, there) = (taken(&place, ours), taken(&place, theirs));
                assert!(here.abs_diff(there) < 1 << 20, "{line}: {here} and {there} bytes");
                let needed = SIZE - if is_grown { 4 << 20 } else { 0 };
                assert!(
                    !["falloc", "full"].contains(&mode) || here >= needed,
                    "{line}: {here} bytes"
                );
            }
        }
    }
}

/// Clusters that were freed had contents, which must not return.
#[test]
fn the_new_part_of_a_grown_disk_reads_as_zeros() {
    for mode in ["metadata", "falloc", "full"] {
        let place = Place::new();
        place.qemu("create -q -f qcow2 image 4M");
        let mut write = Command::new("qemu-io");
        write.args(["-d", "unmap", "-f", "qcow2", "-c", "write -P 7 0 4M", "-c", "flush"]);
        write.args(["-c", "discard 1M 3M", "image"]).current_dir(place.directory());
        assert!(write.output().unwrap().status.success());
        place.img(&format!("resize -q -f qcow2 --preallocation={mode} image 8M"));
        place.qemu("check -f qcow2 image");
        let mut read = Command::new("qemu-io");
        read.args(["-f", "qcow2", "-c", "read -P 7 0 1M", "-c", "read -P 0 1M 7M", "image"]);
        let read = read.current_dir(place.directory()).output().unwrap();
        let said = String::from_utf8_lossy(&read.stdout);
        assert!(read.status.success() && !said.contains("failed"), "{mode}: {said}");
    }
}

#[test]
fn preallocation_that_a_format_lacks_is_refused() {
    let place = Place::new();
    place.qemu("create -q -f raw base 4M");
    for (line, says) in [
        ("create -q -f qcow2 -b base -F raw -o preallocation=metadata new", "preallocation=off"),
        ("convert -c -O qcow2 -o preallocation=falloc base new", "Compression and preallocation"),
        ("create -q -f qcow2 -o preallocation=some new 1M", "off|metadata|falloc|full"),
        ("create -q -f raw -o preallocation=some new 1M", "off|falloc|full"),
        ("resize -q -f raw --preallocation=falloc --shrink base 1M", "only be used for growing"),
        ("resize -q -f raw --preallocation=falloc base 4M", "only be used for growing"),
    ] {
        let said = place.img_status(line, 1);
        assert!(said.contains(says), "{line}: {said}");
        assert_eq!(place.files(), ["base"], "{line}");
    }
}

/// Runs `script` in a file system of 6 MiB. Returns None, with a note, if the host permits no namespaces.
fn on_a_small_disk(place: &Place, script: &str) -> Option<Output> {
    let run = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-ec"]);
        let script = format!("mount -t tmpfs -o size=6M tmpfs . && cd \"$PWD\"; {script}");
        command
            .arg(script)
            .arg(env!("CARGO_BIN_EXE_ring3"))
            .current_dir(place.directory())
            .output()
            .unwrap()
    };
    if !run("true").status.success() {
        ring3_skipped::host("users may not mount file systems in namespaces");
        return None;
    }
    Some(run(script))
}

/// There must be one line, status 1, no new file, and no change to existing images.
#[test]
fn a_full_disk_leaves_nothing_half_written() {
    let place = Place::new();
    for line in [
        "img create -q -f raw -o preallocation=falloc new 64M",
        "img create -q -f raw -o preallocation=full new 64M",
        "img create -q -f qcow2 -o preallocation=falloc new 64M",
        "img create -q -f qcow2 -o preallocation=full new 64M",
        "img create -q -f qcow2 -o preallocation=metadata,cluster_size=512 new 1G",
        "img convert -f raw -O qcow2 zero new -S 0",
        "img convert -f raw -O raw -o preallocation=full zero new",
        "img dd -O qcow2 if=data of=new bs=1M",
        "img resize -q -f raw --preallocation=falloc raw 64M",
        "img resize -q -f raw --preallocation=full raw 64M",
        "img resize -q -f qcow2 --preallocation=falloc qcow2 64M",
        "img resize -q -f qcow2 --preallocation=full qcow2 64M",
    ] {
        let script = format!(
            "truncate -s 64M zero; head -c 3M /dev/urandom > data; qemu-img create -q -f raw raw 1M; \
             qemu-img create -q -f qcow2 qcow2 1M; qemu-img create -q -f qcow2 -o cluster_size=512 small 1M; \
             qemu-io -f qcow2 -c 'write -P 7 0 64k' qcow2 >/dev/null; \
             for i in raw qcow2 small; do qemu-img convert -f $i -O raw $i $i.before 2>/dev/null || cp $i $i.before; done; \
             before=$(ls -A); status=0; \"$0\" {line} || status=$?; after=$(ls -A); echo status $status; [ \"$before\" = \"$after\" ]; \
             qemu-img info -f raw raw | grep -q '(1048576 bytes)'; qemu-img info -f qcow2 qcow2 | grep -q '(1048576 bytes)'; \
             [ $(du -sk . | cut -f1) -lt 5000 ]; qemu-img check -q -f qcow2 qcow2; qemu-img check -q -f qcow2 small; \
             qemu-io -f qcow2 -c 'read -P 7 0 64k' -c 'read -P 0 64k 960k' qcow2 | grep -c failed && exit 9; echo well"
        );
        let Some(output) = on_a_small_disk(&place, &script) else { return };
        let [shown, said] =
            [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(shown.contains("status 1") && shown.contains("well"), "{line}: {shown}{said}");
        assert_eq!(said.lines().count(), 1, "{line}: {said}");
        assert!(said.contains("No space left on device"), "{line}: {said}");
    }
}

/// A server of a disk on which some sectors cannot be read: ring3 must make the same copy as qemu-img.
#[test]
fn unreadable_parts_are_salvaged_as_by_qemu_img() {
    let place = Place::new();
    if Command::new("nbdkit").arg("--version").output().is_err() {
        ring3_skipped::package("nbdkit is missing: install the package nbdkit");
        return;
    }
    let data: Vec<u8> = (0..131_072_u32).map(|at| (at / 512 * 7 + at) as u8 | 1).collect();
    place.write("data", &data);
    // Sectors 100 and 101, and the last one.
    let read = format!(
        "pread=s=$(($4 / 512)); e=$((($4 + $3 + 511) / 512)); \
         for b in 100 101 255; do [ $s -le $b ] && [ $e -gt $b ] && {{ echo EIO bad >&2; exit 1; }}; done; \
         dd if={}/data iflag=skip_bytes,count_bytes skip=$4 count=$3 status=none",
        place.directory().display()
    );
    let socket = place.path("socket");
    let mut server = Command::new("nbdkit");
    server
        .args(["-f", "-U"])
        .arg(&socket)
        .args(["eval", "get_size=echo 131072", "thread_model=echo parallel"])
        .arg(read);
    let mut server = server.spawn().expect("nbdkit starts");
    assert!(place.comes(|_| std::os::unix::net::UnixStream::connect(&socket).is_ok()));
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let results = ["", "--salvage ", "--salvage -q "].map(|option| {
        let line = |name: &str| format!("convert {option}-f raw -O raw {uri} {name}");
        let ours = place.run(env!("CARGO_BIN_EXE_ring3"), &format!("img {}", line("ours")));
        (option, ours, place.run("qemu-img", &line("theirs")))
    });
    let _ = server.kill();
    let _ = server.wait();
    let mut expected = data;
    for sector in [100, 101, 255] {
        expected[sector * 512..(sector + 1) * 512].fill(0);
    }
    for (option, ours, theirs) in results {
        let said = String::from_utf8_lossy(&ours.stderr);
        assert_eq!(ours.status.code(), theirs.status.code(), "{option}: {said} {theirs:?}");
        let lines =
            said.lines().filter(|line| line.contains("cannot be read and become zeros")).count();
        let wanted = if option == "--salvage " { 2 } else { 0 };
        assert_eq!(lines, wanted, "{option}: {said}");
        assert_eq!(ours.status.success(), !option.is_empty(), "{option}: {said}");
    }
    for name in ["ours", "theirs"] {
        let bytes = std::fs::read(place.path(name)).unwrap();
        let wrong =
            (0..256).find(|sector| bytes[sector * 512..][..512] != expected[sector * 512..][..512]);
        assert_eq!(wrong, None, "{name}");
    }
}

/// Table entries that lead nowhere: the clusters that they describe become zeros, and the others are kept.
#[test]
fn damaged_tables_are_salvaged() {
    let place = Place::new();
    let data: Vec<u8> = (0..4_194_304_u32).map(|at| (at / 512 * 7 + at) as u8 | 1).collect();
    place.write("data", &data);
    place.qemu("convert -f raw -O qcow2 data image");
    let mut image = std::fs::read(place.path("image")).unwrap();
    let number =
        |bytes: &[u8], at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
    let l1 = number(&image, 40) as usize;
    let l2 = (number(&image, l1) & 0xff_ffff_ffff_fe00) as usize;
    // The entries of clusters 5 and 6 point to places where no cluster begins.
    for entry in [5, 6] {
        image[l2 + entry * 8 + 6] |= 2;
    }
    place.write("image", &image);
    assert!(
        !place.run(env!("CARGO_BIN_EXE_ring3"), "img convert -O raw image new").status.success()
    );
    assert_eq!(place.files(), ["data", "image"]);
    let said = place.img("convert --salvage -f qcow2 -O raw image new");
    assert!(said.contains("131072 bytes at 327680 cannot be read and become zeros"), "{said}");
    let mut expected = data;
    expected[5 << 16..7 << 16].fill(0);
    assert!(std::fs::read(place.path("new")).unwrap() == expected);
}
