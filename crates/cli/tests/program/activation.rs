//! systemd makes the supervisor's socket, and the first command starts the supervisor.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::supervisor::Supervised;
use crate::support::{Directory, HALT_FOR_EVER, kernel, wait_until};

#[test]
fn a_command_starts_the_supervisor_by_its_socket() {
    let activate = || Command::new("systemd-socket-activate");
    if activate().arg("--version").output().is_err() {
        ring3_skipped::package("systemd-socket-activate is missing: install the package systemd");
        return;
    }
    let directory = Directory::new();
    let halting = json!(directory.file("kernel", &kernel(HALT_FOR_EVER)));
    let configuration = format!("[machine.one]\nmemory = \"4M\"\nkernel = {halting}\n");
    directory.file("parts.toml", configuration.as_bytes());
    let run = tempfile::tempdir().unwrap();
    let place = run.path().join("r");
    fs::DirBuilder::new().mode(0o700).create(&place).unwrap();
    let start = |socket: &Path| {
        let mut command = activate();
        command.arg("--listen").arg(socket).arg(env!("CARGO_BIN_EXE_ring3"));
        command.args(["supervisor", "parts.toml", "--directory"]).arg(&place);
        command.current_dir(directory.path("")).stdin(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        wait_until("nobody listens", || socket.exists().then_some(()));
        child
    };
    let supervisor = start(&place.join("supervisor"));
    assert!(!place.join("record.json").exists(), "it runs already");
    let supervised = Supervised { directory: Directory::new(), run, supervisor };
    assert!(supervised.execute(&["query"]).contains("one"));
    supervised.reaches("one", "running");
    // Only the supervisor listens: what it starts has not got the socket.
    let descriptors = format!("/proc/{}/fd", supervised.pid("one").as_raw_nonzero());
    let of_supervisor =
        fs::read_link(format!("/proc/{}/fd/3", supervised.supervisor.id())).unwrap();
    assert!(of_supervisor.to_string_lossy().starts_with("socket:"), "{of_supervisor:?}");
    let has_it = fs::read_dir(descriptors).unwrap().any(|descriptor| {
        fs::read_link(descriptor.unwrap().path()).is_ok_and(|link| link == of_supervisor)
    });
    assert!(!has_it, "the machine has the supervisor's socket");
    supervised.execute(&["quit"]);

    // A socket elsewhere is of no use.
    let elsewhere = supervised.run.path().join("elsewhere");
    let child = start(&elsewhere);
    let _client = UnixStream::connect(&elsewhere).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let said = String::from_utf8(ended.stderr).unwrap();
    let wanted = "the socket for activation must be a stream at ";
    assert!(said.lines().any(|line| line.contains(wanted)), "{said}");
}

/// Starts a user's systemd in a control group and in namespaces of its own, where it finds the units of this tree, and
/// executes `commands` beside it.
const SYSTEMD: &str = r"
mount -t tmpfs tmpfs /run && mount -t cgroup2 cgroup2 /sys/fs/cgroup || exit 77
mkdir -p /run/systemd/system /run/user/0
chmod 700 /run/user/0
export XDG_RUNTIME_DIR=/run/user/0 XDG_CONFIG_HOME=$PWD/config
systemd --user >systemd.log 2>&1 &
manager=$!
until systemctl --user is-system-running >/dev/null 2>&1; do
    kill -0 $manager 2>/dev/null || exit 77
    sleep 0.1
done
";

/// The commands of a user. The name of the machine's process is the same in all three lines.
const COMMANDS: &str = r#"
process() { "$RING3" ctl query --json one | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p'; }
until_it() { until "$RING3" ctl query one 2>/dev/null | grep -q running; do sleep 0.1; done; }
systemctl --user -q start ring3-supervisor.socket
echo "before: $(systemctl --user is-active ring3-supervisor)"
until_it
before=$(process)
echo "then: $(systemctl --user is-active ring3-supervisor)"
supervisor=$(systemctl --user show -p MainPID --value ring3-supervisor)
kill -9 $supervisor
until test $(systemctl --user show -p NRestarts --value ring3-supervisor) = 1; do sleep 0.1; done
until_it
test $(process) = $before && echo "the machine has gone on"
systemctl --user -q stop ring3-supervisor.socket ring3-supervisor
test -e /proc/$before || echo "the machine has ended"
systemctl --user exit
wait $manager
"#;

/// The units that the package ships do in a real systemd what they should.
#[test]
fn systemd_starts_the_supervisor_and_starts_it_again() {
    let directory = Directory::new();
    let (units, ring3) = (directory.path("config/systemd/user"), env!("CARGO_BIN_EXE_ring3"));
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    fs::create_dir_all(units.join("ring3-supervisor.service.d")).unwrap();
    fs::create_dir_all(directory.path("config/ring3")).unwrap();
    for unit in ["ring3-supervisor.service", "ring3-supervisor.socket"] {
        fs::copy(packaging.join(unit), units.join(unit)).unwrap();
    }
    let program =
        format!("[Service]\nExecStart=\nExecStart={ring3} supervisor %E/ring3/machines.toml\n");
    fs::write(units.join("ring3-supervisor.service.d/program.conf"), program).unwrap();
    let halting = json!(directory.file("kernel", &kernel(HALT_FOR_EVER)));
    let machine = format!("[machine.one]\nmemory = \"4M\"\nkernel = {halting}\nstop-timeout = 0\n");
    fs::write(directory.path("config/ring3/machines.toml"), machine).unwrap();
    // systemd moves the processes of its control group, so it must be alone in one.
    let contained = "groups=$(findmnt -n -o TARGET -t cgroup2 | head -n 1); group=$groups/ring3-test-$$\n\
        test -n \"$groups\" && command -v systemd >/dev/null && mkdir $group 2>/dev/null || exit 77\n\
        bash -c 'echo $$ >\"$0\"/cgroup.procs && exec timeout 120 unshare --mount --cgroup bash -c \"$1\"' $group \"$1\"\n\
        status=$?; sleep 0.1; find $group -depth -type d -exec rmdir {} +; exit $status";
    let mut command = Command::new("bash");
    command.args(["-c", contained, "bash"]).arg(format!("{SYSTEMD}{COMMANDS}"));
    command.current_dir(directory.path("")).env("RING3", ring3).stdin(Stdio::null());
    let ended = command.output().unwrap();
    if ended.status.code() == Some(77) {
        ring3_skipped::host("no systemd can be started here in a control group of its own");
        return;
    }
    let said = String::from_utf8_lossy(&ended.stdout);
    let wanted = "before: inactive\nthen: active\nthe machine has gone on\nthe machine has ended\n";
    assert_eq!(said, wanted, "{}", String::from_utf8_lossy(&ended.stderr));
}
