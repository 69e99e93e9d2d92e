//! Tests with images that name other files: which of these are opened, and which are not if that is
//! forbidden.

use std::path::Path;

use crate::support::*;
use ring3_block::{Backing, BackingName, Format, Image, OpenOptions};

/// Makes images that name other files, in `directory`. Returns the name and the format of each image, and the
/// name in it.
fn images(directory: &Path) -> Vec<(&'static str, Format, String)> {
    let path = |name: &str| directory.join(name);
    std::fs::write(path("base"), vec![5; 1 << 20]).unwrap();
    qemu_img(&["create", "-q", "-f", "vpc", "-o", "force_size=on", text(&path("base.vhd")), "1M"]);
    qemu_img(&["create", "-q", "-f", "vmdk", text(&path("base.vmdk")), "1M"]);
    let on = |name: &str, format: Format, base: &str, of: &str| {
        let mut new = options(format, 1 << 20, &[]);
        new.backing = Some(BackingName { name: base.to_owned(), format: Some(of.to_owned()) });
        make(&path(name), &new);
    };
    on("qcow2", Format::Qcow2, "base", "raw");
    on("qcow", Format::Qcow, "base", "raw");
    on("cow", Format::Cow, "base", "raw");
    on("vhd", Format::Vpc, "base.vhd", "vpc");
    on("server", Format::Qcow2, "nbd://127.0.0.1:1/disk", "raw");
    qemu_img(&[
        "create",
        "-q",
        "-f",
        "vmdk",
        "-b",
        text(&path("base.vmdk")),
        "-F",
        "vmdk",
        text(&path("vmdk")),
    ]);
    std::fs::write(
        path("flat.vmdk"),
        "# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\ncreateType=\"monolithicFlat\"\n\
         RW 2048 FLAT \"base\" 0\n",
    )
    .unwrap();
    let names = |name, format, named: &str| (name, format, named.to_owned());
    vec![
        names("qcow2", Format::Qcow2, "base"),
        names("qcow", Format::Qcow, "base"),
        names("cow", Format::Cow, "base"),
        names("vhd", Format::Vpc, "base.vhd"),
        names("server", Format::Qcow2, "nbd://127.0.0.1:1/disk"),
        names("vmdk", Format::Vmdk, "base.vmdk"),
        names("flat.vmdk", Format::Vmdk, "base"),
    ]
}

#[test]
fn nothing_that_an_image_names_is_opened_where_that_is_forbidden() {
    let directory = tempfile::tempdir().unwrap();
    for (name, format, named) in images(directory.path()) {
        let path = directory.path().join(name);
        for (format, writes) in [(Some(format), false), (Some(format), true), (None, false)] {
            let no_external_files = true;
            let options =
                OpenOptions { format, writes, no_external_files, ..OpenOptions::default() };
            let error = Image::open(&path, &options).unwrap_err().to_string();
            assert!(error.contains(&named) && error.contains("--no-external-files"), "{error}");
        }
        if name != "server" {
            open(&path, format, false);
        }
    }
}

#[test]
fn files_that_the_user_names_are_opened_and_those_that_they_name_are_not() {
    let directory = tempfile::tempdir().unwrap();
    images(directory.path());
    let path = directory.path().join("qcow2");
    let on = |name: &str, format: &str| OpenOptions {
        no_external_files: true,
        backing: Backing::Other(Some(BackingName {
            name: name.to_owned(),
            format: Some(format.to_owned()),
        })),
        ..OpenOptions::default()
    };
    Image::open(&path, &on("base", "raw")).unwrap();
    let error = Image::open(&path, &on("qcow", "qcow")).unwrap_err().to_string();
    assert!(error.contains("--no-external-files"), "{error}");
    let alone = OpenOptions { backing: Backing::Ignore, ..on("base", "raw") };
    Image::open(&path, &alone).unwrap();
}

#[test]
fn a_guest_cannot_make_a_raw_image_name_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let raw = directory.path().join("disk");
    std::fs::write(&raw, vec![0; 1 << 20]).unwrap();
    let secret = directory.path().join("secret");
    std::fs::write(&secret, vec![7; 1 << 20]).unwrap();
    let mut new = options(Format::Qcow2, 1 << 20, &[]);
    new.backing =
        Some(BackingName { name: text(&secret).to_owned(), format: Some("raw".to_owned()) });
    make(&directory.path().join("evil"), &new);
    let evil = std::fs::read(directory.path().join("evil")).unwrap();
    // If the format was found to be raw, the header cannot be written.
    let probed = OpenOptions { writes: true, ..OpenOptions::default() };
    let image = Image::open(&raw, &probed).unwrap();
    for (at, part) in (0..).step_by(512).zip(evil.chunks(512)) {
        assert_eq!(image.write_at(part, at).is_err(), at == 0, "{at}");
    }
    drop(image);
    // If the format is given as raw, the header can be written, and the disk stays the same as long as the
    // format is given.
    let image = open(&raw, Format::Raw, true);
    image.write_at(&evil, 0).unwrap();
    drop(image);
    let mut start = [0; 4];
    open(&raw, Format::Raw, false).read_at(&mut start, 0).unwrap();
    assert_eq!(&start, b"QFI\xfb");
    let no_external_files = OpenOptions { no_external_files: true, ..OpenOptions::default() };
    assert!(Image::open(&raw, &no_external_files).unwrap_err().to_string().contains("secret"));
}
