//! Tries from inside each action that is forbidden, and those that are allowed. Each test uses a process of
//! its own, because rights do not come back.

use std::env;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::ptr;
use std::sync::mpsc;
use std::thread;

use libc::c_long;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, netlink, socket_with};
use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// The environment variable with the directory of a test.
const DIRECTORY: &str = "RING3_SANDBOX_DIRECTORY";

/// Runs the test `name` again in a process of its own.
fn run_inside(name: &str) {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("own")).unwrap();
    fs::write(directory.path().join("own/file"), "open").unwrap();
    fs::write(directory.path().join("secret"), "secret").unwrap();
    let test = format!("tests::{name}");
    let output = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", &test, "--nocapture"])
        .env(DIRECTORY, directory.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    if let Some((_, reason)) = said.split_once("lacks: ") {
        ring3_skipped::host(reason.lines().next().unwrap());
    }
}

fn directory() -> PathBuf {
    env::var_os(DIRECTORY).map(PathBuf::from).unwrap()
}

/// Gives up all other rights. Returns whether the host lets it.
fn enter(rights: &Rights) -> bool {
    let shortfalls = rights.keep_only();
    if let Some(shortfall) = shortfalls.first() {
        eprintln!("lacks: {shortfall}");
    }
    shortfalls.is_empty()
}

#[track_caller]
fn is_denied<T>(result: io::Result<T>) {
    let error = result.err().expect("this must be denied");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
}

fn open_socket(
    family: AddressFamily,
    kind: SocketType,
    protocol: Option<rustix::net::Protocol>,
) -> io::Result<()> {
    Ok(socket_with(family, kind, SocketFlags::CLOEXEC, protocol).map(drop)?)
}

/// Makes a system call with arguments that do nothing if it is allowed.
fn call(number: c_long, arguments: [usize; 4]) -> io::Result<c_long> {
    let [first, second, third, fourth] = arguments;
    // SAFETY: the callers pass no addresses except null.
    let result = unsafe { libc::syscall(number, first, second, third, fourth) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// System calls that no process of ring3 makes.
const NEVER: &[c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsopen,
    libc::SYS_init_module,
    libc::SYS_inotify_init1,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_mount,
    libc::SYS_move_mount,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_openat2,
    libc::SYS_perf_event_open,
    libc::SYS_personality,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_seccomp,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_setuid,
    libc::SYS_shmget,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
    libc::SYS_vmsplice,
];

#[test]
fn nothing_but_the_least_is_allowed() {
    run_inside("inside");
}

#[test]
fn named_files_and_ports_are_allowed() {
    run_inside("inside_with_files_and_ports");
}

#[test]
fn a_process_with_clients_opens_files_and_starts_no_programs() {
    run_inside("inside_with_clients");
}

/// What no process may do, whatever its rights.
fn nothing_foreign_is_allowed() {
    let executable = env::current_exe().unwrap();
    is_denied(Command::new(&executable).spawn());
    let path = CString::new(executable.into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: the path ends with a null, and null stands for no arguments. The call is denied.
    is_denied(match unsafe { libc::execv(path.as_ptr(), ptr::null()) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    });
    for process in [libc::SYS_fork, libc::SYS_vfork, libc::SYS_clone] {
        match call(process, [0; 4]) {
            Ok(0) => std::process::exit(0),
            result => is_denied(result),
        }
    }
    let error = call(libc::SYS_clone3, [0; 4]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSYS));
    is_denied(kill_process(Pid::INIT, Signal::CONT).map_err(io::Error::from));
    is_denied(call(libc::SYS_prctl, [libc::PR_SET_DUMPABLE as usize, 1, 0, 0]));
    is_denied(call(libc::SYS_ioctl, [0, libc::TIOCSTI as usize, 0, 0]));
    for number in NEVER {
        let error = call(*number, [0; 4]).expect_err("this must be denied");
        assert_eq!(error.raw_os_error(), Some(libc::EPERM), "system call {number}: {error}");
        assert!(denials().iter().any(|denial| denial.call == *number as usize), "{number}");
    }
    // x32 calls have numbers of their own.
    is_denied(call(libc::SYS_getpid | 0x4000_0000, [0; 4]));
    // Sockets that are neither of Unix nor for TCP and UDP.
    is_denied(open_socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)));
    is_denied(open_socket(AddressFamily::PACKET, SocketType::DGRAM, None));
    is_denied(open_socket(AddressFamily::VSOCK, SocketType::STREAM, None));
    is_denied(open_socket(
        AddressFamily::from_raw(libc::AF_ALG as u16),
        SocketType::SEQPACKET,
        None,
    ));
    is_denied(open_socket(AddressFamily::NETLINK, SocketType::RAW, Some(netlink::KOBJECT_UEVENT)));
    // New privileges and capabilities.
    let status = fs::read_to_string("/proc/self/status");
    if let Ok(status) = status {
        assert!(status.contains("NoNewPrivs:\t1"), "{status}");
        assert!(status.contains("Seccomp:\t2"), "{status}");
        assert!(status.contains("CapBnd") && !status.contains("CapEff:\t000001ffffffffff"));
    }
}

