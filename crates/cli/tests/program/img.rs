//! `ring3 img`, compared with qemu-img.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::images::Place;

/// Returns data, zeros and data that can be compressed.
fn contents(len: usize, seed: u8) -> Vec<u8> {
    let piece = |index: usize, at: usize| match index % 3 {
        0 => 0,
        1 => seed,
        _ => (at as u8).wrapping_mul(37) ^ (at >> 8) as u8 ^ seed,
    };
    (0..len).map(|at| piece(at / 70_000, at)).collect()
}

#[test]
fn images_are_converted_back_and_forth() {
    let place = Place::new();
    let bytes = contents(5_000_192, 9);
    place.write("raw", &bytes);
    for (line, target) in [
        ("convert -O qcow2 raw a", "qcow2"),
        ("convert -c -O qcow2 raw a", "qcow2"),
        ("convert -c -O qcow2 -o compression_type=zstd,cluster_size=4k raw a", "qcow2"),
        ("convert -S 0 -O qcow2 -o compat=0.10 raw a", "qcow2"),
        ("convert -f raw -O raw raw a", "raw"),
    ] {
        place.img(line);
        assert_eq!(place.json("info --output json a")["format"], target);
        place.qemu(&format!("compare -f {target} -F raw a raw"));
        place.img("convert a b");
        assert!(std::fs::read(place.path("b")).unwrap() == bytes, "{line}");
        place.img(&format!("compare -s -f {target} a raw"));
    }
    // Zeros take no room.
    let map = place.json("map --output json b");
    assert!(map.as_array().unwrap().iter().any(|range| range["zero"] == true), "{map}");
    assert_eq!(place.files(), ["a", "b", "raw"]);
}

#[test]
fn an_existing_image_becomes_equal_to_the_source() {
    let place = Place::new();
    let bytes = contents(9_000_448, 5);
    place.write("raw", &bytes);
    for threads in ["", "-W ", "-W -m 3 "] {
        place.img("create -q -f qcow2 a 12M");
        place.qemu("convert -n -f raw -O qcow2 raw a");
        let mut other = bytes.clone();
        other[3_000_000..3_100_000].fill(0);
        other[8_999_999] ^= 1;
        place.write("other", &other);
        place.img(&format!("convert -n {threads}-f raw -O qcow2 other a"));
        place.qemu("compare -f qcow2 -F raw a other");
        place.img(&format!("convert {threads}-f raw -O qcow2 raw b"));
        place.qemu("compare -f qcow2 -F raw b raw");
        place.qemu("check -f qcow2 a");
    }
    place.img("create -q -f qcow2 small 1M");
    assert!(place.img_status("convert -n -O qcow2 raw small", 1).contains("but needs"));
    assert!(place.img_status("convert -n -O qcow2 raw c", 1).contains("No such file"));
}

#[test]
fn a_snapshot_is_converted() {
    let place = Place::new();
    place.write("before", &contents(1 << 20, 3));
    place.write("after", &contents(1 << 20, 4));
    place.img("convert -f raw -O qcow2 before image");
    place.img("snapshot -c first image");
    place.img("convert -n -f raw -O qcow2 after image");
    for which in ["first", "1", "snapshot.name=first"] {
        place.img(&format!("convert -l {which} image a"));
        place.qemu("compare -f raw -F raw a before");
    }
    place.img("convert image a");
    place.qemu("compare -f raw -F raw a after");
    assert!(place.img_status("convert -l second image b", 1).contains("no snapshot"));
    assert!(place.img_status("convert -l first before b", 1).contains("cannot have snapshots"));
}

