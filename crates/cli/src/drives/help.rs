//! The text of `--help` and `--drive help` about drives.

/// The list of properties, with examples.
pub(super) const DRIVE: &str = "\
A drive by its properties: PROPERTY=VALUE[,PROPERTY=VALUE]... May be given several times.

The drive itself:
  file=FILE                         a disk image or block device; drives for discs and diskettes may be empty
  vblock=SOCKET                     instead of a file, a disk of \"ring3 vblock\"
  direct=DEVICE                     with vblock=, the client's socket: use the disk by the program that provides it
  if=ide|floppy|virtio|pflash       where it is attached; by default ide. pflash is flash memory with firmware
  index=N                           its number there, from 0; by default the first free one
  media=disk|cdrom                  by default disk
  id=NAME                           its name for tools
  format=raw|qcow2|...              the image's format (\"ring3 img create -f help\" lists them); by default it is detected
  external-files=on|off             whether the image may consist of other files, which it names

Its use:
  readonly=on|off                   whether it is read-only
  snapshot=on|off                   whether writes are thrown away when the run ends
  cache=writeback|none|unsafe|writethrough|directsync
                                    when writes are safe from a power cut
  discard=on|off                    whether sectors that the guest discards free room
  detect-zeroes=on|off|unmap        whether zeros are recorded as zeros instead of written
  rerror=report|ignore|stop, werror=enospc|report|ignore|stop
                                    what happens when the host cannot read or write
  throttling.bps-total=N, -read, -write; throttling.iops-total=N, -read, -write
                                    the limit of bytes or operations a second; with -max appended, for a second after a rest

Only for if=virtio:
  serial=TEXT, num-queues=N, disable-legacy=on|off, disable-modern=on|off

Examples:
  --drive file=disk.img             as --hda disk.img
  --drive file=disk.qcow2,if=virtio,discard=on
  --drive file=disc.iso,media=cdrom
  --drive file=base.qcow2,snapshot=on
  --drive vblock=vm1.sock,if=virtio";

#[cfg(test)]
mod tests {
    use super::super::DriveProperties;
    use super::DRIVE;

    #[test]
    fn the_examples_are_understood() {
        let examples = DRIVE.lines().filter_map(|line| line.strip_prefix("  --drive "));
        let mut count = 0;
        for example in examples.filter_map(|line| line.split_whitespace().next()) {
            let drive: Result<DriveProperties, _> = example.parse();
            assert!(drive.is_ok(), "{example}: {drive:?}");
            count += 1;
        }
        assert_eq!(count, 5);
    }
}
