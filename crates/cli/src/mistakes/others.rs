//! What users of qemu-img, qemu-nbd, nbdkit, vde_switch, slirp4netns and the like give to the commands beside `ring3 run`.

/// Words, options without their hyphens among them, and what to do.
type Words = &'static [(&'static [&'static str], &'static str)];

/// What is known of words behind the command `path`, such as `bench cpu`.
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

/// All paths for which there are words.
#[cfg(test)]
pub(super) const PATHS: [&str; 9] =
    ["vblock", "switch", "nat", "img", "img create", "netmodel", "doctor", "completions", "bench"];

const FOREGROUND: &str =
    "it stays in the foreground: start it by & or a service manager, and end it by SIGTERM";

const VBLOCK: Words = &[
    (
        &[
            "query-devices",
            "query-clients",
            "device-add",
            "device-del",
            "grant",
            "revoke",
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
        "a running server is told by its socket (--control PATH): ring3 vblock ctl PATH query-devices; \"ring3 vblock ctl --help\" lists what else",
    ),
    (&["start", "serve", "run"], "leave it out: ring3 vblock --device … --client … serves"),
    (
        &["c", "connect", "d", "disconnect", "device-map", "map"],
        "the kernel's devices are not touched: serve by --nbd CLIENT=PATH, and nbd-client -unix PATH /dev/nbd0 connects one",
    ),
    (&["f", "format"], "it is a property: --device disk,file=FILE,format=qcow2"),
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
        "what is served is an image in a file, on a block device or on an NBD server (file=nbd:…)",
    ),
    (
        &["r", "R", "read-only", "readonly", "ro"],
        "give the right to read alone, --client CLIENT=DEVICE:r, or --device NAME,file=FILE,readonly=on",
    ),
    (
        &["x", "export-name", "exportname", "e", "D", "description", "name"],
        "an export is called as its device: --device NAME,file=FILE",
    ),
    (
        &["t", "persistent", "shared", "threads"],
        "leave it out: it serves as many clients as come, until it is told to end",
    ),
    (&["fork", "daemon", "daemonize", "background", "pid-file", "pidfile", "P"], FOREGROUND),
    (&["monitor", "qmp"], "give --control PATH, and tell it what to do by ring3 vblock ctl PATH"),
    (
        &["tls", "tls-creds", "tls-authz", "tls-hostname", "tls-certificates"],
        "there is no encryption: come from other hosts through ssh -L",
    ),
    (
        &["s", "snapshot", "l", "load-snapshot", "overlay"],
        "make an image upon it and serve that: ring3 img create -f qcow2 -b FILE NEW",
    ),
    (&["o", "offset", "partition"], "a device is a whole image; the client finds the partitions"),
    (
        &["n", "nocache", "cache", "aio", "discard", "detect-zeroes", "image-opts"],
        "there is nothing like it: leave it out",
    ),
    (&["v", "verbose", "V"], "set RING3_LOG=info, or RING3_LOG=debug, in the environment"),
];

