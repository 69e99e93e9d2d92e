//! Reads of disks that are kept as places, and not with what was read.
//!
//! A disk that nobody else can change ([`Drive::changes_only_here`](crate::drives::Drive::changes_only_here)) has the
//! same contents until the guest changes them. So what was read from it is not copied, but read once more when a
//! recording is written. Where the guest is about to change blocks that it has read, their contents are kept first.
//!
//! What a read finds that is under way together with a change of the same sectors is up to the host. Such a read is
//! kept with its data, as are those of all other disks.

use std::collections::BTreeMap;
use std::ops::Range;

use ring3_core::disk::{DiskOperation, DiskRequest, DriveId, SECTOR_SIZE};
use ring3_core::input::{DeviceInput, Input};

/// Sectors in a block, the unit in which contents are kept.
pub(super) const BLOCK: u64 = 8;
/// Blocks for which a word of [`Blocks`] stands.
const GROUP: u64 = u64::BITS as u64;

/// Sectors of a drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) drive: DriveId,
    pub(super) sectors: Range<u64>,
}

impl Extent {
    /// Returns the sectors that `operation` reads or changes, which may be beyond the end of the drive.
    fn of(drive: DriveId, operation: &DiskOperation) -> Extent {
        let (first, count) = match operation {
            DiskOperation::Read { sector, count }
            | DiskOperation::Discard { sector, count }
            | DiskOperation::WriteZeroes { sector, count, .. } => (*sector, u64::from(*count)),
            DiskOperation::Write { sector, data } => (*sector, (data.len() / SECTOR_SIZE) as u64),
            DiskOperation::Flush => (0, 0),
            // Nothing is there any more.
            DiskOperation::Eject => (0, u64::MAX),
        };
        Extent { drive, sectors: first..first.saturating_add(count) }
    }

    /// Returns everything in `drive`.
    pub(super) fn whole(drive: DriveId) -> Extent {
        Extent { drive, sectors: 0..u64::MAX }
    }

    /// Returns the blocks in which the sectors are.
    pub(super) fn blocks(&self) -> Range<u64> {
        self.sectors.start / BLOCK..self.sectors.end.div_ceil(BLOCK)
    }

    /// Returns the number of bytes.
    pub(super) fn bytes(&self) -> u64 {
        (self.sectors.end - self.sectors.start).saturating_mul(SECTOR_SIZE as u64)
    }

    fn meets(&self, other: &Extent) -> bool {
        let latest = self.sectors.start.max(other.sectors.start);
        self.drive == other.drive && latest < self.sectors.end.min(other.sectors.end)
    }
}

/// A request that is not answered yet.
#[derive(Debug)]
struct Asked {
    tag: u64,
    extent: Extent,
    /// Whether it is a read, and whether what it finds is certain. None if it is a change.
    read: Option<bool>,
}

/// The requests to drives that are under way.
#[derive(Debug, Default)]
pub(super) struct Requests(Vec<Asked>);

impl Requests {
    /// Adds a request, to a drive that changes only by such requests if `is_own` says so. Returns the sectors that
    /// it may change.
    pub(super) fn ask(
        &mut self,
        drive: DriveId,
        request: &DiskRequest,
        is_own: bool,
    ) -> Option<Extent> {
        let extent = Extent::of(drive, &request.operation);
        if extent.sectors.is_empty() {
            return None;
        }
        let is_read = matches!(request.operation, DiskOperation::Read { .. });
        let changes = |other: &Asked| other.read.is_none() && other.extent.meets(&extent);
        let read = is_read.then(|| is_own && !self.0.iter().any(changes));
        if !is_read {
            self.doubt(&extent);
        }
        self.0.push(Asked { tag: request.tag, extent: extent.clone(), read });
        (!is_read).then_some(extent)
    }

    /// Notes that `extent` changes while requests are under way.
    pub(super) fn doubt(&mut self, extent: &Extent) {
        let reads = self.0.iter_mut().filter(|other| other.extent.meets(extent));
        for is_certain in reads.filter_map(|other| other.read.as_mut()) {
            *is_certain = false;
        }
    }

