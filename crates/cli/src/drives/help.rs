//! What `--help` and `--drive help` say of drives.

/// A list of what there is, with examples.
pub(super) const DRIVE: &str = "\
A drive by its properties: PROPERTY=VALUE[,PROPERTY=VALUE]... Can be given several times.

What it is:
  file=FILE                         a disk image or block device; a drive for discs or diskettes can be without
  vblock=SOCKET                     in its place, a disk of \"ring3 vblock\"
  if=ide|floppy|virtio              where it is attached; ide if not given
  index=N                           which of the drives there, from 0; the first that is free if not given
  media=disk|cdrom                  disk if not given
  id=NAME                           what tools call it
  format=raw|qcow2|...              the image's format (\"ring3 img create -f help\" lists them); if not given, what it begins like
  external-files=on|off             whether the image may name other files, of which it then consists

How it is used:
  readonly=on|off                   nothing is written
  snapshot=on|off                   what is written is thrown away when the run ends
  cache=writeback|none|unsafe|writethrough|directsync
                                    when what is written is kept for certain
  discard=on|off                    what the guest needs no more takes no room
  detect-zeroes=on|off|unmap        zeros are noted in the place of being written
  rerror=report|ignore|stop, werror=enospc|report|ignore|stop
                                    what happens where the host fails to read or write
  throttling.bps-total=N, -read, -write; throttling.iops-total=N, -read, -write
                                    bytes or operations a second at most; with -max behind it, for a second after a rest

Of if=virtio:
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
