//! `-o help`: the options of each format.

use std::fmt::Write as _;

use ring3_block::Format;

/// Returns whether `-o` asks for the list of options.
pub(super) fn is_asked(options: &[String]) -> bool {
    options.iter().flat_map(|text| text.split(',')).any(|option| matches!(option, "help" | "?"))
}

/// Returns the options of a format, and their meanings.
fn options(format: Format) -> &'static [(&'static str, &'static str)] {
    match format {
        Format::Raw => &[("preallocation=<str>", "Room for all data: off, falloc or full")],
        Format::Qcow2 => &[
            ("cluster_size=<size>", "Bytes of a cluster: 512 to 2M, 64k by default"),
            ("compat=<str>", "Version: 1.1 (v3) or 0.10 (v2)"),
            ("compression_type=<str>", "How clusters are compressed: zlib or zstd"),
            (
                "lazy_refcounts=<bool (on/off)>",
                "Reference counts may be out of date until the image is closed",
            ),
            ("preallocation=<str>", "Room for all data: off, metadata, falloc or full"),
            ("refcount_bits=<num>", "Bits of a reference count: 1, 2, 4, 8, 16, 32 or 64"),
        ],
        Format::Vdi => &[("preallocation=<str>", "Room for all data: off or metadata")],
        Format::Vmdk => &[("subformat=<str>", "Kind of image: monolithicSparse")],
        Format::Vpc => &[("subformat=<str>", "Kind of image: dynamic or fixed")],
        Format::Qcow
        | Format::Bochs
        | Format::Cow
        | Format::Vhdx
        | Format::Parallels
        | Format::Luks => &[],
    }
}

/// Returns the list for people.
pub(super) fn text(format: Format) -> String {
    let mut text = "Supported options:\n".to_owned();
    for (option, what) in options(format) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {option:<30} - {what}");
    }
    text
}
