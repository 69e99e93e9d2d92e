use std::collections::BTreeMap;

use elf::abi::PT_LOAD;
use proptest::prelude::*;

use super::*;
use crate::elf_kernel::tests::{contents_at, elf64};

const RAM: u64 = 4 << 20;
const RSDP: u64 = 0xe_0000;

/// Returns a header with these tags: type, flags and words.
fn header(tags: &[(u16, u16, &[u32])]) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    for (kind, flags, words) in tags.iter().chain(&[(0, 0, &[][..])]) {
        bytes.extend(kind.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend((8 + 4 * words.len() as u32).to_le_bytes());
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    let (magic, len) = (0xe852_50d6_u32, bytes.len() as u32);
    let sum = 0u32.wrapping_sub(magic).wrapping_sub(len);
    bytes[..16].copy_from_slice([magic, 0, len, sum].map(u32::to_le_bytes).as_flattened());
    bytes
}

/// Returns a 64-bit ELF file with this header at 2 MiB and `F4` behind it, which starts there.
fn kernel(tags: &[(u16, u16, &[u32])]) -> Vec<u8> {
    let at = contents_at(1);
    let header = header(tags);
    let len = header.len() as u64 + 4;
    let load = (PT_LOAD, [at, 0xffff_8000_0020_0000, 0x20_0000, len, 0x2000]);
    let contents = [&header[..], &[0xf4; 4]].concat();
    elf64(&[load], 0xffff_8000_0020_0000 + len - 4, &contents)
}

/// Returns the bytes of a file that says by tags that it belongs at 2 MiB.
fn addressed(load_addr: u32) -> Vec<u8> {
    let address = [0x20_0010, load_addr, 0x20_0070, 0x20_1000];
    let mut file = vec![0x90; 16];
    file.extend(header(&[(2, 0, &address), (3, 0, &[0x20_0060])]));
    file.resize(0x70, 0xf4);
    file
}

fn started(
    memory: &mut Memory,
    file: &[u8],
    video_memory: Option<u32>,
) -> Result<(Entry, Option<LinearMode>), Multiboot2Error> {
    let modules = [("one 1", &[7; 5000][..]), ("two", &[8])];
    load(
        memory,
        file,
        &Given { modules: &modules, command_line: "quiet", rsdp: RSDP, video_memory },
    )
}

/// Returns the tags of the information at `address`, by their types; of several of a type the last one.
fn tags(memory: &Memory, address: u32) -> BTreeMap<u32, Vec<u8>> {
    let bytes = &memory.contents()[address as usize..];
    let word = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().unwrap());
    let mut tags = BTreeMap::new();
    let mut at = 8;
    while word(at) != 0 {
        let len = word(at + 4) as usize;
        tags.insert(word(at), bytes[at + 8..at + len].to_vec());
        at += len.next_multiple_of(8);
    }
    assert_eq!(word(at + 4), 8);
    assert_eq!(word(0) as usize, at + 8);
    tags
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(*word.first_chunk().unwrap())).collect()
}

#[test]
fn a_64_bit_kernel_is_told_what_there_is() {
    let mut memory = Memory::new(RAM).unwrap();
    memory.load_image(RSDP, b"RSD PTR and more").unwrap();
    let file = kernel(&[(1, 0, &[1, 6, 13, 21]), (6, 0, &[]), (99, 1, &[5])]);
    let (entry, mode) = started(&mut memory, &file, None).unwrap();
    assert_eq!(memory.load::<4>(entry.eip as usize), [0xf4; 4]);
    assert_eq!((entry.information % 8, mode), (0, None));
    let tags = tags(&memory, entry.information);
    assert_eq!(tags.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4, 6, 14, 15]);
    assert_eq!(tags[&1], *b"quiet\0");
    assert_eq!(words(&tags[&3][..8]), [0x20_4000, 0x20_4001]);
    assert_eq!(tags[&3][8..], *b"two\0");
    assert_eq!(words(&tags[&4]), [639, 3072]);
    assert_eq!(words(&tags[&6][..8]), [24, 0]);
    assert_eq!(words(&tags[&6][8 + 3 * 24..]), [0x10_0000, 0, 0x30_0000, 0, 1, 0]);
    assert!(tags[&14].starts_with(b"RSD PTR ") && tags[&15].starts_with(&tags[&14]));
}

#[test]
fn sections_that_no_segment_has_are_loaded() {
    let mut file = kernel(&[]);
    let symbols = file.len() as u64;
    file.extend(b"symbols!");
    let table = file.len() as u64;
    file.extend([0; 64]);
    let mut section = [0; 64];
    section[4] = 2;
    section[24..32].copy_from_slice(&symbols.to_le_bytes());
    section[32..40].copy_from_slice(&8u64.to_le_bytes());
    file.extend(section);
    file[40..48].copy_from_slice(&table.to_le_bytes());
    file[58..64].copy_from_slice(&[64, 0, 2, 0, 1, 0]);
    let mut memory = Memory::new(RAM).unwrap();
    let (entry, _) = started(&mut memory, &file, None).unwrap();
    let sections = &tags(&memory, entry.information)[&9];
    assert_eq!(words(&sections[..12]), [2, 64, 1]);
    let address = words(&sections[12 + 64 + 16..])[0];
    assert_eq!(memory.load::<8>(address as usize), *b"symbols!");
}

