//! libvirt runs machines of ring3: virsh defines, starts, inspects, drives and ends them, in a session
//! without any rights.

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use crate::support::{guest, kernel, wait_until};
use serde_json::Value;

/// A user who owns nothing, for tests that run as root: root cannot have a session.
const NOBODY: &str = "65534";

/// Sends "ring3" by COM1, and then echoes all input from there; switches itself off when the power button is
/// pressed: MOV DX, 3F8h; five times MOV AL, …; OUT DX, AL; then MOV DX, 3FDh; IN AL, DX; TEST AL, 1; JZ over
/// the next; MOV DX, 3F8h; IN AL, DX; OUT DX, AL; MOV DX, 600h (PM1_STS); IN AX, DX; TEST AH, 1 (PWRBTN_STS);
/// JZ to the first IN; OUT DX, AX; MOV DX, 604h (PM1_CNT); MOV AX, 2000h (SLP_EN); OUT DX, AX; JMP to the
/// first IN.
pub(crate) const ECHO_UNTIL_OFF: &[u8] = &[
    0x66, 0xba, 0xf8, 0x03, 0xb0, b'r', 0xee, 0xb0, b'i', 0xee, 0xb0, b'n', 0xee, 0xb0, b'g', 0xee,
    0xb0, b'3', 0xee, 0x66, 0xba, 0xfd, 0x03, 0xec, 0xa8, 0x01, 0x74, 0x06, 0x66, 0xba, 0xf8, 0x03,
    0xec, 0xee, 0x66, 0xba, 0x00, 0x06, 0x66, 0xed, 0xf6, 0xc4, 0x01, 0x74, 0xe6, 0x66, 0xef, 0x66,
    0xba, 0x04, 0x06, 0x66, 0xb8, 0x00, 0x20, 0x66, 0xef, 0xeb, 0xd8,
];

/// A session of libvirt, which ends when this value is dropped.
struct Session {
    home: PathBuf,
    daemon: Option<Child>,
}

impl Session {
    /// Starts a session. Returns None if libvirt is not installed.
    fn start() -> Option<Session> {
        let is_there = |path: &str| Path::new(path).is_file();
        if !is_there("/usr/bin/virsh") || !is_there("/usr/sbin/libvirtd") {
            ring3_skipped::package(
                "there is no libvirt: install libvirt-clients, libvirt-daemon and libvirt-daemon-driver-qemu",
            );
            return None;
        }
        // Paths of sockets must be short.
        let home = std::env::temp_dir().join(format!("ring3-libvirt-{}", std::process::id()));
        let mut session = Session { home, daemon: None };
        // There is no separate daemon for logs.
        for directory in ["", "run", ".config", ".config/libvirt"] {
            let directory = session.path(directory);
            fs::create_dir(&directory).unwrap();
            fs::set_permissions(&directory, Permissions::from_mode(0o777)).unwrap();
        }
        fs::write(session.path(".config/libvirt/qemu.conf"), "stdio_handler = \"file\"\n").unwrap();
        // A copy and not a link: the program has no other name by which it could start itself.
        session.file("qemu-system-i386", &fs::read(env!("CARGO_BIN_EXE_ring3")).unwrap());
        let daemon = session
            .command("/usr/sbin/libvirtd")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        session.daemon = Some(daemon);
        wait_until("libvirt does not answer", || session.try_virsh(&["version"]).ok());
        Some(session)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.join(name)
    }

    /// Makes a file that everybody may use.
    fn file(&self, name: &str, contents: &[u8]) {
        fs::write(self.path(name), contents).unwrap();
        fs::set_permissions(self.path(name), Permissions::from_mode(0o777)).unwrap();
    }

    /// Returns `program`, to run as the user of the session.
    fn command(&self, program: &str) -> Command {
        let mut command = if rustix::process::geteuid().is_root() {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", program]);
            command
        } else {
            Command::new(program)
        };
        for name in ["XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "RING3_LOG"] {
            command.env_remove(name);
        }
        command
            .env("HOME", &self.home)
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .current_dir(&self.home)
            .stdin(Stdio::null());
        command
    }

