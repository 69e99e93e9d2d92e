//! `ring3 doctor`: what the host permits, and which engine `--engine auto` chooses.

mod fits;

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::io;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ring3_net::hostnet::slirp::may_ping;
use ring3_sandbox::{has_seccomp, landlock_version};
use ring3_vm::{EngineChoice, EngineMaker};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::param::linux_hwcap;
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use crate::args::MemorySize;
use crate::output::Output;
use crate::status::Status;
use fits::{Machines, Verdict};

/// The options of `ring3 doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// The form of the report
    #[arg(long, value_name = "FORM", default_value = "text")]
    output: Form,

    /// Also report whether a machine with so much memory fits into this host, and what to change. The exit status says so,
    /// too
    #[arg(short, long, value_name = "SIZE")]
    memory: Option<MemorySize>,

    /// The number of such machines
    #[arg(long, value_name = "NUMBER", default_value_t = 1, requires = "memory")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: u32,

    /// The directory from whose file system the memory comes, as with "ring3 run"
    #[arg(long, value_name = "DIRECTORY", requires = "memory")]
    memory_path: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// A line for each check, for people
    Text,
    /// One object, for programs
    Json,
}

/// The bit of AT_HWCAP2 that says that processes may use FSGSBASE (Linux,
/// Documentation/arch/x86/elf_auxvec.rst).
const FSGSBASE: usize = 1 << 1;
/// Upper bound of the translator's mappings, with some for the rest of the process.
const MAPPINGS: u64 = 45_000;
/// The address space, in GiB, in which the translator has windows for several address spaces of users.
const ADDRESSES: u64 = 128;
/// Memory of the machine for which a translator is tried, in bytes.
const TRIED: u64 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// As it should be.
    Ok,
    /// ring3 runs without it, but not as well.
    Poor,
    /// There is not enough of it for the machines.
    Short,
    /// The translator cannot run without it.
    Missing,
}

/// The result of a check.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    state: State,
    /// The finding.
    found: String,
    /// Advice, if something can be done.
    advice: Option<&'static str>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Check {
        Check { name, state: State::Ok, found: found.into(), advice: None }
    }

    fn of(name: &'static str, is_there: bool, advice: &'static str) -> Check {
        if is_there {
            return Check::ok(name, "available");
        }
        Check {
            name,
            state: State::Missing,
            found: "not available".to_owned(),
            advice: Some(advice),
        }
    }
}

impl Display for Check {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Ok => "ok",
            State::Poor => "poor",
            State::Short => "short",
            State::Missing => "missing",
        };
        write!(f, "{state:8} {}: {}", self.name, self.found)?;
        self.advice.map_or(Ok(()), |advice| write!(f, "; {advice}"))
    }
}

/// All results.
#[derive(Debug, Serialize)]
struct Diagnosis {
    /// The engine that `--engine auto` chooses.
    engine: &'static str,
    /// The reason why it is not the translator.
    reason: Option<String>,
    checks: Vec<Check>,
    /// Whether the machines fit that the command line names.
    #[serde(skip_serializing_if = "Option::is_none")]
    machines: Option<Verdict>,
}

impl Display for Diagnosis {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for check in &self.checks {
            writeln!(f, "{check}")?;
        }
        if let Some(verdict) = &self.machines {
            writeln!(f, "{verdict}")?;
        }
        write!(f, "--engine auto chooses the {}", self.engine)?;
        self.reason.as_ref().map_or(Ok(()), |reason| write!(f, ": {reason}"))?;
        writeln!(f)
    }
}

/// Executes all checks, and prints the results. The status says whether the translator can run, and whether all machines
/// fit.
pub(crate) fn run(arguments: &DoctorArguments) -> io::Result<Status> {
    let mut diagnosis = diagnose();
    if let Some(MemorySize { bytes: size }) = arguments.memory {
        let machines = Machines { size, count: arguments.count };
        let (checks, verdict) = fits::check(machines, arguments.memory_path.as_deref());
        diagnosis.checks.extend(checks);
        diagnosis.machines = Some(verdict);
    }
    let text = match arguments.output {
        Form::Text => diagnosis.to_string(),
        Form::Json => serde_json::to_string_pretty(&diagnosis)? + "\n",
    };
    Output::stdout()?.write(text.as_bytes())?;
    let fits = diagnosis.machines.as_ref().is_none_or(|verdict| verdict.fits);
    Ok(if diagnosis.reason.is_none() && fits { Status::Ended } else { Status::HostError })
}

