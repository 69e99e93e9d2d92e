//! Words that users of qemu-img, qemu-nbd, nbdkit, vde_switch, slirp4netns and other programs give to the
//! commands beside `ring3 run`.

/// Words, with options among them without their hyphens, and what to do instead.
type Words = &'static [(&'static [&'static str], &'static str)];

/// Returns the known words for the command `path`, such as `bench cpu`.
pub(super) fn words_of(path: &str) -> Words {
    match path {
        "vblock" => VBLOCK,
        "switch" => SWITCH,
        "nat" => NAT,
        "img" => IMG,
        "img create" => CREATE,
        "netmodel" => NETMODEL,
        "doctor" => DOCTOR,
        "completions" => COMPLETIONS,
        _ if path == "bench" || path.starts_with("bench ") => BENCH,
        _ => &[],
    }
}

/// All commands for which there are words.
#[cfg(test)]
pub(super) const PATHS: [&str; 9] =
    ["vblock", "switch", "nat", "img", "img create", "netmodel", "doctor", "completions", "bench"];

const FOREGROUND: &str =
    "it stays in the foreground: start it with & or by a service manager, and end it with SIGTERM";

const VBLOCK: Words = &[
    (
        &[
            "query-devices",
            "query-clients",
            "device-add",
            "device-resize",
            "device-del",
            "grant",
            "revoke",
            "client-socket-start",
            "client-socket-stop",
            "provider-start",
            "provider-stop",
            "nbd-server-start",
            "nbd-server-stop",
            "quit",
            "stop",
            "status",
            "list",
            "L",
            "add",
            "remove",
        ],
        "a running server takes commands at its socket (--control PATH): ring3 vblock ctl PATH query-devices; \"ring3 vblock ctl --help\" lists the others",
    ),
    (
        &["start", "serve", "run"],
        "leave it out: ring3 vblock --device … --client … starts the server",
    ),
    (
        &["c", "connect", "d", "disconnect", "device-map", "map"],
        "ring3 does not touch the kernel's devices: give --nbd CLIENT=PATH, and connect one with nbd-client -unix PATH /dev/nbd0",
    ),
    (&["f", "format"], "this is a property: --device disk,file=FILE,format=qcow2"),
    (&["k", "U", "unix", "socket"], "give --nbd CLIENT=PATH, such as --nbd me=nbd.sock"),
    (
        &["p", "port", "b", "bind", "i", "ipaddr", "nbd-server"],
        "give --nbd CLIENT=HOST:PORT, such as --nbd me=127.0.0.1:10809",
    ),
    (
        &["socket-path", "export", "chardev", "vhost-user-blk", "num-queues"],
        "give --client CLIENT=DEVICE:rw,socket=PATH for a machine (vhost-user), or --nbd CLIENT=ADDRESS for NBD",
    ),
    (
        &["blk-file", "file", "image", "blockdev", "drive", "disk", "filename", "hda", "plugin"],
        "give --device NAME,file=FILE, such as --device disk,file=disk.img",
    ),
    (
        &["memory", "null", "pattern", "data", "curl", "ssh", "filter"],
        "the server serves images in files, on block devices and on NBD servers (file=nbd:…)",
    ),
    (
        &["r", "R", "read-only", "readonly", "ro"],
        "give only the right to read, --client CLIENT=DEVICE:r, or --device NAME,file=FILE,readonly=on",
    ),
    (
        &["x", "export-name", "exportname", "e", "D", "description", "name"],
        "an export has the name of its device: --device NAME,file=FILE",
    ),
    (
        &["t", "persistent", "shared", "threads"],
        "leave it out: the server takes any number of clients until it is told to end",
    ),
    (&["fork", "daemon", "daemonize", "background", "pid-file", "pidfile", "P"], FOREGROUND),
    (&["monitor", "qmp"], "give --control PATH, and send commands with ring3 vblock ctl PATH"),
    (
        &["tls", "tls-creds", "tls-authz", "tls-hostname", "tls-certificates"],
        "there is no encryption: connect from other hosts through ssh -L",
    ),
    (
        &["s", "snapshot", "l", "load-snapshot", "overlay"],
        "create an image on top of it and serve that: ring3 img create -f qcow2 -b FILE NEW",
    ),
    (
        &["o", "offset", "partition"],
        "a device is a whole image, in which the client finds the partitions",
    ),
    (
        &["n", "nocache", "cache", "aio", "discard", "detect-zeroes", "image-opts"],
        "there is no such option: leave it out",
    ),
    (&["v", "verbose", "V"], "set RING3_LOG=info, or RING3_LOG=debug, in the environment"),
];

