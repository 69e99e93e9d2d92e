//! The commands of QMP and their effects.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ring3_core::disk::{DiskError, Medium, SECTOR_SIZE};
use ring3_core::display::Picture;
use ring3_vm::Control;
use ring3_vm::control::{CpuTime, DriveInfo, LinkError, Status};
use ring3_vm::drives::{Cache, DetectZeroes, Limits};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::characters::{Characters, Chardevs};
use crate::debuggers::Debuggers;
use crate::dumps::Dumps;
use crate::moving::Mover;
use crate::networks::{Netdevs, Networks};
use crate::news::News;
use crate::nodes::Nodes;
use crate::pointer::{Axis, Button, Pointer, PointerEvent};
use crate::protocol::{self, Arguments, Asked, Command, Failure, read};
use crate::screendump;
use crate::typist::{KeyValue, Step, Typist, chord};
use crate::{
    balloon, block_stats, capture, cards, characters, dumps, extra_memory, inspect, limits, media,
    memory, monitor, moving, networks, nodes, probe, qom, schema, snapshots, usage,
};

/// The function of a command. It takes the machine and the arguments, and returns the command's result.
type Handler = fn(&Machine, Arguments) -> Result<Value, Failure>;

/// The commands, except `qmp_capabilities`, which belongs to the session.
const COMMANDS: &[(&str, Handler)] = &[
    ("balloon", balloon::set),
    ("block_resize", media::resize),
    ("block_set_io_throttle", limits::set),
    ("blockdev-add", nodes::add),
    ("blockdev-change-medium", media::change),
    ("blockdev-del", nodes::remove),
    ("change", media::change_by_target),
    ("chardev-add", characters::add),
    ("chardev-remove", characters::remove),
    ("cont", |machine, arguments| {
        none(arguments)?;
        if machine.control.status() == Status::Off {
            let reason = "the guest has switched the machine off: reset it first (system_reset)";
            return Err(Failure::generic(reason));
        }
        moving::come_back(machine)?;
        machine.control.resume()?;
        done()
    }),
    ("device-list-properties", qom::device_properties),
    ("device_add", cards::add),
    ("device_del", cards::remove),
    ("dump-guest-memory", dumps::dump),
    ("eject", media::eject),
    ("human-monitor-command", human_monitor_command),
    ("inject-nmi", |machine, arguments| {
        none(arguments)?;
        machine.control.inject_nmi();
        done()
    }),
    ("input-send-event", input_send_event),
    ("memsave", |machine, arguments| save_memory(machine, arguments, true)),
    ("migrate", moving::migrate),
    ("migrate-set-capabilities", moving::set_capabilities),
    ("migrate-set-parameters", moving::set_parameters),
    ("migrate_cancel", moving::cancel),
    ("netdev_add", networks::add),
    ("netdev_del", networks::remove),
    ("pmemsave", |machine, arguments| save_memory(machine, arguments, false)),
    ("qom-get", qom::get),
    ("qom-list", qom::list),
    ("qom-list-properties", qom::type_properties),
    ("qom-list-types", qom::list_types),
    ("qom-set", qom::set),
    ("query-balloon", balloon::query),
    ("query-block", |machine, arguments| {
        none(arguments)?;
        Ok(machine.control.drives()?.iter().map(block_info).collect())
    }),
    ("query-block-jobs", probe::no_list),
    ("query-blockstats", block_stats::query),
    ("query-chardev", probe::characters),
    ("query-chardev-backends", probe::character_backends),
    ("query-command-line-options", probe::command_line_options),
    ("query-commands", |_, arguments| {
        none(arguments)?;
        Ok(names().map(|name| json!({"name": name})).collect())
    }),
    ("query-cpu-definitions", probe::processors),
    ("query-cpu-model-expansion", probe::expand_processor),
    ("query-cpus-fast", query_processors),
    ("query-current-machine", probe::current_machine),
    ("query-dump", dumps::query),
    ("query-dump-guest-memory-capability", dumps::capability),
    ("query-events", probe::events),
    ("query-fdsets", probe::no_list),
    ("query-hotpluggable-cpus", probe::pluggable_processors),
    ("query-iothreads", probe::no_list),
    ("query-jobs", probe::no_list),
    ("query-kvm", |_, arguments| {
        none(arguments)?;
        Ok(json!({"enabled": false, "present": false}))
    }),
    ("query-machines", probe::machines),
    ("query-memory-devices", extra_memory::query),
    ("query-memory-size-summary", extra_memory::summary),
    ("query-mice", probe::mice),
    ("query-migrate", moving::query),
    ("query-migrate-capabilities", moving::capabilities),
    ("query-migrate-parameters", moving::parameters),
    ("query-name", |machine, arguments| {
        none(arguments)?;
        Ok(machine.facts.name.as_ref().map_or(json!({}), |name| json!({"name": name})))
    }),
    ("query-named-block-nodes", nodes::query),
    ("query-pci", probe::pci),
    ("query-qmp-schema", schema::query),
    ("query-replay", probe::replay),
    ("query-rx-filter", probe::filters),
    ("query-stats", query_stats),
    ("query-status", query_status),
    ("query-target", probe::target),
    ("query-tpm", probe::no_list),
    ("query-tpm-models", probe::no_list),
    ("query-tpm-types", probe::no_list),
    ("query-uuid", probe::uuid),
    ("query-vnc", probe::vnc),
    ("query-vnc-servers", probe::vnc_servers),
    ("query-version", |_, arguments| {
        none(arguments)?;
        Ok(protocol::version())
    }),
    ("quit", |machine, arguments| {
        none(arguments)?;
        machine.asked.quit.store(true, Ordering::Relaxed);
        machine.control.quit();
        done()
    }),
    ("record-save", snapshots::save_last),
    ("screendump", screendump::screendump),
    ("send-key", send_key),
    ("set_link", set_link),
    ("snapshot-delete", snapshots::delete),
    ("snapshot-load", snapshots::load),
    ("snapshot-save", snapshots::save),
    ("stop", |machine, arguments| {
        none(arguments)?;
        machine.control.pause()?;
        done()
    }),
    ("system_powerdown", |machine, arguments| {
        none(arguments)?;
        machine.control.press_power_button();
        done()
    }),
    ("system_reset", |machine, arguments| {
        none(arguments)?;
        machine.asked.reset.store(true, Ordering::Relaxed);
        machine.control.reset();
        done()
    }),
    ("x-ring3-capture", capture::capture),
    ("x-ring3-cpu", |machine, arguments| {
        none(arguments)?;
        let CpuTime { used_nanos, rests, percent } = machine.control.cpu_time()?;
        Ok(json!({"used-nanos": used_nanos, "rests": rests, "percent": percent}))
    }),
    ("x-ring3-inspect", inspect::inspect),
    ("x-ring3-limit-cpu", |machine, arguments| {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Limit {
            percent: Option<f64>,
        }
        let Limit { percent } = read(arguments)?;
        if percent.is_some_and(|percent| percent <= 0.0) {
            return Err(Failure::generic("Parameter 'percent' expects a number above 0"));
        }
        machine.control.limit_cpu(percent)?;
        done()
    }),
    ("x-ring3-limit-memory", memory::limit),
    ("x-ring3-memory", memory::query),
    ("x-ring3-resize-memory", extra_memory::resize),
    ("x-ring3-screen", screendump::screen),
    ("x-ring3-usage", usage::query),
];