#[test]
fn a_header_with_addresses_is_followed() {
    for load_addr in [0x20_0000, u32::MAX] {
        let mut memory = Memory::new(RAM).unwrap();
        let (entry, _) = started(&mut memory, &addressed(load_addr), None).unwrap();
        assert_eq!((entry.eip, memory.load::<2>(0x20_006f)), (0x20_0060, [0xf4, 0]));
        assert_eq!(memory.load::<2>(0x20_0000), [0x90; 2]);
        assert!(is_addressed(&addressed(load_addr)) && !is_addressed(&kernel(&[])));
    }
}

#[test]
fn a_kernel_gets_the_screen_that_it_asks_for() {
    let mut memory = Memory::new(RAM).unwrap();
    let mut screen = |asked: &[u32], video_memory| {
        let file = kernel(&[(4, 0, &[3]), (5, 0, asked)]);
        let (entry, mode) = started(&mut memory, &file, video_memory).unwrap();
        (tags(&memory, entry.information).remove(&8), mode)
    };
    let (tag, mode) = screen(&[800, 600, 32], Some(0xe000_0000));
    let tag = tag.unwrap();
    assert_eq!(words(&tag[..20]), [0xe000_0000, 0, 3200, 800, 600]);
    assert_eq!(tag[20..], [32, 1, 0, 0, 16, 8, 8, 8, 0, 8]);
    assert_eq!(mode.unwrap().pitch(), 3200);
    for no_mode in [[0, 0, 0], [80, 25, 0], [801, 600, 32]] {
        let (tag, mode) = screen(&no_mode, Some(0xe000_0000));
        let tag = tag.unwrap();
        assert_eq!(words(&tag[..20]), [0xb_8000, 0, 160, 80, 25]);
        assert_eq!((&tag[20..], mode), (&[16, 2, 0, 0][..], None));
    }
    assert_eq!(screen(&[800, 600, 32], None), (None, None));
}

#[test]
fn a_kernel_moves_to_where_it_can_be() {
    let mut memory = Memory::new(RAM).unwrap();
    // Least and greatest address, alignment, preference; where the kernel is then.
    for (wishes, base) in [
        ([0x10_0000, u32::MAX, 0x1000, 0], 0x20_0000),
        ([0x28_0000, u32::MAX, 0x20_0000, 0], 0x40_0000),
        ([0x28_0000, u32::MAX, 0x8_0000, 1], 0x28_0000),
        ([0x28_0000, u32::MAX, 0x1000, 2], 0x3f_e000),
        ([0x10_0000, 0x18_1fff, 0x1000, 2], 0x18_0000),
    ] {
        let file = kernel(&[(10, 0, &wishes)]);
        let started = load(
            &mut memory,
            &file,
            &Given { modules: &[], command_line: "", rsdp: RSDP, video_memory: None },
        );
        if base + 0x2000 > RAM || base == 0x3f_e000 {
            // Nothing is left for the information.
            assert!(matches!(started, Err(Multiboot2Error::Placing(_))), "{started:?}");
            continue;
        }
        let (entry, _) = started.unwrap();
        assert_eq!(memory.load::<4>(entry.eip as usize), [0xf4; 4]);
        assert_eq!(words(&tags(&memory, entry.information)[&21]), [base as u32]);
        assert_eq!(u64::from(entry.eip) & !0xfff, base);
    }
}

#[test]
fn kernels_that_cannot_be_loaded_are_refused_with_a_reason() {
    let mut memory = Memory::new(RAM).unwrap();
    let mut refused = |file: &[u8]| started(&mut memory, file, None).unwrap_err();
    assert_eq!(refused(&kernel(&[(99, 0, &[])])), Multiboot2Error::UnknownTag(99));
    let unknown = Multiboot2Error::UnknownInformation(22);
    assert_eq!(refused(&kernel(&[(1, 0, &[1, 22])])), unknown);
    assert!(matches!(refused(&kernel(&[(2, 0, &[1])])), Multiboot2Error::Unloadable(_)));
    assert!(matches!(refused(&addressed(0x20_0000)[..0x6f]), Multiboot2Error::Unloadable(_)));
    assert!(matches!(refused(&addressed(0x30_0000)), Multiboot2Error::Unloadable(_)));
    assert!(matches!(refused(&addressed(0)), Multiboot2Error::Unloadable(_)));
    // A tag without a length would be read for ever.
    let mut file = kernel(&[(6, 0, &[])]);
    let at = contents_at(1) as usize + 16;
    file[at + 4..at + 8].fill(0);
    assert!(matches!(refused(&file), Multiboot2Error::Unloadable(_)));
    let nowhere = [0x20_0000, 0x20_0fff, 0x1000, 0];
    assert!(matches!(refused(&kernel(&[(10, 0, &nowhere)])), Multiboot2Error::Placing(_)));
    assert!(!is_multiboot2(&[0; 100]) && !is_multiboot2(&[]));
}

proptest! {
    #[test]
    fn any_file_is_parsed_without_a_panic(
        mut file in prop::sample::select(vec![
            addressed(0x20_0000),
            kernel(&[(5, 0, &[800, 600, 32]), (10, 0, &[0, u32::MAX, 1, 1])]),
        ]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
    ) {
        for (index, byte) in changes {
            let index = index.index(file.len());
            file[index] = byte;
        }
        let mut memory = Memory::new(RAM).unwrap();
        if let Ok((entry, _)) = started(&mut memory, &file, Some(0xe000_0000)) {
            prop_assert!(u64::from(entry.information) < RAM);
        }
    }
}
