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
    for definition in read(EXAMPLE).unwrap().values() {
        let text = serde_json::to_string(definition).unwrap();
        assert_eq!(serde_json::from_str::<Definition>(&text).unwrap(), *definition, "{text}");
    }
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
        ("[machines.a]", "unknown field `machines`"),
        ("[machine.a]\nrestart = \"sometimes\"", "unknown variant `sometimes`"),
        ("[machine.a]\nmemory = 1.5", "data did not match"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains(reason), "{text}: {error}");
    }
}