#[test]
fn messages_are_those_of_qemu() {
    let place = Place::new();
    place.write("base", &contents(1 << 20, 3));
    place.img("create -q -f qcow2 -b base -F raw image 3M");
    place.img("snapshot -c first image");
    let (ours, theirs) =
        (place.json("info --output json image"), place.qemu("info --output json image"));
    let theirs: Value = serde_json::from_str(&theirs).unwrap();
    for field in [
        "format",
        "virtual-size",
        "cluster-size",
        "backing-filename",
        "backing-filename-format",
        "dirty-flag",
    ] {
        assert_eq!(ours[field], theirs[field], "{field}");
    }
    for field in
        ["compat", "refcount-bits", "lazy-refcounts", "compression-type", "corrupt", "extended-l2"]
    {
        let path = ["format-specific", "data", field];
        let of =
            |value: &Value| path.iter().fold(value.clone(), |value, name| value[*name].clone());
        assert_eq!(of(&ours), of(&theirs), "{field}");
    }
    assert_eq!(ours["snapshots"][0]["name"], theirs["snapshots"][0]["name"]);
    let text = place.img("info image");
    for line in [
        "file format: qcow2",
        "virtual size: 3 MiB (3145728 bytes)",
        "backing file: base",
        "Snapshot list:",
        "    compat: 1.1",
    ] {
        assert!(text.lines().any(|said| said == line), "{line}: {text}");
    }
    let map = place.json("map --output json image");
    assert_eq!((&map[0]["depth"], &map[0]["start"]), (&1.into(), &0.into()));
}

#[test]
fn a_convert_that_fails_leaves_the_old_file() {
    let place = Place::new();
    place.write("old", b"old");
    place.write("bad", b"QFI\xfb\0\0\0\x03 and nothing else");
    place.img_status("convert -O qcow2 bad old", 1);
    place.img_status("convert -O qcow2 -o nonsense=1 -f raw bad old", 1);
    let says = place.img_status("convert -O qcow2 -o cluster_size=3 -f raw bad old", 1);
    assert!(says.contains("the cluster size must be a power of 2"), "{says}");
    assert_eq!(std::fs::read(place.path("old")).unwrap(), b"old");
    assert_eq!(place.files(), ["bad", "old"]);
    let says = place.img_status("create -f nonsense x 1M", 2);
    assert!(
        says.contains("there is no image format \"nonsense\"; choose from raw, qcow2"),
        "{says}"
    );
    assert!(place.img_status("create x", 1).contains("give the size of the disk"));
    assert!(place.img_status("info missing", 1).contains("'missing': No such file or directory"));
}

#[test]
fn images_are_compared() {
    let place = Place::new();
    let mut bytes = contents(1 << 20, 1);
    place.write("a", &bytes);
    place.write("longer", &[bytes.clone(), vec![0; 4096]].concat());
    bytes[700_000] ^= 1;
    place.write("b", &bytes);
    place.img("compare a longer");
    place.img_status("compare -s a longer", 1);
    assert!(place.img_status("compare a b", 1).contains("Content mismatch at offset 699904!"));
    place.img_status("compare a missing", 2);
}

#[test]
fn damage_sets_the_exit_status() {
    let place = Place::new();
    place.write("raw", &contents(1 << 20, 1));
    place.img("convert -O qcow2 raw image");
    assert!(place.img("check image").starts_with("No errors were found on the image."));
    let whole = std::fs::read(place.path("image")).unwrap();
    let table = u64::from_be_bytes(whole[48..56].try_into().unwrap()) as usize;
    let block = u64::from_be_bytes(whole[table..table + 8].try_into().unwrap()) as usize;
    for (count, status) in [(9_u16, 2), (0, 2)] {
        let mut bytes = whole.clone();
        // A cluster of data.
        bytes[block + 12..block + 14].copy_from_slice(&count.to_be_bytes());
        place.write("image", &bytes);
        place.img_status("check image", status);
        let report = place.json("check -r all --output json image");
        assert_eq!(report["corruptions"], report["corruptions-fixed"], "{report}");
        place.img("check -q image");
        place.qemu("check image");
    }
    let mut bytes = whole;
    bytes.extend(vec![0; 65536]);
    let last = bytes.len() / 65536 - 1;
    bytes[block + last * 2 + 1] = 1;
    place.write("image", &bytes);
    place.img_status("check image", 3);
    place.img("check -r leaks image");
    place.img("check image");
    place.img_status("check raw", 63);
}

#[test]
fn sizes_change() {
    let place = Place::new();
    for format in ["raw", "qcow2"] {
        place.img(&format!("create -f {format} image 1M"));
        place.img("resize image +1M");
        assert_eq!(place.json("info --output json image")["virtual-size"], 2 << 20);
        assert!(place.img_status("resize image 512k", 1).contains("--shrink"));
        place.img("resize --shrink image -1536k");
        assert_eq!(place.json("info --output json image")["virtual-size"], 512 << 10);
        place.img_status("resize image -4M", 1);
    }
}

