//! The names that data sheets have for registers, where saved states have others or none.

use super::Tree;

/// The table; its beginning explains its form.
const TABLE: &str = include_str!("data_sheets.txt");

/// What a line of the table says.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    /// The part has this name.
    Name(&'static str),
    /// The elements of the list have these names.
    Items(Vec<&'static str>),
    /// Bytes are numbers, the least significant byte first: offset, length and name of each.
    Bytes(Vec<(usize, usize, &'static str)>),
    /// A list has registers of 32 bits at these offsets, by their names. Others appear if they are not zero.
    Words(Vec<(usize, &'static str)>),
}

/// All lines of the table.
#[derive(Debug)]
pub(super) struct DataSheets(Vec<(Vec<&'static str>, Rule)>);

/// The name of parts that are left out: they follow from others, or this processor does not have them.
pub(super) const LEFT_OUT: &str = "-";

/// Parses a number in hexadecimal.
fn offset(text: &str) -> Option<usize> {
    usize::from_str_radix(text, 16).ok()
}

impl DataSheets {
    pub(super) fn new() -> DataSheets {
        DataSheets(TABLE.lines().filter_map(rule).collect())
    }

    /// Returns the rule for the part at `path` of the kind that `wanted` takes.
    fn find<T>(&self, path: &[String], wanted: impl Fn(&Rule) -> Option<T>) -> Option<T> {
        let fits = |pattern: &[&str]| {
            pattern.len() == path.len()
                && pattern.iter().zip(path).all(|(wanted, is)| *wanted == "*" || wanted == is)
        };
        self.0.iter().filter(|(pattern, _)| fits(pattern)).find_map(|(_, rule)| wanted(rule))
    }

    /// Returns the name of the part at `path`, which is not empty.
    pub(super) fn name(&self, path: &[String]) -> String {
        let named = self.find(path, |rule| match rule {
            Rule::Name(name) => Some((*name).to_owned()),
            _ => None,
        });
        named.or_else(|| path.last().cloned()).unwrap_or_default()
    }

    /// Gives the elements of a list their names, if they have any.
    pub(super) fn name_items(&self, path: &[String], parts: Vec<Tree>) -> Tree {
        let names = self.find(path, |rule| match rule {
            Rule::Items(names) => Some(names.clone()),
            _ => None,
        });
        if let Some(names) = names {
            let mut names = names.into_iter();
            let named = parts.into_iter().enumerate().map(|(index, part)| {
                (names.next().map_or_else(|| index.to_string(), str::to_owned), part)
            });
            return Tree::Branch(named.filter(|(name, _)| name != LEFT_OUT).collect());
        }
        let words = self.find(path, |rule| match rule {
            Rule::Words(words) => Some(words.clone()),
            _ => None,
        });
        let Some(words) = words else { return bytes_of(parts) };
        let named = parts.into_iter().enumerate().filter_map(|(index, part)| {
            let at = 4 * index;
            match words.iter().find(|(offset, _)| *offset == at) {
                Some((_, name)) => Some(((*name).to_owned(), part)),
                None if part == Tree::Number(0) => None,
                None => Some((format!("{at:#06x}"), part)),
            }
        });
        Tree::Branch(named.collect())
    }

    /// Gives the numbers in bytes their names, if they have any.
    pub(super) fn name_bytes(&self, path: &[String], tree: Tree) -> Tree {
        let Tree::Bytes(bytes) = &tree else { return tree };
        let fields = self.find(path, |rule| match rule {
            Rule::Bytes(fields) => Some(fields.clone()),
            _ => None,
        });
        let Some(fields) = fields else { return tree };
        let named = fields.into_iter().filter_map(|(offset, len, name)| {
            let field = bytes.get(offset..offset + len)?;
            let value = field.iter().rev().fold(0, |value, byte| value << 8 | i128::from(*byte));
            Some((name.to_owned(), Tree::Number(value)))
        });
        let mut named: Vec<_> = named.collect();
        named.push(("bytes".to_owned(), tree));
        Tree::Branch(named)
    }
}

/// The fewest numbers below 256 that are taken for bytes.
const BYTES_MIN: usize = 16;

/// Returns a long list of numbers below 256 as bytes, and any other list as it is.
fn bytes_of(parts: Vec<Tree>) -> Tree {
    let byte = |part: &Tree| match part {
        Tree::Number(number) => u8::try_from(*number).ok(),
        _ => None,
    };
    match parts.iter().map(byte).collect::<Option<Vec<u8>>>() {
        Some(bytes) if bytes.len() >= BYTES_MIN => Tree::Bytes(bytes),
        _ => Tree::List(parts),
    }
}

/// Reads a line of the table.
fn rule(line: &'static str) -> Option<(Vec<&'static str>, Rule)> {
    let mut words = line.split_whitespace();
    let (kind, path) = words.next().zip(words.next())?;
    let rule = match kind {
        "name" => Rule::Name(words.next()?),
        "items" => Rule::Items(words.collect()),
        "bytes" => {
            let field = |word: &'static str| {
                let (place, name) = word.split_once('=')?;
                let (start, len) = place.split_once(':')?;
                Some((offset(start)?, offset(len)?, name))
            };
            Rule::Bytes(words.map(field).collect::<Option<_>>()?)
        }
        "words" => {
            let field = |word: &'static str| {
                let (place, name) = word.split_once('=')?;
                Some((offset(place)?, name))
            };
            Rule::Words(words.map(field).collect::<Option<_>>()?)
        }
        _ => return None,
    };
    Some((path.split('/').collect(), rule))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_rule() {
        let lines = TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        for line in lines {
            assert!(rule(line).is_some(), "{line}");
        }
    }
}
