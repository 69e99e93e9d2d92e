//! Xen, a hypervisor whose first guest is a paravirtual Linux: its kernel runs at privilege level 3, as programs do, and
//! asks Xen for each change of its page tables.

use crate::support::guest::{Guest, PROMPT, file, file_if_there};
use crate::support::ring3;

/// Xen starts by Multiboot, with kernel and RAM disk as modules. It invalidates the whole TLB at each change of the guest's
/// address space, and patches the kernel through another one.
#[test]
#[ignore = "starts a hypervisor with Linux in it"]
fn xen_starts_a_64_bit_linux() {
    let (Some(xen), Some(kernel)) =
        (file_if_there("xen-amd64"), file_if_there("linux-amd64/vmlinuz"))
    else {
        return;
    };
    let initrd = file("initramfs-amd64.cpio.gz");
    let mut command = ring3();
    command.args(["qemu", "-cpu", "qemu64", "-m", "512", "-nographic", "-monitor", "none"]);
    // Xen would switch to real mode to ask a BIOS, which a machine without firmware lacks.
    command.args(["-append", "console=com1 com1=115200,8n1 dom0_mem=300M no-real-mode"]);
    command.arg("-kernel").arg(xen).arg("-initrd");
    command.arg(format!("{} console=hvc0 quiet,{}", kernel.display(), initrd.display()));
    let mut guest = Guest::of(command);
    guest.wait_for("Xen version 4");
    guest.wait_for(PROMPT);
    guest.command("dmesg -n 1");
    assert_eq!(guest.command("uname -m; cat /sys/hypervisor/type"), "x86_64\nxen");
    let sum = "seq 100000 | awk '{ s += $1 } END { print s }'";
    assert_eq!(guest.command(sum), "5000050000");
    assert_eq!(guest.power_off(), Some(0));
}
