//! The names of the guest kernel's functions, from its file or its System.map.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use elf::ElfBytes;
use elf::abi::{STT_FUNC, STT_NOTYPE, STT_OBJECT};
use elf::endian::LittleEndian;
use thiserror::Error;

/// The reasons why there are no symbols.
#[derive(Debug, Error)]
pub(crate) enum SymbolsError {
    /// The file cannot be read.
    #[error("cannot read the symbols of {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The file has none.
    #[error(
        "there are no symbols in {}: give a vmlinux that is not stripped, or a System.map",
        path.display()
    )]
    None { path: PathBuf },
}

/// Symbols in the order of their addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Symbols(Vec<(u64, String)>);

impl Symbols {
    /// Reads the symbols of `paths`, each of which is an ELF file or has lines like those of System.map.
    pub(crate) fn read(paths: &[PathBuf]) -> Result<Symbols, SymbolsError> {
        let mut all = Vec::new();
        for path in paths {
            let contents = fs::read(path)
                .map_err(|source| SymbolsError::Read { path: path.clone(), source })?;
            let symbols = of_elf(&contents).unwrap_or_else(|| of_lines(&contents));
            if symbols.is_empty() {
                return Err(none(path));
            }
            all.extend(symbols);
        }
        all.sort();
        Ok(Symbols(all))
    }

    /// Returns the name of the symbol at `address` or before it, and the distance, or None if there is no
    /// symbol before it.
    pub(crate) fn find(&self, address: u64) -> Option<String> {
        Some(match self.before(address)? {
            (name, 0) => name.to_owned(),
            (name, distance) => format!("{name}+{distance:#x}"),
        })
    }

    /// Returns the name of the function that contains `address`, or None if none can.
    pub(crate) fn function(&self, address: u64) -> Option<&str> {
        let (name, distance) = self.before(address)?;
        (distance < FUNCTION_MAX).then_some(name)
    }

    /// Returns the name of the last symbol up to `address`, and the distance to it.
    fn before(&self, address: u64) -> Option<(&str, u64)> {
        let next = self.0.partition_point(|(start, _)| *start <= address);
        let (start, name) = self.0.get(next.checked_sub(1)?)?;
        Some((name, address - start))
    }
}

/// What is further from a symbol is not part of that function: modules are far from the kernel's last symbol.
const FUNCTION_MAX: u64 = 1 << 20;

fn none(path: &Path) -> SymbolsError {
    SymbolsError::None { path: path.to_owned() }
}

/// Returns the symbols of an ELF file, or None if it is none.
fn of_elf(contents: &[u8]) -> Option<Vec<(u64, String)>> {
    let file = ElfBytes::<LittleEndian>::minimal_parse(contents).ok()?;
    let Ok(Some((table, names))) = file.symbol_table() else { return Some(Vec::new()) };
    let is_named = |kind| matches!(kind, STT_NOTYPE | STT_OBJECT | STT_FUNC);
    let symbols =
        table.iter().filter(|symbol| !symbol.is_undefined() && is_named(symbol.st_symtype()));
    let symbols = symbols.filter_map(|symbol| {
        let name = names.get(symbol.st_name as usize).ok().filter(|name| !name.is_empty())?;
        Some((symbol.st_value, name.to_owned()))
    });
    Some(symbols.collect())
}

/// Returns the symbols of lines with an address, a letter for the kind of the symbol, and a name (nm(1)).
fn of_lines(contents: &[u8]) -> Vec<(u64, String)> {
    let text = String::from_utf8_lossy(contents);
    let symbol = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        let is_kind = words.next()?.len() == 1;
        is_kind.then_some((address, words.next()?.to_owned()))
    };
    text.lines().filter_map(symbol).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_symbol_before_it() {
        let lines = b"c1000010 T second\nc1000000 t first\nnonsense\n00 c1 x\n";
        let mut symbols = of_lines(lines);
        symbols.sort();
        let symbols = Symbols(symbols);
        let find = |address| symbols.find(address);
        assert_eq!(find(0xc0ff_ffff), None);
        assert_eq!(find(0xc100_0000).as_deref(), Some("first"));
        assert_eq!(find(0xc100_000f).as_deref(), Some("first+0xf"));
        assert_eq!(find(u64::MAX).as_deref(), Some("second+0xffffffff3effffef"));
        assert_eq!(symbols.function(0xc100_00ff), Some("second"));
        assert_eq!(symbols.function(u64::MAX), None);
    }

    #[test]
    fn files_without_symbols_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("empty");
        fs::write(&path, b"\x7fELF, but not really").unwrap();
        let error = Symbols::read(std::slice::from_ref(&path)).unwrap_err().to_string();
        assert!(error.contains("System.map") && error.contains("empty"), "{error}");
        let missing = Symbols::read(&[directory.path().join("missing")]).unwrap_err();
        assert!(missing.to_string().starts_with("cannot read"), "{missing}");
        assert_eq!(Symbols::read(&[]).unwrap(), Symbols::default());
    }
}
