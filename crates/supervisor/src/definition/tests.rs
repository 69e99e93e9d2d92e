use super::*;

const EXAMPLE: &str = r#"
[server.disks]
kind = "vblock"
device.root = { file = "root.qcow2", format = "qcow2" }
device.usr = { file = "usr.raw", read-only = true }

[server.lan]
kind = "switch"
uplink = ["user,hostfwd=tcp::2222-10.0.2.15:22"]
restart = "always"

[machine.web]
memory = "512M"
cpu = "qemu64"
no-external-files = true
initrd = ["one", "two"]
seed = 7
disk = ["disks:root,if=virtio", "disks:usr:r"]
network = ["lan,model=e1000"]
start = false
"#;

fn read(text: &str) -> Result<Definitions, String> {
    parse(text, Path::new("/etc/ring3"))
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

#[test]
fn a_file_defines_machines_and_servers() {
    let all = read(EXAMPLE).unwrap();
    assert_eq!(all.keys().map(Name::as_str).collect::<Vec<_>>(), ["disks", "lan", "web"]);
    let Definition::Machine(web) = &all[&name("web")] else { panic!("{all:?}") };
    assert_eq!(web.disk.iter().map(|disk| disk.is_writable).collect::<Vec<_>>(), [true, false]);
    assert_eq!((web.start, web.stop_timeout), (false, 30));
    assert_eq!(web.common.directory.as_deref(), Some(Path::new("/etc/ring3")));
    let needs = all[&name("web")].needs();
    assert_eq!(needs.iter().map(Name::as_str).collect::<Vec<_>>(), ["disks", "lan"]);
    assert_eq!(all[&name("lan")].common().restart, Restart::Always);
}

#[test]
fn definitions_are_the_same_after_being_written_and_read() {
    for definition in read(EXAMPLE).unwrap().values().chain(read(PROVIDERS).unwrap().values()) {
        let text = serde_json::to_string(definition).unwrap();
        assert_eq!(serde_json::from_str::<Definition>(&text).unwrap(), *definition, "{text}");
    }
}

const PROVIDERS: &str = r#"
[server.disks]
kind = "vblock"
provider.tool = { clients = ["b", "me"], reconnect-delay = 5, socket = "t" }
client.me = { devices = ["tool.x:r", "a.y"] }

[machine.a]
provides = "disks"

[machine.b]
disk = ["disks:a.root", "disks:tool.x:rw,direct=on"]
"#;

#[test]
fn disks_are_those_of_providers() {
    let all = read(PROVIDERS).unwrap();
    let names = |set: BTreeSet<Name>| set.into_iter().map(String::from).collect::<Vec<_>>();
    let b = &all[&name("b")];
    assert_eq!(
        (names(b.needs()), names(b.leans_on(&all))),
        (vec!["disks".into()], vec!["a".into(), "disks".into()])
    );
    let providers = providers_of(&name("disks"), &all);
    assert_eq!(providers.keys().map(Name::as_str).collect::<Vec<_>>(), ["a", "tool"]);
    assert_eq!(providers[&name("tool")].reconnect_delay, Some(5));
    let clients = clients_of(&name("disks"), &all);
    assert_eq!(clients.keys().map(Name::as_str).collect::<Vec<_>>(), ["b", "me"]);
    // The last dot ends the provider's name.
    let disk: Disk = "disks:a.b.root:r,direct=on,if=ide".parse().unwrap();
    assert_eq!((disk.provider(), disk.is_direct()), (Some(name("a.b")), true));
    assert_eq!(
        (disk.drive_properties(), String::from(disk)),
        ("if=ide".into(), "disks:a.b.root:r,direct=on,if=ide".into())
    );
}

#[test]
fn mistakes_are_explained() {
    for (text, reason) in [
        ("[machine.web]\ndisk = [\"disks:root\"]", "\"web\" needs \"disks\", which is not defined"),
        ("[machine.a]\nneeds = [\"b\"]\n[machine.b]\nneeds = [\"a\"]", "\"a\" needs itself"),
        ("[machine.a]\nneeds = [\"a\"]", "\"a\" needs itself"),
        (
            "[machine.a]\n[server.a]\nkind = \"switch\"",
            "\"a\" is the name of a machine and of a server",
        ),
        ("[machine.\"-x\"]", "\"-x\" is not a name"),
        ("[machine.\"../x\"]", "\"../x\" is not a name"),
        ("[machine.a]\nqmp = \"unix:x\"", "gives machines the option \"qmp\""),
        ("[machine.a]\ndisk = [\"disks\"]", "is not SERVER:DEVICE"),
        ("[machine.a]\ndisk = [\"disks:a:w\"]", "is not SERVER:DEVICE"),
        ("[server.s]\nkind = \"vblock\"\n[machine.a]\ndisk = [\"s:x\"]", "has no device \"x\""),
        (
            "[server.s]\nkind = \"switch\"\n[machine.a]\ndisk = [\"s:x\"]",
            "is not a server of disks",
        ),
        ("[server.s]\nkind = \"vblock\"\n[machine.a]\nnetwork = [\"s\"]", "is not a switch"),
        ("[server.s]\nkind = \"vblock\"\ndevices = 1", "has a key \"devices\""),
        ("[server.s]\nkind = \"video\"", "unknown variant `video`"),
        (
            "[server.s]\nkind = \"vblock\"\ndevice.x = { file = \"x\" }\n[machine.a]\ndisk = [\"s:x\", \"s:x:r\"]",
            "\"a\" has this disk already: s:x",
        ),
        ("[server.s]", "missing field `kind`"),
        (
            "[server.s]\nkind = \"vblock\"\nprovider.p = { clients = [\"x\"] }",
            "the provider \"p\" of \"s\" names the client \"x\", which is neither",
        ),
        (
            "[server.s]\nkind = \"vblock\"\nprovider.p = { client = \"x\" }",
            "unknown field `client`",
        ),
        ("[server.s]\nkind = \"vblock\"\nprovider.p = { reconnect-delay = -1 }", "invalid value"),
        ("[server.s]\nkind = \"vblock\"\nprovider.\"a/b\" = {}", "is not a name"),
        ("[server.s]\nkind = \"vblock\"\nclient.c = { devices = [\"x\"] }", "has no device \"x\""),
        (
            "[server.s]\nkind = \"vblock\"\nclient.c = { devices = [\"x:w\"] }",
            "\"x:w\" is not DEVICE",
        ),
        (
            "[server.s]\nkind = \"vblock\"\ndevice.d = { file = \"x\" }\nclient.m = { devices = [\"d\"] }\n[machine.m]",
            "\"m\" is a machine: name its disks in its own definition",
        ),
        ("[server.s]\nkind = \"switch\"\nprovider.p = {}", "data did not match"),
        ("[machine.a]\nprovides = \"s\"", "\"a\" needs \"s\", which is not defined"),
        (
            "[server.s]\nkind = \"switch\"\n[machine.a]\nprovides = \"s\"",
            "\"s\" is not a server of disks",
        ),
        (
            "[server.s]\nkind = \"vblock\"\n[machine.a]\n[machine.b]\ndisk = [\"s:a.x\"]",
            "has no device \"a.x\"",
        ),
        (
            "[server.s]\nkind = \"vblock\"\n[machine.a]\nprovides = \"s\"\ndisk = [\"s:a.x\"]",
            "\"a\" needs itself",
        ),
        ("[machines.a]", "unknown field `machines`"),
        ("[machine.a]\nrestart = \"sometimes\"", "unknown variant `sometimes`"),
        ("[machine.a]\nmemory = 1.5", "data did not match"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains(reason), "{text}: {error}");
    }
}