    /// Removes the request that `input` answers. Returns what was read, if its place is enough to know it.
    pub(super) fn answer(&mut self, input: &Input) -> Option<Extent> {
        let Input::Device { device, input: DeviceInput::Disk(answer) } = input else { return None };
        let is_it = |asked: &Asked| asked.tag == answer.tag && asked.extent.drive.device == *device;
        let index = self.0.iter().position(is_it)?;
        let Asked { extent, read, .. } = self.0.swap_remove(index);
        let len = answer.result.as_ref().map_or(0, Vec::len) as u64;
        (read == Some(true) && len == extent.bytes()).then_some(extent)
    }
}

/// A set of blocks: a bit for each, by drives and groups.
#[derive(Debug, Default)]
pub(super) struct Blocks(BTreeMap<(DriveId, u64), u64>);

impl Blocks {
    /// Adds all blocks of `extent`.
    pub(super) fn add(&mut self, extent: &Extent) {
        let blocks = extent.blocks();
        for group in blocks.start / GROUP..blocks.end.div_ceil(GROUP) {
            *self.0.entry((extent.drive, group)).or_default() |= bits(&blocks, group);
        }
    }

    /// Removes the blocks of `extent`, and adds their numbers to `taken`.
    pub(super) fn take(&mut self, extent: &Extent, taken: &mut Vec<u64>) {
        let blocks = extent.blocks();
        let ends = [blocks.start, blocks.end - 1].map(|block| (extent.drive, block / GROUP));
        for ((_, group), present) in self.0.range_mut(ends[0]..=ends[1]) {
            let mut there = *present & bits(&blocks, *group);
            *present &= !there;
            while there != 0 {
                taken.push(group * GROUP + u64::from(there.trailing_zeros()));
                there &= there - 1;
            }
        }
    }

    /// Returns how much memory the set takes, about.
    pub(super) fn bytes(&self) -> u64 {
        2 * (self.0.len() * size_of::<((DriveId, u64), u64)>()) as u64
    }
}

/// Returns the bits of `blocks` in the word of `group`, which has some of them.
fn bits(blocks: &Range<u64>, group: u64) -> u64 {
    let start = blocks.start.saturating_sub(group * GROUP);
    let end = (blocks.end - group * GROUP).min(GROUP);
    u64::MAX >> (GROUP - end) & u64::MAX << start
}

/// Contents that blocks had until they were changed.
#[derive(Debug, Default)]
pub(super) struct Former(BTreeMap<(DriveId, u64, usize), Vec<u8>>);

impl Former {
    /// Adds what `block` had when there were `inputs` inputs.
    pub(super) fn add(&mut self, drive: DriveId, block: u64, inputs: usize, bytes: Vec<u8>) {
        self.0.insert((drive, block, inputs), bytes);
    }