/// The command that negotiates capabilities; see the session.
pub(crate) const CAPABILITIES: &str = "qmp_capabilities";

/// Returns the names of all commands.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    COMMANDS.iter().map(|(name, _)| *name).chain([CAPABILITIES])
}

/// Facts about a machine that tools ask for and that the machine itself does not know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Its name for people.
    pub name: Option<String>,
    /// Its identity.
    pub uuid: Option<[u8; 16]>,
    /// The other ends of its serial ports and monitors.
    pub characters: Vec<CharacterInfo>,
    /// The address at which its screen is served.
    pub screen: Option<String>,
}

/// The other end of a serial port or monitor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CharacterInfo {
    /// Its name for people.
    pub label: String,
    /// The file, socket or terminal.
    pub place: String,
}

/// The machine, as the commands see it.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) control: Control,
    facts: Facts,
    typist: Typist,
    pointer: Mutex<Pointer>,
    asked: Asked,
    nodes: Mutex<Nodes>,
    netdevs: Mutex<Netdevs>,
    networks: OnceLock<Arc<dyn Networks>>,
    chardevs: Mutex<Chardevs>,
    characters: OnceLock<Arc<dyn Characters>>,
    debuggers: Arc<Debuggers>,
    dumps: Arc<Dumps>,
    news: News,
    mover: Mover,
}

