//! The command lines of parts.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::definition::{
    Console, Definition, Definitions, Device, Machine, Name, Network, OptionValue, Server, Switch,
    Vblock, Web, clients_of, providers_of,
};
use crate::launching::CHANNEL;
use crate::memory::Size;
use crate::place::{Place, client_socket, provider_socket};

/// The card by which a guest brings disks to a server, and the network behind it, which leads nowhere else. The program
/// `guest_launcher` knows them, too.
const PROVIDING: &str = "user,mac=52:54:00:64:73:6b,net=10.0.9.0/24,ipv6=off,restrict=on";
/// What in this network is the server.
const PROVIDED_TO: &str = ",guestfwd=tcp:10.0.9.100:1-unix:";

/// Returns the arguments with which the process of part `name` is started. Those of a server of disks have the rights
/// of all machines among `all`. Machines have balloons if memory is shared out (`has_budget`).
pub(crate) fn arguments(
    name: &Name,
    all: &Definitions,
    place: &Place,
    has_budget: bool,
) -> Vec<OsString> {
    let mut line = Line::default();
    match &all[name] {
        Definition::Machine(definition) => {
            machine(&mut line, name, definition, all, place, has_budget);
        }
        Definition::Server(Server::Vblock(definition)) => {
            vblock(&mut line, name, definition, all, place);
        }
        Definition::Server(Server::Switch(definition)) => {
            switch(&mut line, name, definition, place);
        }
        Definition::Server(Server::Console(definition)) => {
            console(&mut line, name, definition, place);
        }
        Definition::Server(Server::Web(definition)) => web(&mut line, name, definition, place),
    }
    line.words
}

#[derive(Default)]
struct Line {
    words: Vec<OsString>,
}

impl Line {
    fn word(&mut self, word: impl Into<OsString>) {
        self.words.push(word.into());
    }

    fn option(&mut self, option: &str, value: impl Into<OsString>) {
        self.word(option);
        self.word(value);
    }

    /// Adds an option whose value is `before`, a path, and `after`.
    fn option_with_path(&mut self, option: &str, before: &str, path: &Path, after: &str) {
        let mut value = OsString::from(before);
        value.push(path);
        value.push(after);
        self.option(option, value);
    }

    /// Adds an option of a user.
    fn given(&mut self, option: &str, value: &OptionValue) {
        match value {
            OptionValue::Flag(true) => self.word(option),
            OptionValue::Flag(false) => {}
            OptionValue::Number(number) => self.option(option, number.to_string()),
            OptionValue::Text(text) => self.option(option, text),
            OptionValue::List(values) => values.iter().for_each(|value| self.given(option, value)),
        }
    }
}

fn machine(
    line: &mut Line,
    name: &Name,
    definition: &Machine,
    all: &Definitions,
    place: &Place,
    has_budget: bool,
) {
    let own = place.part(name);
    line.word("run");
    line.word("--paused");
    line.option_with_path("--qmp", "unix:", &own.control(), "");
    for (option, value) in &definition.options {
        line.given(&format!("--{option}"), value);
    }
    let is_given = |option: &str| definition.options.contains_key(option);
    if !is_given("name") {
        line.option("--name", name.as_str());
    }
    if has_budget && !is_given("balloon") {
        line.option("--balloon", "deflate-on-oom=on");
    }
    if !is_given("serial") {
        line.option_with_path("--serial", "unix:", &own.serial(), "");
    }
    if !is_given("display") {
        line.option_with_path("--display", "vnc:unix:", &own.screen(), "");
    }
    if !is_given("sandbox") {
        // The supervisor is the only client that names files.
        line.option_with_path("--sandbox", "auto,files=", own.directory(), "");
    }
    if !definition.launches.is_empty() {
        line.option_with_path("--channel", &format!("{CHANNEL}=unix:"), &own.launcher(), "");
    }
    for disk in &definition.disk {
        let mut properties = match disk.drive_properties().as_str() {
            "" => format!(",if=virtio,id={}", disk.id()),
            given => format!(",{given}"),
        };
        let mut socket = own.disk(disk);
        if disk.is_direct() {
            properties.insert_str(0, &format!(",direct={}", disk.device));
            let client = &clients_of(&disk.server, all)[name];
            socket = client_socket(&disk.server, name, client, all, place);
        }
        line.option_with_path("--drive", "vblock=", &socket, &properties);
    }
    for (index, network) in definition.network.iter().enumerate() {
        let Network { switch, properties } = network;
        let others = &definition.network[..index];
        let has_id = network.given_id().is_some()
            || others.iter().any(|other| other.switch == *switch && other.given_id().is_none());
        let id = if has_id { String::new() } else { format!(",id={}", network.id()) };
        let comma = if properties.is_empty() { "" } else { "," };
        let after = format!(",start=off{id}{comma}{properties}");
        line.option_with_path("--nic", "switch,path=", &place.part(switch).network(), &after);
    }
    if let Some(server) = &definition.provides {
        let provider = &providers_of(server, all)[name];
        let socket = provider_socket(server, name, provider, all, place);
        let socket = doubled_commas(&socket);
        line.option_with_path("--nic", &format!("{PROVIDING}{PROVIDED_TO}"), &socket, "");
    }
}

