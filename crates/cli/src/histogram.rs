//! `--histogram`: the instructions that the guest has executed, by form, group and privilege, and its hottest
//! blocks, as a file for people, spreadsheets or programs.

mod svg;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;

use clap::Args;
use ring3_vm::Vm;
use ring3_vm::histogram::{Group, Histogram, HotBlock, Row};
use serde::Serialize;

use crate::report::{self, Target, WriteError};
use crate::symbols::Symbols;

/// The option.
#[derive(Debug, Args)]
#[command(next_help_heading = "What the guest executes")]
pub(crate) struct HistogramArguments {
    /// Count the instructions that the guest executes, and when the run ends write how often each form was
    /// executed, and the hottest blocks, to this file: as a table (FILE.csv), for programs (FILE.json) or as a
    /// picture (FILE.svg)
    #[arg(long, value_name = "FILE")]
    pub(crate) histogram: Option<Target<Format>>,
}

/// The formats of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Csv,
    Json,
    Svg,
}

impl report::Format for Format {
    const REPORT: &'static str = "histogram";
    const ENDS: &'static str = ".csv, .json or .svg";

    fn of_extension(extension: &str) -> Option<Format> {
        match extension {
            "csv" => Some(Format::Csv),
            "json" => Some(Format::Json),
            "svg" => Some(Format::Svg),
            _ => None,
        }
    }
}

/// A histogram that is written when the run ends.
#[derive(Debug)]
pub(crate) struct Output {
    file: report::Output<Format>,
    symbols: Symbols,
}

/// The most blocks that are written.
const BLOCKS: usize = 100;

impl HistogramArguments {
    /// Makes `vm` count, and opens the file, if the option asks for a histogram.
    pub(crate) fn begin(
        &self,
        vm: &mut Vm,
        symbols: &Symbols,
    ) -> Result<Option<Output>, WriteError> {
        let Some(target) = &self.histogram else { return Ok(None) };
        let file = target.create()?;
        vm.count_forms(true);
        Ok(Some(Output { file, symbols: symbols.clone() }))
    }
}

impl Output {
    /// Writes what `vm` has counted.
    pub(crate) fn finish(self, vm: &mut Vm) -> Result<(), WriteError> {
        let blocks = vm.hot_blocks(BLOCKS);
        let rows = vm.histogram().into_iter().flat_map(Histogram::rows);
        let report = Report::new(rows, &blocks, &self.symbols);
        self.file.write(|format| match format {
            Format::Csv => Ok(report.csv()),
            Format::Json => report.json(),
            Format::Svg => svg::draw(&report),
        })
    }
}

/// Counts by privilege.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
struct Counts {
    supervisor: u64,
    user: u64,
}

impl Counts {
    fn total(self) -> u64 {
        self.supervisor + self.user
    }

    fn add(&mut self, other: Counts) {
        self.supervisor += other.supervisor;
        self.user += other.user;
    }
}

/// A group of instructions.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct GroupRow {
    name: String,
    #[serde(flatten)]
    counts: Counts,
}

/// A form of an instruction.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct FormRow {
    name: &'static str,
    group: String,
    #[serde(flatten)]
    counts: Counts,
}

/// A block of instructions.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct BlockRow {
    /// The linear address of its first instruction.
    address: String,
    /// The symbol there, for a block of the supervisor.
    symbol: Option<String>,
    #[serde(flatten)]
    counts: Counts,
}

/// Everything that is written, the most frequent first.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Report {
    instructions: u64,
    #[serde(flatten)]
    counts: Counts,
    groups: Vec<GroupRow>,
    forms: Vec<FormRow>,
    blocks: Vec<BlockRow>,
}

impl Report {
    fn new(rows: impl Iterator<Item = Row>, blocks: &[HotBlock], symbols: &Symbols) -> Report {
        let name_of =
            |group: Option<Group>| group.map_or("none".to_owned(), |group| group.to_string());
        let mut by_group = BTreeMap::<Option<Group>, Counts>::new();
        let mut counts = Counts::default();
        let mut forms = Vec::new();
        for row in rows.filter(|row| row.total() != 0) {
            let of_row = Counts { supervisor: row.supervisor, user: row.user };
            counts.add(of_row);
            by_group.entry(row.group).or_default().add(of_row);
            forms.push(FormRow { name: row.name, group: name_of(row.group), counts: of_row });
        }
        let mut groups: Vec<_> = by_group
            .into_iter()
            .map(|(group, counts)| GroupRow { name: name_of(group), counts })
            .collect();
        groups.sort_by_key(|row| std::cmp::Reverse(row.counts.total()));
        forms.sort_by_key(|row| std::cmp::Reverse(row.counts.total()));
        let block = |block: &HotBlock| {
            let [supervisor, user] =
                if block.is_user { [0, block.instructions] } else { [block.instructions, 0] };
            let symbol = (!block.is_user).then(|| symbols.find(block.linear)).flatten();
            let address = format!("{:#010x}", block.linear);
            BlockRow { address, symbol, counts: Counts { supervisor, user } }
        };
        let blocks = blocks.iter().map(block).collect();
        Report { instructions: counts.total(), counts, groups, forms, blocks }
    }

