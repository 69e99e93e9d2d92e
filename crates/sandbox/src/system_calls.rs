//! The system calls that a process may make, enforced by a seccomp filter for all threads.
//!
//! [`TABLE`] has those with any arguments; the kernel remembers that they are allowed and does not run the
//! filter for them, which is why the frequent ones have no conditions. [`Rights::conditional`] adds those
//! of which only some arguments are allowed. All others fail, among them execve, ptrace, mount, setns,
//! unshare, bpf, keyctl, process_vm_readv, open_by_handle_at, kexec_load, init_module, io_uring_setup,
//! userfaultfd and perf_event_open.

use std::io;

use libc::c_long;
use seccompiler::{SeccompAction, SeccompCondition, SeccompRule, sock_filter};

use crate::Rights;
use crate::filter::{RCVTIMEO_NEW, Result, Rules, SNDTIMEO_NEW, TYPE, has, is, program};

/// What a process must have a right to, so that it may make some calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum For {
    /// Nothing: each process may make them.
    All,
    /// To change files by their names.
    Changes,
    /// To remove files by their names.
    Removals,
    /// To connect to others.
    Connections,
    /// To listen.
    Listening,
}

/// System calls with any arguments, by what they are for.
const TABLE: &[(For, &[c_long])] = &[
    // Memory. The translator maps guest memory and the code that it makes.
    (
        For::All,
        &[
            libc::SYS_brk,
            libc::SYS_madvise,
            libc::SYS_memfd_create,
            libc::SYS_mincore,
            libc::SYS_mmap,
            libc::SYS_mprotect,
            libc::SYS_mremap,
            libc::SYS_msync,
            libc::SYS_munmap,
        ],
    ),
    // Descriptors that are open.
    (
        For::All,
        &[
            libc::SYS_close,
            libc::SYS_copy_file_range,
            libc::SYS_dup,
            libc::SYS_dup3,
            libc::SYS_fadvise64,
            libc::SYS_fallocate,
            libc::SYS_fcntl,
            libc::SYS_fdatasync,
            libc::SYS_flock,
            libc::SYS_fstat,
            libc::SYS_fstatfs,
            libc::SYS_fsync,
            libc::SYS_ftruncate,
            libc::SYS_getdents64,
            libc::SYS_lseek,
            libc::SYS_pread64,
            libc::SYS_preadv,
            libc::SYS_preadv2,
            libc::SYS_pwrite64,
            libc::SYS_pwritev,
            libc::SYS_pwritev2,
            libc::SYS_read,
            libc::SYS_readv,
            libc::SYS_sendfile,
            libc::SYS_splice,
            libc::SYS_sync_file_range,
            libc::SYS_write,
            libc::SYS_writev,
        ],
    ),
    // Sockets that are open, and pairs of them.
    (
        For::All,
        &[
            libc::SYS_accept4,
            libc::SYS_getpeername,
            libc::SYS_getsockname,
            libc::SYS_getsockopt,
            libc::SYS_recvfrom,
            libc::SYS_recvmmsg,
            libc::SYS_recvmsg,
            libc::SYS_sendmmsg,
            libc::SYS_sendmsg,
            libc::SYS_sendto,
            libc::SYS_shutdown,
        ],
    ),
    // Waiting.
    (
        For::All,
        &[
            libc::SYS_clock_getres,
            libc::SYS_clock_gettime,
            libc::SYS_clock_nanosleep,
            libc::SYS_epoll_create1,
            libc::SYS_epoll_ctl,
            libc::SYS_epoll_pwait,
            libc::SYS_eventfd2,
            libc::SYS_futex,
            libc::SYS_gettimeofday,
            libc::SYS_nanosleep,
            libc::SYS_pipe2,
            libc::SYS_ppoll,
            libc::SYS_pselect6,
            libc::SYS_restart_syscall,
            libc::SYS_timerfd_create,
            libc::SYS_timerfd_settime,
        ],
    ),
    // Threads and signals.
    (
        For::All,
        &[
            libc::SYS_exit,
            libc::SYS_exit_group,
            libc::SYS_getcpu,
            libc::SYS_getpid,
            libc::SYS_getppid,
            libc::SYS_getrandom,
            libc::SYS_getrusage,
            libc::SYS_gettid,
            libc::SYS_membarrier,
            libc::SYS_rseq,
            libc::SYS_rt_sigaction,
            libc::SYS_rt_sigprocmask,
            libc::SYS_rt_sigreturn,
            libc::SYS_sched_getaffinity,
            libc::SYS_sched_yield,
            libc::SYS_set_robust_list,
            libc::SYS_sigaltstack,
            libc::SYS_uname,
            libc::SYS_wait4,
            libc::SYS_waitid,
            libc::SYS_geteuid,
            libc::SYS_getuid,
            libc::SYS_getegid,
            libc::SYS_getgid,
        ],
    ),
    // Looking at files by their names.
    (
        For::All,
        &[
            libc::SYS_faccessat,
            libc::SYS_faccessat2,
            libc::SYS_getcwd,
            libc::SYS_newfstatat,
            libc::SYS_readlinkat,
            libc::SYS_statx,
        ],
    ),
    (
        For::Changes,
        &[
            libc::SYS_fchmod,
            libc::SYS_linkat,
            libc::SYS_openat,
            libc::SYS_renameat,
            libc::SYS_renameat2,
        ],
    ),
    (For::Removals, &[libc::SYS_unlinkat]),
    (For::Connections, &[libc::SYS_connect]),
    (For::Listening, &[libc::SYS_bind, libc::SYS_listen, libc::SYS_pidfd_getfd]),
    // Older calls of this architecture for the same purposes.
    #[cfg(target_arch = "x86_64")]
    (
        For::All,
        &[
            libc::SYS_accept,
            libc::SYS_access,
            libc::SYS_dup2,
            libc::SYS_epoll_wait,
            libc::SYS_lstat,
            libc::SYS_poll,
            libc::SYS_readlink,
            libc::SYS_select,
            libc::SYS_stat,
            libc::SYS_time,
        ],
    ),
    #[cfg(target_arch = "x86_64")]
    (For::Changes, &[libc::SYS_link, libc::SYS_open, libc::SYS_rename]),
    #[cfg(target_arch = "x86_64")]
    (For::Removals, &[libc::SYS_unlink]),
];