const SWITCH: Words = &[
    (
        &["s", "sock", "unix", "socket", "l"],
        "give --listen unix:PATH; machines connect with --nic stream or QEMU's -netdev stream (but vde_plug cannot)",
    ),
    (&["port", "tcp"], "give --listen 127.0.0.1:PORT"),
    (&["d", "daemon", "daemonize", "p", "pidfile"], FOREGROUND),
    (
        &["t", "tap", "tuntap", "i", "eth0", "br0", "bridge"],
        "give --uplink tap,ifname=NAME for an existing interface",
    ),
    (&["user", "slirp", "internet"], "give --uplink user to reach the outside without rights"),
    (&["n", "numports", "ports"], "leave it out: the switch has as many ports as machines"),
    (&["x", "hub"], "give --no-filter: machines then receive packets for unknown addresses"),
    (
        &["m", "mod", "mode", "g", "group", "dirmode"],
        "leave it out: only this user can reach the sockets",
    ),
    (
        &["M", "mgmt", "mgmtmode", "mgmtgroup", "f", "rcfile", "nostdin"],
        "a running switch cannot be changed; ring3 switch --status shows its ports",
    ),
    (
        &["vlan", "F", "fstp", "priority", "tag", "stp"],
        "there is no such option: one switch is one network",
    ),
    (&["mac", "macaddr", "A"], "addresses belong to cards: ring3 run --nic switch,mac=ADDRESS"),
    (
        &["start", "up", "run", "create", "add-br", "add"],
        "leave it out: \"ring3 switch\" runs a switch, and \"ring3 run --nic switch\" starts one by itself",
    ),
    (&["stop", "down", "del-br", "kill"], "SIGTERM ends the switch"),
    (&["list", "ls", "show", "ps", "info"], "give --status"),
];

const NAT: Words = &[
    (
        &[
            "p",
            "publish",
            "port",
            "ports",
            "hostfwd",
            "redir",
            "forward",
            "t",
            "u",
            "tcp-ports",
            "udp-ports",
        ],
        "this is a property: ring3 nat hostfwd=tcp::8080-:80",
    ),
    (
        &[
            "c",
            "configure",
            "mtu",
            "m",
            "netns-type",
            "userns-path",
            "config-net",
            "netns",
            "r",
            "e",
        ],
        "ring3 configures no interface: a machine connects, by ring3 run --nic user, or to --listen unix:PATH",
    ),
    (&["s", "socket", "api-socket"], "give --listen unix:PATH"),
    (&["d", "daemon", "daemonize", "P", "pid"], FOREGROUND),
    (&["cidr", "net", "n", "a", "address"], "this is a property: ring3 nat net=10.0.2.0/24"),
];