/// What every process may do.
fn work_goes_on() {
    let thread = thread::Builder::new().name("later".into()).spawn(|| 7).unwrap();
    assert_eq!(thread.join().unwrap(), 7);
    let memory = rustix::fs::memfd_create("memory", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memory, 4096).unwrap();
    let (one, other) = UnixStream::pair().unwrap();
    io::Write::write_all(&mut &one, b"x").unwrap();
    io::Read::read_exact(&mut &other, &mut [0]).unwrap();
    assert!(Vec::<u8>::new().try_reserve_exact(1 << 30).is_ok());
    kill_process(rustix::process::getpid(), Signal::CONT).unwrap();
}

#[test]
#[ignore = "limits its process for good; another test runs it"]
fn inside() {
    let (directory, listener) = (directory(), TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let open = File::options().read(true).write(true).open(directory.join("own/file")).unwrap();
    // A thread that exists before is restricted, too.
    let (ask, asked) = mpsc::channel::<PathBuf>();
    let earlier = thread::spawn(move || asked.into_iter().map(File::open).collect::<Vec<_>>());
    if !enter(&Rights::default()) {
        return;
    }
    ask.send(directory.join("secret")).unwrap();
    drop(ask);
    is_denied(earlier.join().unwrap().remove(0));
    nothing_foreign_is_allowed();
    let file = directory.join("own/file");
    is_denied(fs::read("/etc/passwd"));
    is_denied(fs::read(&file));
    is_denied(fs::read("/proc/self/maps"));
    is_denied(fs::read_dir("/proc/self/fd"));
    is_denied(File::options().write(true).open(&file));
    is_denied(File::create(directory.join("own/new")));
    is_denied(fs::remove_file(&file));
    is_denied(fs::rename(&file, directory.join("own/other")));
    is_denied(fs::create_dir(directory.join("own/new")));
    is_denied(std::os::unix::fs::symlink("/", directory.join("own/new")));
    is_denied(UnixStream::connect(directory.join("socket")));
    is_denied(UnixListener::bind(directory.join("own/socket")));
    is_denied(TcpStream::connect(listener.local_addr().unwrap()));
    is_denied(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    is_denied(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)));
    let before = denials();
    work_goes_on();
    std::os::unix::fs::FileExt::write_all_at(&open, b"more", 0).unwrap();
    open.sync_all().unwrap();
    assert_eq!(denials(), before);
}

#[test]
#[ignore = "limits its process for good; another test runs it"]
fn inside_with_files_and_ports() {
    let directory = directory();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
    let place = directory.join("socket");
    let _unix = UnixListener::bind(&place).unwrap();
    let rights = Rights {
        files: Files::These(vec![
            (directory.join("own"), Access::Change),
            (directory.join("secret"), Access::Read),
            (directory.join("is not there"), Access::Change),
        ]),
        tcp: Ports::These(vec![port(&listener)]),
        connects_to_unix_sockets: true,
        listens: false,
    };
    let version = landlock_version();
    if !enter(&rights) {
        return;
    }
    nothing_foreign_is_allowed();
    let before = denials();
    work_goes_on();
    fs::read(directory.join("secret")).unwrap();
    fs::write(directory.join("own/new"), "new").unwrap();
    fs::rename(directory.join("own/new"), directory.join("own/newer")).unwrap();
    assert_eq!(fs::read_dir(directory.join("own")).unwrap().count(), 2);
    fs::remove_file(directory.join("own/newer")).unwrap();
    UnixStream::connect(&place).unwrap();
    TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    // Landlock denies the others, so no system call is counted.
    is_denied(fs::read("/etc/passwd"));
    is_denied(File::options().write(true).open(directory.join("secret")));
    is_denied(fs::remove_file(directory.join("secret")));
    is_denied(File::create(directory.join("new")));
    if version >= Some(4) {
        is_denied(TcpStream::connect(other.local_addr().unwrap()));
    }
    assert_eq!(denials(), before);
    is_denied(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    is_denied(UnixListener::bind(directory.join("own/socket")));
}

#[test]
#[ignore = "limits its process for good; another test runs it"]
fn inside_with_clients() {
    let directory = directory();
    let rights = Rights {
        files: Files::Any,
        tcp: Ports::Any,
        connects_to_unix_sockets: true,
        listens: true,
    };
    if !enter(&rights) {
        return;
    }
    nothing_foreign_is_allowed();
    is_denied(fs::create_dir(directory.join("own/new")));
    is_denied(std::os::unix::fs::symlink("/", directory.join("own/new")));
    let before = denials();
    work_goes_on();
    fs::read(Path::new("/etc/passwd")).unwrap();
    fs::write(directory.join("new"), "new").unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let place = directory.join("socket");
    let _unix = UnixListener::bind(&place).unwrap();
    UnixStream::connect(&place).unwrap();
    assert_eq!(denials(), before);
}