/// Options of sockets that are set, by their levels. Other options reach far into the kernel, for example
/// filter programs.
const SOCKET_OPTIONS: &[(i32, &[i32])] = &[
    (
        libc::SOL_SOCKET,
        &[
            libc::SO_KEEPALIVE,
            libc::SO_RCVBUF,
            libc::SO_RCVTIMEO,
            libc::SO_REUSEADDR,
            libc::SO_SNDBUF,
            libc::SO_SNDTIMEO,
            RCVTIMEO_NEW,
            SNDTIMEO_NEW,
        ],
    ),
    (
        libc::IPPROTO_TCP,
        &[
            libc::TCP_KEEPCNT,
            libc::TCP_KEEPIDLE,
            libc::TCP_KEEPINTVL,
            libc::TCP_NODELAY,
            libc::TCP_USER_TIMEOUT,
        ],
    ),
    (libc::IPPROTO_IPV6, &[libc::IPV6_V6ONLY]),
];

/// `BLKGETSIZE64` (Linux, include/uapi/linux/fs.h).
const BLKGETSIZE64: u64 = 0x8008_1272;

/// Requests of ioctl: bytes that wait, the modes and the size of a terminal, and sizes of block devices.
/// TIOCSTI, by which a process types at a terminal, is not among them.
const REQUESTS: [u64; 15] = [
    libc::FIONBIO,
    libc::FIONREAD,
    libc::TCGETS,
    libc::TCGETS2,
    libc::TCSETS,
    libc::TCSETS2,
    libc::TCSETSF,
    libc::TCSETSF2,
    libc::TCSETSW,
    libc::TCSETSW2,
    libc::TIOCGPTN,
    libc::TIOCGWINSZ,
    libc::TIOCOUTQ,
    libc::TIOCSWINSZ,
    BLKGETSIZE64,
];