/// Returns a path as it is written among properties.
fn doubled_commas(path: &Path) -> PathBuf {
    path.to_string_lossy().replace(',', ",,").into()
}

fn vblock(line: &mut Line, name: &Name, definition: &Vblock, all: &Definitions, place: &Place) {
    line.word("vblock");
    line.option("--control", place.part(name).control());
    for (device, Device { file, format, read_only, external_files }) in &definition.device {
        let mut value = format!("{device},file={}", file.replace(',', ",,"));
        if let Some(format) = format {
            value.push_str(",format=");
            value.push_str(format);
        }
        if *read_only {
            value += ",readonly=on";
        }
        if !external_files {
            value += ",external-files=off";
        }
        line.option("--device", value);
    }
    bandwidth(line, definition.bandwidth);
    for (client, definition) in all {
        for disk in definition.disks().iter().filter(|disk| disk.server == *name) {
            let right = format!("{client}={}:{}", disk.device, disk.access());
            if disk.is_direct() {
                line.option("--client", right);
                continue;
            }
            let before = format!("{right},socket=");
            line.option_with_path("--client", &before, &place.part(client).disk(disk), "");
        }
    }
    for (client, definition) in clients_of(name, all) {
        for right in &definition.devices {
            line.option("--client", format!("{client}={}", String::from(right.clone())));
        }
        let socket = client_socket(name, &client, &definition, all, place);
        line.option_with_path("--client-socket", &format!("{client}="), &socket, "");
    }
    for (provider, definition) in providers_of(name, all) {
        let socket = provider_socket(name, &provider, &definition, all, place);
        let clients = match definition.client_list() {
            list if list.is_empty() => list,
            list => format!(",clients={list}"),
        };
        let delay = definition.reconnect_delay.map(|delay| format!(",reconnect-delay={delay}"));
        let after = clients + &delay.unwrap_or_default();
        let (before, socket) = (format!("{provider}="), doubled_commas(&socket));
        line.option_with_path("--provider", &before, &socket, &after);
    }
}

fn bandwidth(line: &mut Line, bandwidth: Option<Size>) {
    if let Some(Size(bytes)) = bandwidth {
        line.option("--bandwidth", bytes.to_string());
    }
}

fn switch(line: &mut Line, name: &Name, definition: &Switch, place: &Place) {
    let own = place.part(name);
    line.word("switch");
    line.option_with_path("--listen", "unix:", &own.network(), "");
    line.option("--control", own.control());
    line.option("--status-socket", own.status());
    bandwidth(line, definition.bandwidth);
    for uplink in &definition.uplink {
        line.option("--uplink", uplink);
    }
    if let Some(broadcasts) = definition.broadcasts {
        line.option("--broadcasts", broadcasts.to_string());
    }
}

fn console(line: &mut Line, name: &Name, definition: &Console, place: &Place) {
    line.word("console");
    line.option("--serve", name.as_str());
    line.option("--directory", place.directory());
    if let Some(kibibytes) = definition.scroll_back {
        line.option("--scroll-back", kibibytes.to_string());
    }
}