    /// Returns virsh's answer to these words.
    fn try_virsh(&self, words: &[&str]) -> Result<String, String> {
        let mut command = self.command("virsh");
        let output = command.args(["-q", "-c", "qemu:///session"]).args(words).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim().to_owned();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    #[track_caller]
    fn virsh(&self, words: &[&str]) -> String {
        self.try_virsh(words).unwrap_or_else(|error| panic!("{words:?}: {error}\n{}", self.log()))
    }

    /// Returns the log of the machines.
    fn log(&self) -> String {
        let logs = self.path(".cache/libvirt/qemu/log");
        let files = fs::read_dir(logs).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_to_string(file.path()).ok()).collect()
    }

    /// Defines and starts the machine `name` with these devices.
    #[track_caller]
    fn machine(&self, name: &str, kernel: &str, devices: &str) {
        let home = self.home.display();
        let xml = format!(
            "<domain type='qemu'>
               <name>{name}</name>
               <uuid>{UUID}</uuid>
               <memory unit='MiB'>128</memory>
               <vcpu>1</vcpu>
               <os><type arch='i686' machine='pc'>hvm</type>{kernel}</os>
               <features><acpi/></features>
               <devices>
                 <emulator>{home}/qemu-system-i386</emulator>
                 {devices}
               </devices>
             </domain>"
        );
        self.file("domain.xml", xml.as_bytes());
        self.virsh(&["define", self.path("domain.xml").to_str().unwrap()]);
        self.virsh(&["start", name]);
    }

    fn wait_for(&self, machine: &str, state: &str) {
        let is_so = || self.virsh(&["domstate", machine, "--reason"]) == state;
        wait_until(state, || is_so().then_some(()));
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The daemon of a session leaves its machines running when it ends.
        for machine in self.try_virsh(&["list", "--name"]).unwrap_or_default().lines() {
            let _ = self.try_virsh(&["destroy", machine]);
        }
        if let Some(daemon) = &mut self.daemon {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let _ = fs::remove_dir_all(&self.home);
    }
}

/// The UUID of every machine; only one runs at a time.
const UUID: &str = "c7a5fdbd-edaf-9455-926a-d65c16db1809";

/// A user at a serial port.
struct Console {
    terminal: File,
    pieces: Receiver<Vec<u8>>,
    seen: String,
}

impl Console {
    /// Opens the pseudoterminal of which libvirt was told.
    #[track_caller]
    fn open(session: &Session, machine: &str) -> Console {
        let name = session.virsh(&["ttyconsole", machine]);
        assert!(name.starts_with("/dev/pts/"), "{name}");
        let terminal = File::options().read(true).write(true).open(&name).unwrap();
        let mut reader = terminal.try_clone().unwrap();
        let (sender, pieces) = channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        Console { terminal, pieces, seen: String::new() }
    }

    /// Waits for `text`, and returns everything before it.
    #[track_caller]
    fn wait_for(&mut self, text: &str) -> String {
        loop {
            if let Some((before, after)) = self.seen.split_once(text) {
                let (before, after) = (before.to_owned(), after.to_owned());
                self.seen = after;
                return before;
            }
            let piece = self.pieces.recv_timeout(crate::support::PATIENCE);
            let piece = piece.unwrap_or_else(|error| panic!("{text}: {error}: {}", self.seen));
            self.seen += &String::from_utf8_lossy(&piece);
        }
    }