/// The names of threads and of mappings, and nothing else of a process.
const PROCESS_OPTIONS: [libc::c_int; 3] = [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA];

impl Rights {
    /// Limits all threads to the system calls that these rights need.
    pub(crate) fn limit_system_calls(&self) -> std::result::Result<(), String> {
        let text = |error: &dyn std::error::Error| error.to_string();
        let denied = denied().map_err(|error| text(&error))?;
        let allow = || SeccompAction::Allow;
        let unknown = SeccompAction::Errno(libc::ENOSYS as u32);
        let refused = SeccompAction::Errno(libc::EPERM as u32);
        let filters = [
            program(Rules::from([(libc::SYS_clone3, Vec::new())]), unknown, allow()),
            new_processes().and_then(|rules| program(rules, refused, allow())),
            self.calls().and_then(|rules| program(rules, allow(), denied)),
        ];
        for filter in filters {
            let filter = filter.map_err(|error| text(&error))?;
            install(&filter).map_err(|error| text(&error))?;
        }
        Ok(())
    }

    fn may(&self, what: For) -> bool {
        match what {
            For::All => true,
            For::Changes => self.changes_files(),
            For::Removals => self.removes_files(),
            For::Connections => self.uses_tcp() || self.connects_to_unix_sockets,
            For::Listening => self.listens,
        }
    }

    /// Returns the rules for each allowed system call, one of which must hold. A call without rules is
    /// allowed with any arguments.
    fn calls(&self) -> Result<Rules> {
        let mut rules = Rules::new();
        for (_, calls) in TABLE.iter().filter(|(what, _)| self.may(*what)) {
            rules.extend(calls.iter().map(|call| (*call, Vec::new())));
        }
        // The other filters answer these.
        rules.extend(NEW.iter().map(|call| (*call, Vec::new())));
        for (call, conditions) in self.conditional()? {
            // A call that is allowed with any arguments stays so.
            if rules.get(&call).is_none_or(|rules| !rules.is_empty()) {
                rules.entry(call).or_default().push(SeccompRule::new(conditions)?);
            }
        }
        Ok(rules)
    }

    /// Returns the system calls of which only some arguments are allowed.
    fn conditional(&self) -> Result<Vec<(c_long, Vec<SeccompCondition>)>> {
        let mut allowed = Vec::new();
        let mut allow = |call, conditions| allowed.push((call, conditions));
        // Signals to itself.
        let own = u64::from(std::process::id());
        allow(libc::SYS_kill, vec![is(0, own)?]);
        allow(libc::SYS_tgkill, vec![is(0, own)?]);
        allow(libc::SYS_prlimit64, vec![is(0, 0)?, is(2, 0)?]);
        for option in PROCESS_OPTIONS {
            allow(libc::SYS_prctl, vec![is(0, option as u64)?]);
        }
        for request in REQUESTS {
            allow(libc::SYS_ioctl, vec![is(1, request)?]);
        }
        for (level, options) in SOCKET_OPTIONS {
            for option in *options {
                allow(libc::SYS_setsockopt, vec![is(1, *level as u64)?, is(2, *option as u64)?]);
            }
        }
        // Files that are only read; Landlock says which.
        let changes = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) as u64;
        allow(libc::SYS_openat, vec![has(2, changes, 0)?]);
        #[cfg(target_arch = "x86_64")]
        allow(libc::SYS_open, vec![has(1, changes, 0)?]);
        // Sockets.
        let (stream, datagram, raw) =
            (libc::SOCK_STREAM as u64, libc::SOCK_DGRAM as u64, libc::SOCK_RAW as u64);
        let unix = libc::AF_UNIX as u64;
        allow(libc::SYS_socketpair, vec![is(0, unix)?]);
        if self.connects_to_unix_sockets || self.listens {
            for kind in [stream, datagram] {
                allow(libc::SYS_socket, vec![is(0, unix)?, has(1, TYPE, kind)?]);
            }
        }
        if self.uses_tcp() || self.listens {
            // Names are looked up by UDP, after a look at the host's addresses by netlink.
            for family in [libc::AF_INET, libc::AF_INET6] {
                for kind in [stream, datagram] {
                    allow(libc::SYS_socket, vec![is(0, family as u64)?, has(1, TYPE, kind)?]);
                }
            }
            let route = vec![
                is(0, libc::AF_NETLINK as u64)?,
                has(1, TYPE, raw)?,
                is(2, libc::NETLINK_ROUTE as u64)?,
            ];
            allow(libc::SYS_socket, route);
            allow(libc::SYS_bind, vec![is(2, size_of::<libc::sockaddr_nl>() as u64)?]);
        }
        if self.listens {
            // Descriptors of this process are taken by their numbers.
            allow(libc::SYS_pidfd_open, vec![is(0, own)?]);
        }
        Ok(allowed)
    }
}