impl Machine {
    /// Makes the machine behind `control`. Events that commands cause later go to `news`.
    pub(crate) fn new(control: Control, facts: Facts, news: News) -> io::Result<Machine> {
        Ok(Machine {
            typist: Typist::new(control.clone())?,
            control,
            facts,
            pointer: Mutex::default(),
            asked: Asked::default(),
            nodes: Mutex::default(),
            netdevs: Mutex::default(),
            networks: OnceLock::new(),
            chardevs: Mutex::default(),
            characters: OnceLock::new(),
            debuggers: Arc::default(),
            dumps: Arc::default(),
            mover: Mover::new(news.clone()),
            news,
        })
    }

    /// Executes `command`.
    pub(crate) fn execute(&self, command: Command) -> Result<Value, Failure> {
        let Command { name, arguments, .. } = command;
        moving::check_arrival(self, &name)?;
        if let Some((_, handler)) = COMMANDS.iter().find(|(known, _)| *known == name) {
            handler(self, arguments)
        } else {
            let description = format!("The command {name} has not been found");
            Err(Failure::command_not_found(description))
        }
    }

    /// Returns the server for debuggers.
    pub(crate) fn debuggers(&self) -> &Arc<Debuggers> {
        &self.debuggers
    }

    /// Returns the machine's departure.
    pub(crate) fn mover(&self) -> &Mover {
        &self.mover
    }

    /// Returns the block nodes of clients.
    pub(crate) fn nodes(&self) -> MutexGuard<'_, Nodes> {
        // A thread that panicked has left the nodes consistent.
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the networks of clients.
    pub(crate) fn netdevs(&self) -> MutexGuard<'_, Netdevs> {
        self.netdevs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the maker of the networks of clients, if there is one.
    pub(crate) fn networks(&self) -> Option<&Arc<dyn Networks>> {
        self.networks.get()
    }

    /// Sets the maker of the networks of clients, unless there is one.
    pub(crate) fn make_networks_by(&self, maker: Arc<dyn Networks>) {
        let _: Result<(), _> = self.networks.set(maker);
    }

    /// Returns the character devices of clients.
    pub(crate) fn chardevs(&self) -> MutexGuard<'_, Chardevs> {
        self.chardevs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the maker of the character devices of clients, if there is one.
    pub(crate) fn characters(&self) -> Option<&Arc<dyn Characters>> {
        self.characters.get()
    }

    /// Sets the maker of the character devices of clients, unless there is one.
    pub(crate) fn make_characters_by(&self, maker: Arc<dyn Characters>) {
        let _: Result<(), _> = self.characters.set(maker);
    }

    /// Returns the labels and places of all character devices.
    pub(crate) fn all_characters(&self) -> Vec<(String, String)> {
        let known = self.facts.characters.iter();
        let known = known.map(|known| (known.label.clone(), known.place.clone()));
        let chardevs = self.chardevs();
        let later = chardevs.all().map(|(id, place)| (id.to_owned(), place.to_owned()));
        known.chain(later).collect()
    }

    /// Returns the facts that the machine itself does not know.
    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Returns the thread that types.
    pub(crate) fn typist(&self) -> &Typist {
        &self.typist
    }

    /// Returns the dump that was last begun.
    pub(crate) fn dumps(&self) -> &Arc<Dumps> {
        &self.dumps
    }

    /// Returns where events go that a command causes later.
    pub(crate) fn news(&self) -> News {
        self.news.clone()
    }

    /// Returns the events that clients have asked for.
    pub(crate) fn asked(&self) -> &Asked {
        &self.asked
    }
}

/// Checks the arguments of a command that takes none.
pub(crate) fn none(arguments: Arguments) -> Result<(), Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nothing {}
    let Nothing {} = read(arguments)?;
    Ok(())
}

/// Makes the result of a command that returns nothing.
#[expect(clippy::unnecessary_wraps, reason = "what handlers return")]
pub(crate) fn done() -> Result<Value, Failure> {
    Ok(json!({}))
}

fn query_status(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    none(arguments)?;
    let status = machine.control.status();
    let name = match status {
        Status::Running => "running",
        Status::Paused => "paused",
        Status::Stopped | Status::Starved | Status::WithoutDisks => "io-error",
        Status::Panicked => "guest-panicked",
        Status::Arriving => "inmigrate",
        Status::Moved => "postmigrate",
        Status::Off | Status::Ended => "shutdown",
    };
    Ok(json!({"running": status == Status::Running, "status": name}))
}

/// The provider of the statistics.
const PROVIDER: &str = "ring3";