const IMG: Words = &[
    (
        &["list", "ls", "show", "stat"],
        "give info FILE for an image, and snapshot -l FILE for its snapshots",
    ),
    (
        &["delete", "rm", "remove", "del"],
        "an image is a file, which rm removes; snapshot -d NAME FILE deletes a snapshot",
    ),
    (
        &["mount", "map-device", "attach", "open", "serve", "nbd"],
        "images cannot be mounted: \"ring3 vblock\" serves one to nbd-client, and \"ring3 run --hda FILE\" gives one to a machine",
    ),
    (
        &["shrink", "grow", "expand", "extend", "enlarge"],
        "give resize FILE SIZE, with --shrink for a smaller size",
    ),
    (
        &["new", "make", "mk", "createmedium", "createhd", "allocate"],
        "give create -f qcow2 FILE SIZE",
    ),
    (
        &[
            "copy",
            "cp",
            "clone",
            "clonehd",
            "clonemedium",
            "export",
            "import",
            "convertto",
            "compress",
            "move",
            "compact",
        ],
        "give convert -O qcow2 FILE NEW (-c compresses)",
    ),
    (&["verify", "repair", "fix", "fsck", "scan"], "give check FILE, or check -r all FILE"),
    (
        &["merge", "flatten"],
        "give commit FILE, which writes an image into its backing file, or convert FILE NEW",
    ),
    (&["diff", "cmp"], "give compare FILE OTHER"),
    (&["du", "size", "df"], "give info FILE, or measure -O FORMAT FILE"),
    (
        &["encrypt", "decrypt", "passwd"],
        "encrypted images can be read, but not created; convert --object secret,… decrypts one",
    ),
    (
        &["backing", "link", "overlay"],
        "give create -f qcow2 -b FILE NEW for an image on top of another",
    ),
    (
        &["f", "F", "O", "o", "p", "q", "b", "c", "l", "t", "T", "U", "u", "format", "output"],
        "options come after the command, such as info -f raw FILE",
    ),
];

const CREATE: Words = &[
    (&["size", "s", "length"], "the size comes after the file: ring3 img create FILE SIZE"),
    (
        &["output", "out", "filename", "O", "t", "type", "variant"],
        "give ring3 img create -f FORMAT FILE SIZE",
    ),
    (&["p", "progress"], "leave it out: the command takes no time"),
];

const NETMODEL: Words = &[
    (&["json", "csv", "format", "o"], "give --output json"),
    (&["calibrate", "measure", "host"], "give --calibrate"),
    (&["size", "mtu", "packet", "packet-size", "length", "s", "l"], "give --bytes BYTES"),
    (&["machines", "nodes", "guests", "n"], "give --broadcast NUMBER"),
    (&["ghz", "cpu", "clock"], "give --frequency GHZ"),
    (&["svg", "graph", "chart"], "give --plot FILE"),
];

const DOCTOR: Words = &[
    (&["json", "format", "o", "machine-readable"], "give --output json"),
    (
        &["v", "verbose", "all", "a", "debug", "q", "quiet"],
        "leave it out: the command always shows all results",
    ),
    (
        &["fix", "repair", "install", "apply"],
        "the command changes nothing; its lines say what root could change",
    ),
    (
        &["kvm", "host", "check", "cpu", "net", "run", "list"],
        "leave it out: the command always shows all results",
    ),
];

const COMPLETIONS: Words = &[(
    &["shell", "s", "generate", "install", "bash", "zsh", "fish"],
    "give one shell, and put the output where that shell looks for completions: ring3 completions bash",
)];

const BENCH: Words = &[
    (
        &["all", "run", "list", "everything", "suite"],
        "name a benchmark: boot, idle, work, cpu, system, exits, disk or net",
    ),
    (&["io", "blk", "block", "disks", "storage", "fio"], "\"ring3 bench disk\" measures disks"),
    (
        &["memory", "mem", "ram", "compute", "coremark", "spec", "unixbench"],
        "\"ring3 bench cpu\" has programs for processor and memory; --only NAME chooses one",
    ),
    (
        &["iperf", "netperf", "latency", "bandwidth", "ping"],
        "\"ring3 bench net\" measures streams and packets",
    ),
    (
        &["vmexit", "exit", "irq", "mmio"],
        "\"ring3 bench exits\" measures the events that interrupt ordinary execution",
    ),
    (
        &["n", "c", "count", "iterations", "repeat", "times", "time", "t", "duration", "loops"],
        "give --runs TIMES after the benchmark; the results are medians",
    ),
    (
        &["output", "o", "json", "csv", "format"],
        "results are a table on standard output; --plot FILE draws those of cpu, disk and net",
    ),
    (
        &[
            "kernel",
            "disk",
            "hda",
            "cdrom",
            "iso",
            "image",
            "guest",
            "debian",
            "initrd",
            "memory-size",
            "engine",
        ],
        "the guests are those of \"make guests\": --guests DIRECTORY says where they are",
    ),
    (
        &["qemu", "compare", "no-qemu", "bochs", "v86", "native"],
        "QEMU, if installed, and the host are measured as well; --all adds other emulators",
    ),
];
