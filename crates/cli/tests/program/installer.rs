//! Debian's installer in a machine behind the NAT: its own programs obtain an address, resolve a name and
//! fetch files.
//!
//! The name server and the file server listen on the loopback interface of a network namespace, in which
//! there is nothing else. If users may create no namespaces, the test is skipped with a note.

use std::process::Command;

use crate::support::guest::{Guest, file_if_there};
use crate::support::namespace::{has_namespaces, in_namespace};
use crate::support::{Directory, output};

/// The installer asks no question before it has read the answers at this address.
const COMMAND_LINE: &str =
    "console=ttyS0 auto=true priority=critical url=http://files.test:8080/answers";

/// The answers: a command to run as soon as they are read.
const ANSWERS: &[u8] = b"d-i preseed/early_command string \
    { echo installer begins; ip -4 addr show; cat /etc/resolv.conf; wget -q -O - http://files.test:8080/served | md5sum; echo installer ends; } \
    > /dev/ttyS0 2>&1; poweroff -f\n";

/// netcfg obtains an address by DHCP and resolves the name of the server with the answers, and wget fetches
/// them and another file.
#[test]
fn debians_installer_works_behind_the_nat() {
    works("installer", "--memory 640M");
}

#[test]
#[ignore = "the same with 64 bits"]
fn debians_64_bit_installer_works_behind_the_nat() {
    works("installer-amd64", "--cpu qemu64 --memory 1G");
}

/// The installer in the directory `guest` works in a machine with these options.
fn works(guest: &str, options: &str) {
    if !has_namespaces() {
        return;
    }
    let directory = Directory::new();
    let files = ["linux", "initrd.gz"].map(|file| file_if_there(&format!("{guest}/{file}")));
    let [Some(kernel), Some(initrd)] = files else { return };
    directory.file("answers", ANSWERS);
    directory.file("resolv.conf", b"nameserver 127.0.0.1\n");
    let served: Vec<u8> = (0..100_000).flat_map(|number: u32| number.to_le_bytes()).collect();
    let served = directory.file("served", &served);
    let sum = String::from_utf8(output(Command::new("md5sum").arg(&served))).unwrap();
    let script = format!(
        "cd {root}; mount --bind resolv.conf /etc/resolv.conf; \
         python3 -m http.server --bind 127.0.0.1 8080 >web.log 2>&1 & \
         dnsmasq --no-daemon --user=root --conf-file=/dev/null --no-resolv --no-hosts --pid-file= \
         --listen-address=127.0.0.1 --bind-interfaces --address=/files.test/10.0.2.2 >names.log 2>&1 & \
         {ring3} run {options} --serial stdio --nic user --kernel {kernel} --initrd {initrd} --append '{COMMAND_LINE}'",
        root = directory.path("").display(),
        ring3 = env!("CARGO_BIN_EXE_ring3"),
        kernel = kernel.display(),
        initrd = initrd.display(),
    );
    let mut guest = Guest::of(in_namespace(&script));
    guest.wait_for("installer begins\n");
    let told = guest.wait_for("installer ends\n");
    assert!(told.contains("inet 10.0.2.15/24"), "{told}");
    assert!(told.contains("nameserver 10.0.2.3"), "{told}");
    assert!(told.contains(sum.split_whitespace().next().unwrap()), "{told}");
    assert_eq!(guest.wait_for_the_end(), Some(0));
}
