//! Tries from inside the sandbox each action that it forbids. Each test uses a process of its own, because
//! limits cannot be lifted again.

use std::env;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::thread;

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, netlink, socket_with};
use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// The environment variable with the directory whose files may be read.
const DIRECTORY: &str = "RING3_SANDBOX_DIRECTORY";

/// Runs the test `name` again in a process of its own.
fn run_inside(name: &str) {
    let directory = env::temp_dir().join(format!("ring3-sandbox-{}-{name}", std::process::id()));
    fs::create_dir_all(directory.join("readable")).unwrap();
    fs::write(directory.join("readable/file"), "open").unwrap();
    fs::write(directory.join("secret"), "secret").unwrap();
    let test = format!("sandbox::tests::{name}");
    let output = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", &test, "--nocapture"])
        .env(DIRECTORY, &directory)
        .output()
        .unwrap();
    fs::remove_dir_all(&directory).unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
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

#[test]
fn unneeded_rights_are_denied() {
    run_inside("inside");
}

#[test]
fn unix_sockets_are_allowed_only_where_they_are_needed() {
    run_inside("inside_with_unix_sockets");
}

#[test]
#[ignore = "limits its process for good; another test runs it"]
fn inside() {
    let directory = env::var_os(DIRECTORY).map(PathBuf::from).unwrap();
    let readable = vec![directory.join("readable"), directory.join("is not there")];
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let place = listener.local_addr().unwrap();
    let executable = env::current_exe().unwrap();
    let shortfalls = Sandbox { readable, connects_to_unix_sockets: false }.enter();
    let lacks = |what: &str| shortfalls.iter().any(|shortfall| shortfall.mechanism == what);
    if lacks("seccomp") {
        return eprintln!("skipped: {shortfalls:?}");
    }
    // Programs and processes.
    is_denied(Command::new(&executable).spawn());
    is_denied(thread::Builder::new().spawn(|| ()));
    is_denied(kill_process(Pid::INIT, Signal::CONT).map_err(io::Error::from));
    let trace = || {
        // SAFETY: the call only allows the parent to trace this process, and is denied.
        let result = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    is_denied(trace());
    // Executable memory.
    let map = || {
        // SAFETY: the kernel chooses the address of this memory, which is not used.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_EXEC,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    is_denied(map());
    // Files.
    is_denied(File::create(directory.join("readable/new")));
    is_denied(File::options().write(true).open(directory.join("readable/file")));
    is_denied(fs::remove_file(directory.join("readable/file")));
    is_denied(fs::create_dir(directory.join("readable/new")));
    is_denied(fs::read_dir("/proc/self/fd"));
    assert_eq!(fs::read(directory.join("readable/file")).unwrap(), b"open");
    if !lacks("Landlock") {
        is_denied(fs::read(directory.join("secret")));
        is_denied(fs::read("/etc/passwd"));
        is_denied(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    }
    // Sockets that are neither TCP nor UDP nor ping.
    is_denied(UnixStream::connect(directory.join("secret")));
    is_denied(UnixStream::pair());
    is_denied(open_socket(AddressFamily::UNIX, SocketType::DGRAM, None));
    is_denied(open_socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)));
    is_denied(open_socket(AddressFamily::NETLINK, SocketType::RAW, Some(netlink::KOBJECT_UEVENT)));
    is_denied(open_socket(AddressFamily::PACKET, SocketType::DGRAM, None));
    // A filter program, which the kernel would run for a socket.
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let attach = || {
        use std::os::fd::AsRawFd;
        let program = libc::sock_fprog { len: 0, filter: std::ptr::null_mut() };
        let len = size_of_val(&program) as libc::socklen_t;
        let program = (&raw const program).cast();
        let (level, option) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
        // SAFETY: the structure exists and has this length.
        let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, program, len) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    is_denied(attach());
    // The calls that a network behind NAT needs are allowed.
    socket.set_ttl(7).unwrap();
    socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
    assert_eq!(socket.recv(&mut [0; 2]).unwrap(), 1);
    let client = TcpStream::connect(place).unwrap();
    client.set_nodelay(true).unwrap();
    let (server, _) = listener.accept().unwrap();
    server.set_nonblocking(true).unwrap();
    assert_eq!(server.peek(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(open_socket(AddressFamily::INET6, SocketType::STREAM, None));
    // Memory is bounded.
    assert!(Vec::<u8>::new().try_reserve_exact(2 << 30).is_err());
}

#[test]
#[ignore = "limits its process for good; another test runs it"]
fn inside_with_unix_sockets() {
    let directory = env::var_os(DIRECTORY).map(PathBuf::from).unwrap();
    let path = directory.join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let shortfalls = Sandbox { readable: vec![], connects_to_unix_sockets: true }.enter();
    UnixStream::connect(&path).unwrap();
    listener.accept().unwrap();
    if !shortfalls.iter().any(|shortfall| shortfall.mechanism == "seccomp") {
        is_denied(open_socket(AddressFamily::UNIX, SocketType::DGRAM, None));
    }
    if shortfalls.is_empty() {
        is_denied(fs::read(Path::new("/etc/passwd")));
    }
}