#[test]
fn chains_are_made_rebased_and_committed() {
    let place = Place::new();
    let (one, other) = (contents(1 << 20, 1), contents(700_160, 2));
    let mut top = one.clone();
    top[300_000..301_000].fill(0xcc);
    place.write("one", &one);
    place.write("other", &other);
    place.write("top", &top);
    // The image contains only differences from its backing file.
    place.img("convert -O qcow2 -B one -F raw top image");
    let info = place.json("info --output json image");
    assert!(info["actual-size"].as_u64().unwrap() < 600 << 10, "{info}");
    place.img("compare image top");
    place.img("rebase -b other -F raw image");
    place.img("compare image top");
    place.qemu("compare image top");
    place.img("rebase -b '' image");
    place.img("compare image top");
    assert_eq!(place.json("info --output json image")["backing-filename"], Value::Null);
    // And into the file below it.
    place.img("convert -O qcow2 one base");
    place.img("create -f qcow2 -b base above");
    place.img("rebase -b file:base -F qcow2 image");
    let full = &place.json("info --output json image")["full-backing-filename"];
    assert_eq!(full, "base", "as it is opened");
    place.img("commit image");
    place.img("compare base top");
    place.img("compare image top");
    place.qemu("check image");
    place.qemu("check base");
    place.img("compare above top");
    assert_eq!(place.json("info --backing-chain --output json above").as_array().unwrap().len(), 2);
    // Only the name changes.
    place.img("rebase -u -b elsewhere -F raw image");
    assert!(place.img_status("compare image top", 2).contains("elsewhere"));
    assert_eq!(place.json("info --output json image")["backing-filename"], "elsewhere");
}

#[test]
fn files_that_images_name_are_logged_or_refused() {
    let place = Place::new();
    place.write("base", &contents(1 << 20, 1));
    place.img("create -q -f qcow2 -b base -F raw image");
    place.write("flat", b"# Disk DescriptorFile\nversion=1\nRW 2048 FLAT \"base\" 0\n");
    for (image, what) in [("image", "a backing file"), ("flat", "a file with a part of its data")] {
        let copy = Command::new(env!("CARGO_BIN_EXE_ring3"))
            .args(["img", "convert", image, "copy"])
            .env("RING3_LOG", "info")
            .current_dir(place.directory())
            .output()
            .unwrap();
        assert!(copy.status.success());
        let log = String::from_utf8_lossy(&copy.stderr).into_owned();
        assert!(log.contains(&format!("{image} names {what}, \"base\"")), "{log}");
        for line in ["convert --no-external-files IMAGE copy", "--no-external-files map IMAGE"] {
            let said = place.img_status(&line.replace("IMAGE", image), 1);
            assert!(said.contains(&format!("it names {what}, \"base\"")), "{said}");
        }
    }
    place.img("info --no-external-files image");
    place.img_status("info --no-external-files --backing-chain image", 1);
    place.img_status("commit --no-external-files image", 1);
    place.img_status("rebase --no-external-files -b '' image", 1);
    place.img("rebase --no-external-files -u -b '' image");
}

#[test]
fn snapshots_are_made_applied_and_deleted() {
    let place = Place::new();
    let bytes = contents(1 << 20, 1);
    place.write("raw", &bytes);
    place.img("convert -O qcow2 raw image");
    place.img("snapshot -c before image");
    assert!(place.img("snapshot -l image").contains("before"));
    assert!(place.run("qemu-img", "bench -w -c 20 -d 1 -f qcow2 image").status.success());
    place.img_status("compare image raw", 1);
    place.img("snapshot -a before image");
    place.img("compare image raw");
    place.qemu("check image");
    place.img("snapshot -d before image");
    assert_eq!(place.img("snapshot image"), "");
    place.img("check image");
    place.qemu("check image");
    place.img_status("snapshot -d before image", 1);
}

#[test]
fn an_image_in_use_is_not_touched() {
    let place = Place::new();
    place.img("create -f qcow2 image 1M");
    let held = std::fs::File::open(place.path("image")).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    assert!(place.img_status("check image", 1).contains("-U"));
    place.img("info -U image");
    place.img_status("create -f qcow2 image 2M", 1);
    drop(held);
    assert!(Path::new(&place.path("image")).exists());
}