/// Calls that make threads or processes, which have filters of their own. Signals are blocked while
/// libraries make these calls, and a denied call that is counted by a signal would end the process.
///
/// glibc makes threads with clone3, whose arguments are in memory, where no filter sees them. Where the
/// call is unknown, it uses clone.
const NEW: &[c_long] = &[
    libc::SYS_clone,
    libc::SYS_clone3,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
];

/// Returns the rules for calls that make processes, not threads.
fn new_processes() -> Result<Rules> {
    let process = SeccompRule::new(vec![has(0, libc::CLONE_THREAD as u64, 0)?])?;
    Ok(Rules::from([
        (libc::SYS_clone, vec![process]),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_fork, Vec::new()),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_vfork, Vec::new()),
    ]))
}

/// Returns what happens to calls that are not allowed, after preparing for it.
fn denied() -> io::Result<SeccompAction> {
    #[cfg(target_arch = "x86_64")]
    {
        crate::denials::count()?;
        Ok(SeccompAction::Trap)
    }
    #[cfg(not(target_arch = "x86_64"))]
    Ok(SeccompAction::Errno(libc::EPERM as u32))
}

/// Makes a filter hold for all threads.
///
/// Before Linux 5.16 the kernel took a filter for a reason to forbid speculation past stores, which costs
/// all code much time and is none here: the guest's code ran in this process before, too.
fn install(filter: &[sock_filter]) -> io::Result<()> {
    let len = u16::try_from(filter.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len, filter: filter.as_ptr().cast_mut().cast() };
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    // SAFETY: the program has this length, and the kernel copies it. seccompiler's structure is the
    // kernel's own.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    };
    match result {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        thread => Err(io::Error::other(format!("thread {thread} has another filter"))),
    }
}

/// Returns whether a process may limit its system calls.
pub fn is_allowed() -> bool {
    let action = libc::SECCOMP_RET_TRAP;
    // SAFETY: the call reads one number, which exists.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action)
    };
    result == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ports;

    /// The kernel remembers of each call whether the filters allow it with any arguments, and then does not run
    /// them. So these calls cost some 40 ns more, and not several times as much.
    #[test]
    fn frequent_calls_have_no_conditions() {
        let denied = new_processes().unwrap();
        let more = Rights { tcp: Ports::Any, listens: true, ..Rights::default() };
        for rights in [Rights::default(), more] {
            let allowed = rights.calls().unwrap();
            for call in [
                libc::SYS_fdatasync,
                libc::SYS_futex,
                libc::SYS_madvise,
                libc::SYS_mmap,
                libc::SYS_mprotect,
                libc::SYS_mremap,
                libc::SYS_munmap,
                libc::SYS_ppoll,
                libc::SYS_pread64,
                libc::SYS_preadv,
                libc::SYS_pwrite64,
                libc::SYS_pwritev,
                libc::SYS_read,
                libc::SYS_recvfrom,
                libc::SYS_recvmsg,
                libc::SYS_rt_sigprocmask,
                libc::SYS_rt_sigreturn,
                libc::SYS_sendmsg,
                libc::SYS_write,
            ] {
                assert_eq!(allowed.get(&call), Some(&Vec::new()), "system call {call}");
                assert!(!denied.contains_key(&call), "system call {call}");
            }
        }
    }
}