fn diagnose() -> Diagnosis {
    // A trial tells most reliably.
    let made = EngineChoice::Translator.make(TRIED);
    let reason = made.err().map(|error| error.to_string());
    let checks = vec![
        bmi2(),
        Check::of(
            "FSGSBASE",
            linux_hwcap().1 & FSGSBASE != 0,
            "needs Linux 5.9 or later, without nofsgsbase",
        ),
        memory_files(),
        executable_mappings(reason.as_deref()),
        mappings(),
        addresses(),
        user_faults(),
        Check::ok("KVM", "not needed"),
        landlock(),
        seccomp(),
        sandbox(),
        pings(),
    ];
    let engine = if reason.is_none() { "translator" } else { "interpreter" };
    Diagnosis { engine, reason, checks, machines: None }
}

/// Checks for the means that deny a process access to files.
fn landlock() -> Check {
    let name = "Landlock";
    match landlock_version() {
        Some(version) => Check::ok(name, format!("version {version}")),
        None => Check {
            name,
            state: State::Poor,
            found: "not available: machines and the NAT can use this user's files".to_owned(),
            advice: Some(
                "needs Linux 5.13 or later, with landlock in its list of security modules",
            ),
        },
    }
}

/// Checks for the means that deny a process system calls.
fn seccomp() -> Check {
    let name = "seccomp";
    if has_seccomp() {
        return Check::ok(name, "allowed");
    }
    Check {
        name,
        state: State::Poor,
        found: "not allowed: machines and the NAT can make all system calls".to_owned(),
        advice: Some("let the sandbox allow the system call seccomp"),
    }
}

/// Says what `--sandbox auto`, the default, does here.
fn sandbox() -> Check {
    let name = "machines by default (--sandbox auto)";
    let (found, state) = match (has_seccomp(), landlock_version()) {
        (true, Some(0..4)) => ("in a sandbox, except that they may use TCP", State::Poor),
        (true, Some(_)) => ("in a sandbox", State::Ok),
        (true, None) => ("in a sandbox without Landlock", State::Poor),
        (false, Some(_)) => ("in a sandbox without seccomp", State::Poor),
        (false, None) => ("with all rights of this user", State::Poor),
    };
    Check { name, state, found: found.to_owned(), advice: None }
}

/// Checks whether guests behind the NAT can ping.
fn pings() -> Check {
    let name = "ping by this user";
    if may_ping() {
        return Check::ok(name, "allowed");
    }
    Check {
        name,
        state: State::Poor,
        found: "not allowed: guests behind the NAT cannot ping hosts outside".to_owned(),
        advice: Some("set net.ipv4.ping_group_range to include one of this user's groups"),
    }
}

fn bmi2() -> Check {
    #[cfg(target_arch = "x86_64")]
    let is_there = std::arch::is_x86_feature_detected!("bmi2");
    #[cfg(not(target_arch = "x86_64"))]
    let is_there = false;
    Check::of("BMI2", is_there, "needs an x86-64 processor of 2013 (Intel) or 2015 (AMD) or later")
}

fn memory_files() -> Check {
    let name = "memory files (memfd)";
    match memfd_create(c"ring3 doctor", MemfdFlags::CLOEXEC) {
        Ok(_) => Check::ok(name, "allowed"),
        Err(error) => Check {
            name,
            state: State::Missing,
            found: format!("not allowed: {error}"),
            advice: Some("let the sandbox allow memfd_create"),
        },
    }
}

/// Reports the trial of the translator, which has failed for `reason` if there is one.
fn executable_mappings(reason: Option<&str>) -> Check {
    let name = "executable mappings";
    match reason {
        None => Check::ok(name, "allowed"),
        Some(reason) => Check {
            name,
            state: State::Missing,
            found: format!("not possible: {reason}"),
            advice: Some("see the other lines, or let the sandbox allow PROT_EXEC on memory files"),
        },
    }
}

fn mappings() -> Check {
    let name = "mappings of a process (vm.max_map_count)";
    let text = fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    let Ok(count) = text.trim().parse::<u64>() else { return Check::ok(name, "unknown") };
    let (state, advice) = if count >= MAPPINGS {
        (State::Ok, None)
    } else {
        (State::Poor, Some("sysctl vm.max_map_count=65530 makes guests faster"))
    };
    Check { name, state, found: count.to_string(), advice }
}

fn addresses() -> Check {
    let name = "addresses (ulimit -v)";
    let Some(bytes) = getrlimit(Resource::As).current else { return Check::ok(name, "unlimited") };
    let is_enough = bytes >> 30 >= ADDRESSES;
    Check {
        name,
        state: if is_enough { State::Ok } else { State::Poor },
        found: format!("{} MiB", bytes >> 20),
        advice: (!is_enough)
            .then_some("ulimit -v unlimited: address space without memory costs nothing"),
    }
}

/// Reports userfaultfd, which no engine uses so far.
fn user_faults() -> Check {
    let allowed = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    let found = match allowed.as_deref().map(str::trim) {
        Ok("1") => "allowed, not needed",
        Ok(_) => "only for privileged processes, not needed",
        Err(_) => "not available, not needed",
    };
    Check::ok("userfaultfd", found)
}