    #[track_caller]
    fn type_in(&mut self, text: &str) {
        self.terminal.write_all(text.as_bytes()).unwrap();
    }
}

#[test]
fn virsh_runs_machines() {
    let Some(session) = Session::start() else { return };
    drives_a_machine(&session);
    works_in_debian(&session);
}

/// virsh's commands for a machine with a disk on each bus, a drive without a disc, a card, a screen, and the
/// devices that libvirt itself adds.
fn drives_a_machine(session: &Session) {
    let virsh = |words: &[&str]| session.virsh(words);
    session.file("kernel", &kernel(ECHO_UNTIL_OFF));
    session.file("disk", &vec![0; 1 << 20]);
    session.file("data", &vec![0; 1 << 20]);
    let home = session.home.display();
    let devices = format!(
        "<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='{home}/disk'/>
           <target dev='hda' bus='ide'/></disk>
         <disk type='file' device='cdrom'><target dev='hdc' bus='ide'/></disk>
         <disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='{home}/data'/>
           <target dev='vda' bus='virtio'/></disk>
         <interface type='user'><model type='e1000'/></interface>
         <serial type='pty'><log file='{home}/serial'/></serial>
         <video><model type='vga'/></video>
         <graphics type='vnc' socket='{home}/vnc'/>"
    );
    session.machine("ring", &format!("<kernel>{home}/kernel</kernel>"), &devices);
    // libvirt hears of it by an event, which may be later than the end of "start".
    wait_until("the machine does not run", || {
        (virsh(&["domstate", "ring"]) == "running").then_some(())
    });
    let mut console = Console::open(session, "ring");
    console.wait_for("ring3");
    console.type_in("hello");
    console.wait_for("hello");
    // libvirt itself has opened the file, and passes the descriptor.
    let log = || fs::read_to_string(session.path("serial")).ok();
    wait_until("no copy of the serial port", || log().filter(|text| text == "ring3hello"));

    assert!(virsh(&["dominfo", "ring"]).contains(UUID));
    let disks = virsh(&["domblklist", "ring"]);
    assert!(disks.contains("/disk") && disks.contains("/data") && disks.contains("hdc"), "{disks}");
    assert!(virsh(&["dumpxml", "ring"]).contains("<console type='pty' tty='/dev/pts/"));
    assert!(virsh(&["domiflist", "ring"]).contains("e1000"));
    // libvirt adds a memory balloon. This guest has no driver for it, and so all its memory.
    assert!(virsh(&["dommemstat", "ring"]).contains("actual 131072"));
    virsh(&["setmem", "ring", "100M", "--live"]);
    assert!(virsh(&["domdisplay", "ring"]).contains("vnc"));
    assert!(virsh(&["domstats", "ring"]).contains("vcpu.current=1"));
    virsh(&["suspend", "ring"]);
    session.wait_for("ring", "paused (user)");
    virsh(&["resume", "ring"]);
    session.wait_for("ring", "running (unpaused)");
    let status = virsh(&["qemu-monitor-command", "ring", "--hmp", "info status"]);
    assert_eq!(status, "VM status: running");
    let uuid = virsh(&["qemu-monitor-command", "ring", "{\"execute\": \"query-uuid\"}"]);
    let uuid: Value = serde_json::from_str(&uuid).unwrap();
    assert_eq!(uuid["return"]["UUID"], UUID);
    assert!(virsh(&["domblkstat", "ring", "hda"]).contains("rd_bytes 0"));
    virsh(&["inject-nmi", "ring"]);
    virsh(&["send-key", "ring", "KEY_LEFTCTRL", "KEY_A"]);
    virsh(&["screenshot", "ring", session.path("screen.png").to_str().unwrap()]);
    assert!(fs::read(session.path("screen.png")).unwrap().starts_with(b"\x89PNG"));

    for how in ["reset", "reboot"] {
        virsh(&[how, "ring"]);
        console.wait_for("ring3");
        wait_until("the machine does not go on", || {
            (virsh(&["domstate", "ring"]) == "running").then_some(())
        });
    }
    virsh(&["shutdown", "ring"]);
    session.wait_for("ring", "shut off (shutdown)");
    virsh(&["start", "ring"]);
    virsh(&["destroy", "ring"]);
    session.wait_for("ring", "shut off (destroyed)");
    virsh(&["undefine", "ring"]);
}

/// Debian under libvirt, which notices by itself that the guest has ended.
fn works_in_debian(session: &Session) {
    let Some(linux) = guest::file_if_there("linux-686/vmlinuz") else { return };
    let Some(files) = guest::file_if_there("initramfs.cpio.gz") else { return };
    session.file("linux", &fs::read(linux).unwrap());
    session.file("initramfs", &fs::read(files).unwrap());
    let home = session.home.display();
    let kernel = format!(
        "<kernel>{home}/linux</kernel><initrd>{home}/initramfs</initrd><cmdline>console=ttyS0 quiet</cmdline>"
    );
    session.machine("debian", &kernel, "<serial type='pty'/>");
    let mut console = Console::open(session, "debian");
    console.wait_for(guest::PROMPT);
    console.type_in("exit\r");
    session.wait_for("debian", "shut off (shutdown)");
    session.virsh(&["undefine", "debian"]);
}