fn web(line: &mut Line, name: &Name, definition: &Web, place: &Place) {
    let Web { address, media, token_file, .. } = definition;
    line.word("console");
    line.option("--serve", name.as_str());
    line.option("--directory", place.directory());
    line.option("--web", address);
    line.option("--token-file", token_file.clone().unwrap_or_else(|| place.part(name).token()));
    if let Some(media) = media {
        line.option("--media", media);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_are_those_that_a_user_would_type() {
        let text = "[server.disks]\nkind = \"vblock\"\ndevice.root = { file = \"a,b.img\", format = \"raw\" }\n\
            [server.lan]\nkind = \"switch\"\nuplink = [\"user\"]\nbandwidth = \"1M\"\n\
            [server.eye]\nkind = \"console\"\nscroll-back = 64\n\
            [server.page]\nkind = \"web\"\naddress = \"127.0.0.1:8080\"\nmedia = \"m\"\n\
            [machine.web]\nmemory = \"64M\"\nhda = [\"x\", \"y\"]\nsnapshot = true\nseed = 7\n\
            disk = [\"disks:root:r\"]\nnetwork = [\"lan,model=e1000\"]";
        let all = crate::definition::parse(text, Path::new("/")).unwrap();
        let place = Place::new(Some(Path::new("/run")));
        let line = |name: &str| {
            let words = arguments(&name.parse().unwrap(), &all, &place, false);
            words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            line("web"),
            "run --paused --qmp unix:/run/parts/web/control --hda x --hda y --memory 64M --seed 7 --snapshot \
             --name web --serial unix:/run/parts/web/serial --display vnc:unix:/run/parts/web/screen \
             --sandbox auto,files=/run/parts/web --drive vblock=/run/parts/web/disks:root,if=virtio,id=disk.disks.root \
             --nic switch,path=/run/parts/lan/network,start=off,id=network-lan,model=e1000"
        );
        assert_eq!(
            line("disks"),
            "vblock --control /run/parts/disks/control --device root,file=a,,b.img,format=raw \
             --client web=root:r,socket=/run/parts/web/disks:root"
        );
        assert_eq!(
            line("lan"),
            "switch --listen unix:/run/parts/lan/network --control /run/parts/lan/control \
             --status-socket /run/parts/lan/status --bandwidth 1048576 --uplink user"
        );
        assert_eq!(line("eye"), "console --serve eye --directory /run --scroll-back 64");
        assert_eq!(
            line("page"),
            "console --serve page --directory /run --web 127.0.0.1:8080 --token-file /run/parts/page/token --media m"
        );
    }

    #[test]
    fn providers_and_clients_have_sockets_at_both_ends() {
        let text = "[server.disks]\nkind = \"vblock\"\nprovider.tool = { clients = [\"b\", \"me\"], socket = \"t,1\" }\n\
            provider.a = { reconnect-delay = 5 }\nclient.me = { devices = [\"tool.x:r\"], socket = \"me\" }\n\
            [machine.a]\nprovides = \"disks\"\n\
            [machine.b]\ndisk = [\"disks:a.root\", \"disks:tool.x:rw,direct=on,if=ide\"]";
        let all = crate::definition::parse(text, Path::new("/home")).unwrap();
        let place = Place::new(Some(Path::new("/run")));
        let line = |name: &str| {
            let words = arguments(&name.parse().unwrap(), &all, &place, false);
            words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            line("disks"),
            "vblock --control /run/parts/disks/control --client b=a.root:rw,socket=/run/parts/b/disks:a.root \
             --client b=tool.x:rw --client-socket b=/run/parts/disks/client:b \
             --client me=tool.x:r --client-socket me=/home/me \
             --provider a=/run/parts/disks/provider:a,reconnect-delay=5 \
             --provider tool=/home/t,,1,clients=b:me"
        );
        let own = "--nic user,mac=52:54:00:64:73:6b,net=10.0.9.0/24,ipv6=off,restrict=on,\
                   guestfwd=tcp:10.0.9.100:1-unix:/run/parts/disks/provider:a";
        assert!(line("a").ends_with(own), "{}", line("a"));
        let own = "--drive vblock=/run/parts/b/disks:a.root,if=virtio,id=disk.disks.a.root \
                   --drive vblock=/run/parts/disks/client:b,direct=tool.x,if=ide";
        assert!(line("b").ends_with(own), "{}", line("b"));
    }
}
