//! The system calls that the process may make, enforced by a seccomp filter.
//!
//! They are those of libslirp and its foundations (sockets, memory, the clock, reading a file by name), and
//! those by which our own code waits for the machine. Any other call fails as one that is not permitted. So a
//! call that is missing here fails alone and does not end the network.

use libc::c_long;
use ring3_sandbox::filter::{RCVTIMEO_NEW, Result, Rules, SNDTIMEO_NEW, TYPE, has, is, program};
use seccompiler::{SeccompAction, SeccompCondition, SeccompRule, apply_filter};

use super::Sandbox;

/// System calls with any arguments.
const PLAIN: &[c_long] = &[
    // Connections.
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_listen,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_shutdown,
    // Descriptors.
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_lseek,
    libc::SYS_newfstatat,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_statx,
    libc::SYS_write,
    libc::SYS_writev,
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // The clock, and the calls that any thread needs.
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
    // Older calls of this architecture for the same purposes.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_time,
];

/// Options of sockets that libslirp sets, by their levels. Other options reach far into the kernel, for
/// example filter programs.
const SOCKET_OPTIONS: &[(i32, &[i32])] = &[
    (
        libc::SOL_SOCKET,
        &[
            libc::SO_REUSEADDR,
            libc::SO_OOBINLINE,
            libc::SO_KEEPALIVE,
            libc::SO_RCVBUF,
            libc::SO_SNDBUF,
            libc::SO_RCVTIMEO,
            libc::SO_SNDTIMEO,
            RCVTIMEO_NEW,
            SNDTIMEO_NEW,
        ],
    ),
    (libc::IPPROTO_TCP, &[libc::TCP_NODELAY]),
    (libc::IPPROTO_IP, &[libc::IP_TOS, libc::IP_TTL, libc::IP_RECVERR]),
    (
        libc::IPPROTO_IPV6,
        &[libc::IPV6_V6ONLY, libc::IPV6_UNICAST_HOPS, libc::IPV6_TCLASS, libc::IPV6_RECVERR],
    ),
];

/// Requests of ioctl. None of them is for terminals, to which standard error may lead.
const REQUESTS: [u64; 2] = [libc::FIONREAD, libc::FIONBIO];

/// Returns the rules for each allowed system call, one of which must hold. A call without rules is allowed
/// with any arguments.
fn rules(sandbox: &Sandbox) -> Result<Rules> {
    let mut rules: Rules = PLAIN.iter().map(|call| (*call, Vec::new())).collect();
    let mut allow = |call, conditions: Vec<SeccompCondition>| -> Result<()> {
        rules.entry(call).or_default().push(SeccompRule::new(conditions)?);
        Ok(())
    };
    let (stream, datagram) = (libc::SOCK_STREAM as u64, libc::SOCK_DGRAM as u64);
    for (family, ping) in
        [(libc::AF_INET, libc::IPPROTO_ICMP), (libc::AF_INET6, libc::IPPROTO_ICMPV6)]
    {
        for (kind, protocol) in [
            (stream, 0),
            (stream, libc::IPPROTO_TCP),
            (datagram, 0),
            (datagram, libc::IPPROTO_UDP),
            (datagram, ping),
        ] {
            let of = vec![is(0, family as u64)?, has(1, TYPE, kind)?, is(2, protocol as u64)?];
            allow(libc::SYS_socket, of)?;
        }
    }
    if sandbox.connects_to_unix_sockets {
        allow(libc::SYS_socket, vec![is(0, libc::AF_UNIX as u64)?, has(1, TYPE, stream)?])?;
    }
    for (level, options) in SOCKET_OPTIONS {
        for option in *options {
            let of = vec![is(1, *level as u64)?, is(2, *option as u64)?];
            allow(libc::SYS_setsockopt, of)?;
        }
    }
    for request in REQUESTS {
        allow(libc::SYS_ioctl, vec![is(1, request)?])?;
    }
    // Memory is never executable, and files are opened only for reading.
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        allow(call, vec![has(2, libc::PROT_EXEC as u64, 0)?])?;
    }
    let changes = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) as u64;
    allow(libc::SYS_openat, vec![has(2, changes, 0)?])?;
    #[cfg(target_arch = "x86_64")]
    allow(libc::SYS_open, vec![has(1, changes, 0)?])?;
    Ok(rules)
}

/// Limits this thread to these system calls.
pub(super) fn limit(sandbox: &Sandbox) -> std::result::Result<(), String> {
    let denied = SeccompAction::Errno(libc::EPERM as u32);
    let program = rules(sandbox).and_then(|rules| program(rules, SeccompAction::Allow, denied));
    let program = program.map_err(|error| error.to_string())?;
    apply_filter(&program).map_err(|error| error.to_string())
}
