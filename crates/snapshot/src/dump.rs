//! The memory of a machine in a file for debuggers: an ELF core, which `crash` and `gdb` open.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ring3_block::storage::{HostFile, Storage};
use ring3_block::{Unfinished, remove_left};
use ring3_core::memory::{Memory, PAGE_SIZE, Target};
use ring3_vm::control::Ended;
use ring3_vm::{Control, Vm};
use thiserror::Error;

use crate::elf_core::{self, Class, Layout, Load};

/// Upper bound of the bytes that are written at once. Where pages are all zero, the file has a hole.
const PIECE: usize = 64 << 10;

/// Upper bound of the pages whose linear addresses are written: as many as make up 4 GiB.
const MAPPED_MAX: usize = 1 << 20;

/// What is written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DumpOptions {
    /// Whether the file shows memory at the linear addresses of the code that runs, for debuggers, and not at
    /// physical ones.
    pub paging: bool,
    /// The guest-physical addresses to which it is limited.
    pub range: Option<Range<u64>>,
}

/// How far a dump has come, in bytes of memory.
#[derive(Debug, Default)]
pub struct Progress {
    /// What is written already.
    pub written: AtomicU64,
    /// What will be written.
    pub total: AtomicU64,
}

/// The reasons why there is no dump. Nothing of it remains then.
#[derive(Debug, Error)]
pub enum DumpError {
    /// The machine has ended.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// The file cannot be made.
    #[error(transparent)]
    File(#[from] ring3_block::Error),
    /// The file cannot be written.
    #[error("cannot write {path}: {source}", path = .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// There is something else of this name.
    #[error("{path} is not a file, so no memory can be written there: give another name", path = .0.display())]
    NotAFile(PathBuf),
    /// There is no memory in the range.
    #[error("the machine has no memory from {:#x} to {:#x}", .0.start, .0.end)]
    NoMemory(Range<u64>),
}

/// Writes the memory and the registers of the machine behind `control` into a file at `target`, which replaces
/// a file of that name once it is complete. The machine stands still meanwhile.
pub fn dump(
    control: &Control,
    target: &Path,
    options: DumpOptions,
    progress: &Arc<Progress>,
) -> Result<(), DumpError> {
    // For a symbolic link the file behind it is replaced, and not the link.
    let target = fs::canonicalize(target).unwrap_or_else(|_| target.to_owned());
    if fs::metadata(&target).is_ok_and(|data| !data.is_file()) {
        return Err(DumpError::NotAFile(target));
    }
    remove_left(&target);
    let unfinished = Unfinished::make(&target)?;
    let (file, progress) = (Arc::clone(unfinished.file()), Arc::clone(progress));
    let written = control.look(move |vm| write(vm, &file, options, &progress))?;
    let flushed = written.and_then(|()| unfinished.file().flush().map_err(Failure::Write));
    flushed.map_err(|failure| match failure {
        Failure::NoMemory(range) => DumpError::NoMemory(range),
        Failure::Write(source) => DumpError::Write { path: target.clone(), source },
    })?;
    Ok(unfinished.finish(&target)?)
}

/// Why a machine is not written.
enum Failure {
    NoMemory(Range<u64>),
    Write(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Write(error)
    }
}

fn write(
    vm: &Vm,
    file: &HostFile,
    options: DumpOptions,
    progress: &Progress,
) -> Result<(), Failure> {
    let memory = vm.memory();
    let limits = options.range.unwrap_or(0..memory.end());
    let runs = runs(memory, &limits);
    if runs.is_empty() {
        return Err(Failure::NoMemory(limits));
    }
    let ranges: Vec<_> = runs.iter().map(|run| run.physical.clone()).collect();
    let loads = if options.paging { linear_loads(vm, &ranges) } else { physical_loads(&ranges) };
    let registers = vm.registers();
    let class = Class::of(&registers, &ranges);
    let notes = elf_core::notes(class, vm.cpu(), &registers, &vm.note().unwrap_or_default());
    let layout = Layout::new(class, &ranges, &loads, &notes);
    progress
        .total
        .store(ranges.iter().map(|range| range.end - range.start).sum(), Ordering::Relaxed);
    file.set_size(layout.len)?;
    file.write_at(&layout.start, 0)?;
    for (run, offset) in runs.iter().zip(&layout.offsets) {
        let len = (run.physical.end - run.physical.start) as usize;
        let before = progress.written.load(Ordering::Relaxed);
        for part in full_parts(memory, run.place..run.place + len) {
            let from_start = |place: usize| (place - run.place) as u64;
            let (at, end) = (offset + from_start(part.start), before + from_start(part.end));
            file.write_at(&memory.all_contents()[part], at)?;
            progress.written.store(end, Ordering::Relaxed);
        }
        progress.written.store(before + len as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// Returns the parts of the memory in `places` that are in pages which are not all zero.
fn full_parts(memory: &Memory, places: Range<usize>) -> Vec<Range<usize>> {
    let mut pages = memory.full_pages();
    let mut parts: Vec<Range<usize>> = Vec::new();
    let mut at = places.start;
    while at < places.end {
        let page = at - at % PAGE_SIZE as usize;
        let end = (page + PAGE_SIZE as usize).min(places.end);
        if pages.at(page).is_some() {
            match parts.last_mut() {
                Some(last) if last.end == at && last.len() < PIECE => last.end = end,
                _ => parts.push(at..end),
            }
        }
        at = end;
    }
    parts
}

/// Guest-physical memory that is at consecutive places.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    physical: Range<u64>,
    place: usize,
}

/// Returns the memory within `limits`: RAM, and ROM and the display's memory where they are mapped.
fn runs(memory: &Memory, limits: &Range<u64>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut at = limits.start;
    while at < limits.end.min(memory.end()) {
        let end = (at & !(PAGE_SIZE - 1)).saturating_add(PAGE_SIZE).min(limits.end);
        if let Target::Place(place) = memory.read_target(at) {
            match runs.last_mut() {
                Some(last)
                    if last.physical.end == at
                        && last.place + (at - last.physical.start) as usize == place =>
                {
                    last.physical.end = end;
                }
                _ => runs.push(Run { physical: at..end, place }),
            }
        }
        at = end;
    }
    runs
}

fn physical_loads(ranges: &[Range<u64>]) -> Vec<Load> {
    let load = |range: &Range<u64>| {
        let (start, len) = (range.start, range.end - range.start);
        Load { linear: start, physical: start, len }
    };
    ranges.iter().map(load).collect()
}

/// Returns the memory in `ranges` that is mapped at linear addresses. If page tables that lead to themselves map
/// endlessly many pages, only the first ones are returned.
fn linear_loads(vm: &Vm, ranges: &[Range<u64>]) -> Vec<Load> {
    let mut loads: Vec<Load> = Vec::new();
    for (linear, physical) in vm.cpu().mapped(vm.memory()).take(MAPPED_MAX) {
        let first = ranges.partition_point(|range| range.end <= physical.start);
        let of_page = ranges[first..].iter().take_while(|range| range.start < physical.end);
        // The limits may begin and end in the middle of a page.
        for range in of_page {
            let start = range.start.max(physical.start);
            let len = range.end.min(physical.end) - start;
            let linear = linear + (start - physical.start);
            match loads.last_mut() {
                Some(last)
                    if last.linear.wrapping_add(last.len) == linear
                        && last.physical + last.len == start
                        && range.contains(&last.physical) =>
                {
                    last.len += len;
                }
                _ => loads.push(Load { linear, physical: start, len }),
            }
        }
    }
    loads
}