/// Returns the counters of the machine, and those of each network card, with the card's path. Drives have theirs in
/// `query-blockstats`. QEMU's own counters belong to KVM; these have a provider of their own. The names of the
/// engine's counters begin with the engine's name.
fn query_stats(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(PartialEq, Eq, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Target {
        Vm,
        Vcpu,
        Cryptodev,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Which {
        target: Target,
        providers: Option<Vec<Wanted>>,
        #[serde(default, rename = "vcpus")]
        _vcpus: Vec<String>,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Wanted {
        provider: String,
        names: Option<Vec<String>>,
    }
    let Which { target, providers, .. } = read(arguments)?;
    if target != Target::Vm {
        return Ok(json!([]));
    }
    // None means all names.
    let wanted = match providers {
        None => None,
        Some(providers) => {
            let ours = providers.into_iter().find(|wanted| wanted.provider == PROVIDER);
            let Some(Wanted { names, .. }) = ours else { return Ok(json!([])) };
            names
        }
    };
    let stats = machine.control.stats()?;
    let of_engine = stats.engine.iter().map(|(name, value)| (program_name("engine", name), *value));
    let of_machine = stats.counters().into_iter().map(|(name, value)| (name.to_owned(), value));
    let activities = stats.activities().into_iter();
    let activities = activities.map(|(name, nanos)| (program_name("activity", &name), nanos));
    let of_machine = of_machine.chain(activities);
    let counter = |(name, value)| json!({"name": name, "value": value});
    let is_wanted = |(name, _): &(String, u64)| {
        wanted.as_ref().is_none_or(|wanted: &Vec<String>| wanted.contains(name))
    };
    let counters: Vec<_> = of_machine.chain(of_engine).filter(is_wanted).map(counter).collect();
    let of_cards = stats.cards.iter().map(|(name, counts)| {
        let directions = [("sent", counts.sent), ("received", counts.received)];
        let counters = directions.into_iter().flat_map(|(direction, of)| {
            let all = [("packets", of.packets), ("bytes", of.bytes), ("time", of.nanos)];
            all.map(|(what, value)| (format!("{direction}-{what}"), value))
        });
        let counters: Vec<_> = counters.filter(is_wanted).map(counter).collect();
        let path = format!("/machine/peripheral/{name}");
        json!({"provider": PROVIDER, "qom-path": path, "stats": counters})
    });
    let of_machine = json!({"provider": PROVIDER, "stats": counters});
    Ok([of_machine].into_iter().chain(of_cards).collect())
}

/// Returns a counter's name for programs, after a prefix that says of what it is.
fn program_name(prefix: &str, name: &str) -> String {
    format!("{prefix}-{}", name.replace(' ', "-").replace(['\'', ','], ""))
}

/// Executes a line of the monitor for people.
fn human_monitor_command(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "kebab-case")]
    struct Line {
        command_line: String,
        #[serde(default, rename = "cpu-index")]
        _cpu_index: u32,
    }
    let Line { command_line, .. } = read(arguments)?;
    // A person's terminal expects these ends of lines.
    Ok(json!(monitor::execute(machine, &command_line).replace('\n', "\r\n")))
}

/// Writes guest memory into a file.
fn save_memory(machine: &Machine, arguments: Arguments, is_linear: bool) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "kebab-case")]
    struct Save {
        val: u64,
        size: u64,
        filename: PathBuf,
        #[serde(default, rename = "cpu-index")]
        _cpu_index: u32,
    }
    let Save { val, size, filename, .. } = read(arguments)?;
    monitor::write_memory(machine, val, size, is_linear, &filename)?;
    done()
}

/// Connects or disconnects the cable of a network card.
fn set_link(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct SetLink {
        name: String,
        up: bool,
    }
    let SetLink { name, up } = read(arguments)?;
    machine.control.set_link(&name, up).map_err(|error| match error {
        LinkError::Ended(ended) => ended.into(),
        LinkError::NoCard => Failure::device_not_found(format!("Device '{name}' not found")),
    })?;
    done()
}

/// Describes the only processor. Its thread is the first one of the process.
fn query_processors(_: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    none(arguments)?;
    Ok(json!([{
        "cpu-index": 0,
        "qom-path": "/machine/unattached/device[0]",
        "thread-id": std::process::id(),
        "props": {"socket-id": 0, "core-id": 0, "thread-id": 0},
        "target": "i386",
    }]))
}

/// Describes a drive as in query-block. Members that QEMU always has say that there is no encryption.
fn block_info(drive: &DriveInfo) -> Value {
    let mut info = json!({
        "device": media::name(drive),
        "qdev": drive.device(),
        "type": "unknown",
        "locked": drive.locked,
        "removable": drive.removable,
    });
    info["io-status"] = match drive.stopped {
        None => json!("ok"),
        Some(DiskError::NoSpace) => json!("nospace"),
        Some(_) => json!("failed"),
    };
    if drive.removable {
        // As far as clients can tell, a drive without a medium has its tray open.
        info["tray_open"] = json!(drive.medium.is_none());
    }
    if let Some(inserted) = Inserted::of(drive) {
        info["inserted"] = inserted.show();
    }
    info
}