    /// Returns what `block` had when there were `inputs` inputs, if it was changed after that.
    pub(super) fn find(&self, drive: DriveId, block: u64, inputs: usize) -> Option<&[u8]> {
        let (_, bytes) =
            self.0.range((drive, block, inputs)..=(drive, block, usize::MAX)).next()?;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use ring3_core::device::DeviceId;
    use ring3_core::disk::DiskAnswer;

    use super::*;

    const FIRST: DriveId = DriveId::new(DeviceId::IDE, 0);
    const SECOND: DriveId = DriveId::new(DeviceId::IDE, 1);

    fn extent(drive: DriveId, sectors: Range<u64>) -> Extent {
        Extent { drive, sectors }
    }

    fn taken(blocks: &mut Blocks, drive: DriveId, sectors: Range<u64>) -> Vec<u64> {
        let mut taken = Vec::new();
        blocks.take(&extent(drive, sectors), &mut taken);
        taken
    }

    #[test]
    fn blocks_are_taken_once_and_by_drives() {
        let mut blocks = Blocks::default();
        blocks.add(&extent(FIRST, 7..9));
        blocks.add(&extent(FIRST, 60 * 8..70 * 8));
        blocks.add(&extent(SECOND, 0..1));
        assert_eq!(taken(&mut blocks, FIRST, 16..60 * 8), []);
        assert_eq!(taken(&mut blocks, FIRST, 8..16), [1]);
        assert_eq!(taken(&mut blocks, FIRST, 63 * 8..65 * 8), [63, 64]);
        let rest: Vec<u64> = [0].into_iter().chain(60..63).chain(65..70).collect();
        assert_eq!(taken(&mut blocks, FIRST, 0..u64::MAX), rest);
        assert_eq!(taken(&mut blocks, FIRST, 0..u64::MAX), []);
        assert_eq!(taken(&mut blocks, SECOND, 0..u64::MAX), [0]);
        blocks.add(&extent(FIRST, u64::MAX - 9..u64::MAX));
        assert_eq!(taken(&mut blocks, FIRST, 0..u64::MAX).len(), 2);
    }

    #[test]
    fn the_next_change_shows_what_was_there() {
        let mut former = Former::default();
        former.add(FIRST, 5, 10, vec![1]);
        former.add(FIRST, 5, 20, vec![2]);
        former.add(FIRST, 6, 0, vec![3]);
        let found = [0, 10, 11, 20, 21].map(|inputs| former.find(FIRST, 5, inputs));
        assert_eq!(found, [Some(&[1][..]), Some(&[1]), Some(&[2]), Some(&[2]), None]);
        assert_eq!((former.find(SECOND, 5, 0), former.find(FIRST, 4, 0)), (None, None));
    }

    fn request(tag: u64, operation: DiskOperation) -> DiskRequest {
        DiskRequest { tag, operation }
    }

    fn read(sector: u64) -> DiskOperation {
        DiskOperation::Read { sector, count: 2 }
    }

    fn answer_to(tag: u64, len: usize) -> Input {
        let answer = DiskAnswer { tag, result: Ok(vec![0; len]) };
        Input::Device { device: DeviceId::IDE, input: DeviceInput::Disk(answer) }
    }

    #[test]
    fn only_what_is_certain_is_known_by_its_place() {
        let mut requests = Requests::default();
        let write = DiskOperation::Write { sector: 11, data: vec![0; 512] };
        let mut ask = |tag, operation, is_own| {
            let drive = if tag == 5 { SECOND } else { FIRST };
            requests.ask(drive, &request(tag, operation), is_own)
        };
        assert_eq!(ask(1, read(10), true), None);
        assert_eq!(ask(2, read(12), true), None);
        assert_eq!(ask(3, write, true), Some(extent(FIRST, 11..12)));
        assert_eq!(ask(4, read(11), true), None);
        assert_eq!(ask(5, read(11), true), None);
        assert_eq!(ask(6, read(20), false), None);
        assert_eq!(ask(7, DiskOperation::Flush, true), None);
        assert_eq!(ask(8, read(30), true), None);
        let mut answer = |tag, len| requests.answer(&answer_to(tag, len));
        assert_eq!(answer(1, 1024), None, "it is changed meanwhile");
        assert_eq!(answer(2, 1024), Some(extent(FIRST, 12..14)));
        assert_eq!(answer(3, 0), None);
        assert_eq!(answer(4, 1024), None, "it was asked while a change was under way");
        assert_eq!(answer(5, 1024), Some(extent(SECOND, 11..13)));
        assert_eq!(answer(6, 1024), None, "others can change it");
        assert_eq!(answer(8, 0), None, "it has failed");
        assert!(requests.0.is_empty());
        requests.ask(FIRST, &request(9, read(10)), true);
        let all = requests.ask(SECOND, &request(10, DiskOperation::Eject), true);
        assert_eq!(all, Some(Extent::whole(SECOND)));
        requests.ask(SECOND, &request(11, read(10)), true);
        let mut answer = |tag, len| requests.answer(&answer_to(tag, len));
        assert_eq!(answer(11, 1024), None, "the medium goes out meanwhile");
        assert_eq!(answer(9, 1024), Some(extent(FIRST, 10..12)));
    }
}
