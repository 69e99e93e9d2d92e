//! Signals that do not belong to the runner go where they would go without it.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use ring3_hostcpu::{Layout, Runner, State, Stop};

static CAUGHT: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: libc::c_int) {
    CAUGHT.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn signals_sent_go_to_the_earlier_handler() {
    let handler = count as *const () as usize;
    // SAFETY: the handler only counts.
    unsafe {
        libc::signal(libc::SIGTRAP, handler);
        libc::signal(libc::SIGVTALRM, handler);
    }
    // SAFETY: both signals are caught.
    let raise_both = || unsafe {
        libc::raise(libc::SIGTRAP);
        libc::raise(libc::SIGVTALRM);
    };
    if let Ok(mut cpu) = Runner::new() {
        raise_both();
        assert_eq!(CAUGHT.load(Ordering::Relaxed), 2);
        // The runner's own #BP does not reach the handler.
        let (_, stop) = cpu.run(&State::at(Layout::FIXED.code.start), &[0xcc]).unwrap();
        assert_eq!(stop, Stop::Exception { vector: 3, error_code: 0, cr2: 0 });
        assert_eq!(CAUGHT.load(Ordering::Relaxed), 2);
        drop(cpu);
        raise_both();
        assert_eq!(CAUGHT.load(Ordering::Relaxed), 4);
    }
}

/// This test runs in a process of its own, which dies.
#[test]
fn a_fault_of_the_host_is_fatal() {
    const CHILD: &str = "RING3_HOSTCPU_FAULT";
    if std::env::var_os(CHILD).is_some() {
        let runner = Runner::new();
        if runner.is_ok() {
            let hole = Layout::FIXED.hole_after.start as usize;
            // SAFETY: the page is not present, and the process is supposed to die of the read.
            unsafe { std::ptr::without_provenance::<u8>(hole).read_volatile() };
        }
        std::process::exit(runner.is_ok().into());
    }
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_fault_of_the_host_is_fatal"])
        .env(CHILD, "1")
        .output()
        .unwrap()
        .status;
    assert!(status.success() || status.signal() == Some(libc::SIGSEGV), "{status}");
}