    /// Returns a table as RFC 4180 describes them: a line for each group, form and block.
    fn csv(&self) -> String {
        let mut text = String::from("kind,name,group,supervisor,user,total\n");
        let mut line = |kind: &str, name: &str, group: &str, counts: Counts| {
            let Counts { supervisor, user } = counts;
            let (name, total) = (name.replace('"', "\"\""), counts.total());
            let _ = writeln!(text, "{kind},\"{name}\",{group},{supervisor},{user},{total}");
        };
        line("all", "instructions", "", self.counts);
        for GroupRow { name, counts } in &self.groups {
            line("group", name, name, *counts);
        }
        for FormRow { name, group, counts } in &self.forms {
            line("form", name, group, *counts);
        }
        for BlockRow { address, symbol, counts } in &self.blocks {
            let name =
                symbol.as_ref().map_or(address.clone(), |symbol| format!("{address} {symbol}"));
            line("block", &name, "", *counts);
        }
        text
    }

    fn json(&self) -> io::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let row = |name, group, supervisor, user| Row { name, group, supervisor, user };
        let rows = [
            row("MOV r32, imm32", Some(Group::Moves), 7, 2),
            row("NOP", Some(Group::Moves), 0, 0),
            row("STOSD", Some(Group::Strings), 0, 20),
            row("(no instruction)", None, 1, 0),
        ];
        let block = |linear, is_user, instructions| HotBlock { linear, is_user, instructions };
        let blocks = [block(0x0804_8000, true, 22), block(0xc100_0010, false, 8)];
        Report::new(rows.into_iter(), &blocks, &Symbols::default())
    }

    #[test]
    fn the_most_frequent_comes_first() {
        let Report { instructions, counts, groups, forms, .. } = report();
        assert_eq!((instructions, counts), (30, Counts { supervisor: 8, user: 22 }));
        let groups: Vec<_> =
            groups.iter().map(|row| (row.name.as_str(), row.counts.total())).collect();
        assert_eq!(groups, [("strings", 20), ("moves", 9), ("none", 1)]);
        let forms: Vec<_> = forms.iter().map(|row| row.name).collect();
        assert_eq!(forms, ["STOSD", "MOV r32, imm32", "(no instruction)"]);
    }

    #[test]
    fn a_table_has_a_line_for_everything() {
        let text = report().csv();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "kind,name,group,supervisor,user,total",
                "all,\"instructions\",,8,22,30",
                "group,\"strings\",strings,0,20,20",
                "group,\"moves\",moves,7,2,9",
                "group,\"none\",none,1,0,1",
                "form,\"STOSD\",strings,0,20,20",
                "form,\"MOV r32, imm32\",moves,7,2,9",
                "form,\"(no instruction)\",none,1,0,1",
                "block,\"0x08048000\",,0,22,22",
                "block,\"0xc1000010\",,8,0,8",
            ]
        );
    }

    #[test]
    fn programs_read_numbers_and_names() {
        let report: serde_json::Value = serde_json::from_str(&report().json().unwrap()).unwrap();
        assert_eq!(report["instructions"], 30);
        assert_eq!(report["forms"][1]["name"], "MOV r32, imm32");
        assert_eq!(report["forms"][1]["supervisor"], 7);
        assert_eq!(report["blocks"][0]["address"], "0x08048000");
        assert_eq!(report["blocks"][0]["symbol"], serde_json::Value::Null);
    }

    #[test]
    fn a_picture_names_what_it_shows() {
        let picture = svg::draw(&report()).unwrap();
        for text in ["<svg", "30 instructions", "strings", "MOV r32, imm32", "0x08048000"] {
            assert!(picture.contains(text), "no {text:?} in {picture}");
        }
        let none = Report::new(std::iter::empty(), &[], &Symbols::default());
        assert!(svg::draw(&none).unwrap().contains("0 instructions"));
    }

    #[test]
    fn the_name_says_the_format() {
        assert_eq!(
            "a.b.svg".parse::<Target<Format>>().map(|target| target.format),
            Ok(Format::Svg)
        );
        for wrong in ["a", "csv", "a.png", ".json.", "a.CSV "] {
            let error = wrong.parse::<Target<Format>>().unwrap_err().to_string();
            assert_eq!(error, "its name must end with .csv, .json or .svg", "{wrong}");
        }
    }
}
