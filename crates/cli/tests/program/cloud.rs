//! A disk with Debian as clouds offer it, by the command line that tutorials give for QEMU: cloud-init sets the guest up
//! from a disc with its data and from the machine's serial number, and the rest is done by ssh.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::support::guest::{Guest, file_if_there};
use crate::support::{Directory, PATIENCE, output, system_program, wait_up_to};

/// The user whom cloud-init makes on Debian.
const USER: &str = "debian@127.0.0.1";

/// Returns a port of the host that is free.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Makes a disc for cloud-init, which finds it by its name: whose key may log in, where packages come from, and a command.
fn seed(directory: &Directory, key: &str, archive: u16) -> PathBuf {
    let user_data = format!(
        "#cloud-config\n\
         ssh_authorized_keys: ['{key}']\n\
         apt: {{preserve_sources_list: false, sources_list: 'deb [trusted=yes] http://10.0.2.2:{archive}/ ./'}}\n\
         runcmd: [[sh, -c, 'uname -m > /var/tmp/ran']]\n"
    );
    let files = directory.path("seed");
    fs::create_dir(&files).unwrap();
    fs::write(files.join("user-data"), user_data).unwrap();
    fs::write(files.join("meta-data"), "instance-id: first\n").unwrap();
    let disc = directory.path("seed.iso");
    let mut xorriso = Command::new("xorriso");
    xorriso.args(["-as", "mkisofs", "-quiet", "-J", "-r", "-V", "cidata", "-o"]);
    output(xorriso.arg(&disc).arg(&files));
    disc
}

/// Returns ssh with a command for the guest behind this port of the host.
fn ssh(key: &Path, port: u16, command: &str) -> Command {
    let mut ssh = Command::new("ssh");
    ssh.args(["-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"]);
    ssh.args(["-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]);
    ssh.args(["-o", "ConnectTimeout=30", "-p", &port.to_string(), "-i"]);
    ssh.arg(key).args([USER, command]);
    ssh
}

/// A server of files, which is killed when this value is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Serves the files in a directory at a port of the host.
fn serve(directory: &Path, port: u16) -> Server {
    let mut server = system_program("python3");
    server.args(["-m", "http.server", "--bind", "127.0.0.1", &port.to_string()]);
    server.current_dir(directory).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Server(server.spawn().expect("the server starts"))
}

/// The partition and its file system grow to the size of the disk, commands and keys come from the disc, the name
/// from the serial number, a package is installed over the network, and the guest is switched off by ssh.
#[test]
#[ignore = "needs `make guests-cloud`, 200 MB; make test-long runs it"]
fn cloud_init_sets_up_a_64_bit_guest() {
    let Some(image) = file_if_there("cloud-amd64/disk.qcow2") else { return };
    let directory = Directory::new();
    let key = directory.path("key");
    output(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key));
    let public = fs::read_to_string(key.with_extension("pub")).unwrap();
    let (port, archive) = (free_port(), free_port());
    let disc = seed(&directory, public.trim(), archive);
    let _archive = serve(&image.with_file_name("archive"), archive);
    let disk = directory.path("disk");
    let mut create = Command::new(env!("CARGO_BIN_EXE_ring3"));
    create.args(["img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b"]).arg(&image);
    output(create.arg(&disk).arg("5G"));

    // The program takes QEMU's command line under this name.
    let qemu = directory.path("qemu-system-x86_64");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_ring3"), &qemu).unwrap();
    let mut command = Command::new(qemu);
    command.env_remove("RING3_LOG");
    command.args(["-machine", "accel=kvm:tcg", "-cpu", "max", "-smp", "1", "-m", "1G"]);
    command.args(["-smbios", "type=1,serial=ds=nocloud;h=clouded"]);
    command.arg("-nographic").arg("-cdrom").arg(disc).arg("-drive");
    command.arg(format!("file={},if=virtio,format=qcow2", disk.display()));
    command.args(["-device", "virtio-net-pci,netdev=n", "-netdev"]);
    command.arg(format!("user,id=n,hostfwd=tcp:127.0.0.1:{port}-:22"));
    let mut guest = Guest::of(command);
    guest.wait_for("Welcome to ");
    let run = |command: &str| ssh(&key, port, command).output().unwrap();
    // cloud-init starts the server for ssh once more. Its status is an error if a single step failed.
    let status = wait_up_to(4 * PATIENCE, "nobody can log in", || {
        thread::sleep(Duration::from_secs(2));
        let said = run("cloud-init status --wait --long");
        let said = String::from_utf8(said.stdout).unwrap();
        said.contains("status: ").then_some(said)
    });
    assert!(status.contains("status: done") && status.contains("seed=dmi,/dev/sr0"), "{status}");
    let said = |command: &str| String::from_utf8(output(&mut ssh(&key, port, command))).unwrap();
    assert_eq!(said("cat /var/tmp/ran; hostname"), "x86_64\nclouded\n");
    assert_eq!(said("systemctl --failed --quiet --no-legend"), "");
    assert_eq!(said("df --output=size / | awk 'NR == 2 { print ($1 > 4800000) }'"), "1\n");
    let install =
        "sudo apt-get -qq update && sudo apt-get -qq install --yes hello >/dev/null && hello";
    assert_eq!(said(install), "Hello, world!\n");
    // The connection may end before ssh knows how the command did.
    run("sudo systemctl poweroff");
    assert_eq!(guest.wait_for_the_end(), Some(0));
}