const SWITCH: Words = &[
    (
        &["s", "sock", "unix", "socket", "l"],
        "give --listen unix:PATH; machines connect with --nic stream or QEMU's -netdev stream (vde_plug does not)",
    ),
    (&["port", "tcp"], "give --listen 127.0.0.1:PORT"),
    (&["d", "daemon", "daemonize", "p", "pidfile"], FOREGROUND),
    (
        &["t", "tap", "tuntap", "i", "eth0", "br0", "bridge"],
        "give --uplink tap,ifname=NAME for an interface that is there",
    ),
    (&["user", "slirp", "internet"], "give --uplink user for a way outside that needs no rights"),
    (&["n", "numports", "ports"], "leave it out: there are as many ports as machines"),
    (&["x", "hub"], "give --no-filter: machines then hear what is for addresses that nobody knows"),
    (
        &["m", "mod", "mode", "g", "group", "dirmode"],
        "leave it out: sockets are for this user alone",
    ),
    (
        &["M", "mgmt", "mgmtmode", "mgmtgroup", "f", "rcfile", "nostdin"],
        "nothing is changed while it runs; ring3 switch --status shows its ports",
    ),
    (
        &["vlan", "F", "fstp", "priority", "tag", "stp"],
        "there is nothing like it: one switch is one network",
    ),
    (&["mac", "macaddr", "A"], "cards have the addresses: ring3 run --nic switch,mac=ADDRESS"),
    (
        &["start", "up", "run", "create", "add-br", "add"],
        "leave it out: ring3 switch is one, and \"ring3 run --nic switch\" starts one by itself",
    ),
    (&["stop", "down", "del-br", "kill"], "SIGTERM ends it"),
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
        "it is a property: ring3 nat hostfwd=tcp::8080-:80",
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
        "no interface is configured: a machine connects, by ring3 run --nic user, or to --listen unix:PATH",
    ),
    (&["s", "socket", "api-socket"], "give --listen unix:PATH"),
    (&["d", "daemon", "daemonize", "P", "pid"], FOREGROUND),
    (&["cidr", "net", "n", "a", "address"], "it is a property: ring3 nat net=10.0.2.0/24"),
];

const IMG: Words = &[
    (
        &["list", "ls", "show", "stat"],
        "give info FILE for an image, and snapshot -l FILE for what it keeps",
    ),
    (
        &["delete", "rm", "remove", "del"],
        "an image is a file, which rm removes; snapshot -d NAME FILE removes a snapshot",
    ),
    (
        &["mount", "map-device", "attach", "open", "serve", "nbd"],
        "images are not mounted: \"ring3 vblock\" serves one to nbd-client, or \"ring3 run --hda FILE\" to a machine",
    ),
    (
        &["shrink", "grow", "expand", "extend", "enlarge"],
        "give resize FILE SIZE, with --shrink if it becomes smaller",
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
        "give commit FILE, which writes it into its backing file, or convert FILE NEW",
    ),
    (&["diff", "cmp"], "give compare FILE OTHER"),
    (&["du", "size", "df"], "give info FILE, or measure -O FORMAT FILE"),
    (
        &["encrypt", "decrypt", "passwd"],
        "encrypted images are read, and not made; convert --object secret,… writes one in the clear",
    ),
    (&["backing", "link", "overlay"], "give create -f qcow2 -b FILE NEW for an image upon another"),
    (
        &["f", "F", "O", "o", "p", "q", "b", "c", "l", "t", "T", "U", "u", "format", "output"],
        "options come behind the command, such as info -f raw FILE",
    ),
];

const CREATE: Words = &[
    (&["size", "s", "length"], "the size comes behind the file: ring3 img create FILE SIZE"),
    (
        &["output", "out", "filename", "O", "t", "type", "variant"],
        "give ring3 img create -f FORMAT FILE SIZE",
    ),
    (&["p", "progress"], "leave it out: it takes no time"),
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
        "leave it out: it shows all that it finds",
    ),
    (
        &["fix", "repair", "install", "apply"],
        "it changes nothing: its lines say what root could change",
    ),
    (
        &["kvm", "host", "check", "cpu", "net", "run", "list"],
        "leave it out: it shows all that it finds",
    ),
];

const COMPLETIONS: Words = &[(
    &["shell", "s", "generate", "install", "bash", "zsh", "fish"],
    "give one shell, and put what is printed where it reads it: ring3 completions bash",
)];

const BENCH: Words = &[
    (
        &["all", "run", "list", "everything", "suite"],
        "name what to measure: boot, work, cpu, exits, disk or net",
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
        "\"ring3 bench exits\" measures what leaves ordinary execution",
    ),
    (
        &["n", "c", "count", "iterations", "repeat", "times", "time", "t", "duration", "loops"],
        "give --runs TIMES behind what to measure; medians are shown",
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
        "the guests are those that make guests gets: --guests DIRECTORY says where they are",
    ),
    (
        &["qemu", "compare", "no-qemu", "bochs", "v86", "native"],
        "QEMU and the host are measured beside it where they are there; --all adds others",
    ),
];