/// A medium in a drive, or one that could be put there.
pub(crate) struct Inserted<'a> {
    /// The name of the node.
    pub(crate) name: String,
    pub(crate) medium: Medium,
    pub(crate) file: Option<&'a Path>,
    pub(crate) format: Option<&'static str>,
    pub(crate) cache: Cache,
    pub(crate) detect_zeroes: DetectZeroes,
    pub(crate) limits: Limits,
}

impl Inserted<'_> {
    /// Returns the medium in `drive`.
    pub(crate) fn of(drive: &DriveInfo) -> Option<Inserted<'_>> {
        let DriveInfo { file, format, cache, detect_zeroes, limits, .. } = drive;
        Some(Inserted {
            name: media::node_name(drive),
            medium: drive.medium?,
            file: file.as_deref(),
            format: *format,
            cache: *cache,
            detect_zeroes: *detect_zeroes,
            limits: *limits,
        })
    }

    /// Describes it as in query-block and query-named-block-nodes.
    pub(crate) fn show(&self) -> Value {
        let Medium { sectors, read_only } = self.medium;
        let file = self.file.map_or(String::new(), |file| file.display().to_string());
        let format = self.format.unwrap_or(ring3_block::Format::Raw.name());
        let mut inserted = json!({
            "node-name": self.name,
            "file": file,
            "drv": format,
            "ro": read_only,
            "encrypted": false,
            "image": {
                "filename": file,
                "format": format,
                "virtual-size": sectors.saturating_mul(SECTOR_SIZE as u64),
            },
            "cache": {
                "writeback": self.cache.writeback,
                "direct": self.cache.direct,
                "no-flush": self.cache.no_flush,
            },
            "backing_file_depth": 0,
            "detect_zeroes": self.detect_zeroes.word(),
            "write_threshold": 0,
        });
        limits::show(&self.limits, &mut inserted);
        inserted
    }
}

/// Returns the picture on the screen, if there is a screen.
pub(crate) fn picture(machine: &Machine) -> Result<Picture, Failure> {
    machine.control.picture()?.ok_or_else(|| Failure::generic("the machine has no screen"))
}

fn send_key(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "kebab-case")]
    struct SendKey {
        keys: Vec<KeyValue>,
        hold_time: Option<u32>,
    }
    let SendKey { keys, hold_time } = read(arguments)?;
    let keys = keys.iter().map(KeyValue::key).collect::<Result<Vec<_>, _>>()?;
    machine.typist.queue(chord(&keys, hold_time))?;
    done()
}

fn input_send_event(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct InputSendEvent {
        events: Vec<InputEvent>,
    }
    #[derive(Deserialize)]
    #[serde(tag = "type", content = "data", rename_all = "lowercase", deny_unknown_fields)]
    enum InputEvent {
        Key { key: KeyValue, down: bool },
        Btn { button: Button, down: bool },
        Rel { axis: Axis, value: i64 },
        Abs { axis: Axis, value: i64 },
    }
    let InputSendEvent { events } = read(arguments)?;
    let mut pointer = machine.pointer.lock().unwrap_or_else(PoisonError::into_inner);
    let mut steps = Vec::new();
    // Mouse events between two keys belong together.
    let mut moves = Vec::new();
    let screen = || {
        let picture = picture(machine)?;
        let pixels = screendump::pixels(&picture);
        Ok([pixels.width, pixels.height])
    };
    for event in events {
        match event {
            InputEvent::Key { key, down } => {
                let reports = pointer.reports(&std::mem::take(&mut moves), screen)?;
                steps.extend(reports.into_iter().map(Step::Mouse));
                steps.push(Step::Key { key: key.key()?, pressed: down });
            }
            InputEvent::Btn { button, down } => moves.push(PointerEvent::Button { button, down }),
            InputEvent::Rel { axis, value } => {
                moves.push(PointerEvent::Move { axis, counts: value });
            }
            InputEvent::Abs { axis, value } => moves.push(PointerEvent::Place { axis, value }),
        }
    }
    let reports = pointer.reports(&moves, screen)?;
    steps.extend(reports.into_iter().map(Step::Mouse));
    machine.typist.queue(steps)?;
    done()
}
