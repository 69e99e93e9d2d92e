//! Options for the board's devices, and for information that the machine passes to its software.

use std::fs;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgAction, Args, ValueEnum};
use ring3_core::device::DeviceId;
use ring3_devices::virtio::balloon::BalloonModel;
use ring3_vm::{Config, FwCfgFile, GuestTools, Vm};
use thiserror::Error;

use crate::channels::ChannelTarget;
use crate::qemu::machine;
use crate::qemu::properties::{self, Properties};
use crate::run::RunError;
use crate::smbios::SmbiosProperties;

/// The options.
#[derive(Debug, Args)]
#[command(next_help_heading = "Board")]
pub(crate) struct BoardArguments {
    /// The high precision event timer: on or off. A machine with a 486 has none
    #[arg(long, value_name = "on|off", default_value = "on")]
    #[arg(action = ArgAction::Set, value_parser = switch)]
    pub(crate) hpet: bool,

    /// Functions of the machine that software in the guest, of any privilege, can call by CPUID. host-time: the
    /// host's clocks. histogram: counts of executed instructions
    #[arg(long, value_name = "TOOLS", value_enum, value_delimiter = ',')]
    pub(crate) guest_tools: Vec<GuestTool>,

    /// The device by which the guest learns that it continues as another machine (--new-identity): a GUID, auto
    /// for a random one, or off for no such device
    #[arg(long, value_name = "auto|off|GUID", default_value = "auto")]
    pub(crate) generation_id: GenerationId,

    /// A memory balloon (virtio), by which the guest gives memory back to the host: on, off, or with
    /// free-page-reporting=off (do not let the guest report pages that it does not use) and deflate-on-oom=on (let a
    /// guest that runs out of memory take its pages back). The QMP command balloon says how much the guest keeps
    #[arg(long, value_name = "on|off|PROPERTIES", default_value = "off")]
    pub(crate) balloon: BalloonProperties,

    /// A channel: a stream of bytes between a program in the guest, which finds it by this name (virtio), and one outside,
    /// which connects to a Unix socket: NAME=unix:PATH. May be given up to 15 times
    #[arg(long, value_name = "NAME=unix:PATH")]
    pub(crate) channel: Vec<ChannelTarget>,

    /// Whether Linux can say how the data of its kernel are laid out (driver qemu_fw_cfg), which ring3 dump then writes
    /// for debuggers
    #[arg(long, value_name = "on|off", default_value = "on")]
    #[arg(action = ArgAction::Set, value_parser = switch)]
    pub(crate) vmcoreinfo: bool,

    /// Add the device by which the guest's system says that it has failed (QEMU's pvpanic), and say what
    /// happens then: continue (the guest may reset the machine), pause, or end
    #[arg(long, value_name = "ACTION")]
    pub(crate) on_panic: Option<OnPanic>,

    /// Pass a file to the guest by fw_cfg: name=NAME,file=FILE or name=NAME,string=TEXT, with names that
    /// begin with opt/ by custom. Linux shows it in /sys/firmware/qemu_fw_cfg/by_name; may be given several
    /// times
    #[arg(long, value_name = "PROPERTIES")]
    pub(crate) fw_cfg: Vec<FwCfgProperties>,

    /// What the SMBIOS tables say, where Linux finds /sys/class/dmi/id: type=1 with manufacturer=TEXT, product=,
    /// version=, serial=, uuid=, sku= and family= is about the machine; type=0 is about firmware, 2 the board, 3 the
    /// case, and 11 with value=TEXT has strings for programs. May be given several times
    #[arg(long, value_name = "PROPERTIES")]
    pub(crate) smbios: Vec<SmbiosProperties>,

    /// Add the device that kvm-unit-tests use (QEMU's pc-testdev)
    #[arg(long)]
    pub(crate) test_device: bool,
}

/// A value of `--on-panic`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnPanic {
    /// The machine goes on.
    Continue,
    /// The machine stands still until a tool resumes it.
    Pause,
    /// The run ends.
    End,
}

/// A value of `--guest-tools`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GuestTool {
    /// The host's clocks can be read.
    HostTime,
    /// Executed instructions can be counted.
    Histogram,
}

/// The value of `--generation-id`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum GenerationId {
    /// No such device.
    Off,
    /// A number that differs from that of other machines.
    #[default]
    Auto,
    /// This number, as the guest reads it.
    Number([u8; 16]),
}

impl FromStr for GenerationId {
    type Err = BadProperties;

    fn from_str(text: &str) -> Result<GenerationId, BadProperties> {
        Ok(match text {
            "off" => GenerationId::Off,
            "auto" => GenerationId::Auto,
            _ => {
                let mut number = machine::parse_uuid(text).map_err(BadProperties)?;
                // The first three parts of a GUID are numbers, in the order of bytes of the processor.
                number[..4].reverse();
                number[4..6].reverse();
                number[6..8].reverse();
                GenerationId::Number(number)
            }
        })
    }
}

/// The value of `--balloon`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BalloonProperties {
    /// The device, if there is one.
    pub(crate) model: Option<BalloonModel>,
    /// The id by which people know it.
    pub(crate) id: Option<String>,
}

impl FromStr for BalloonProperties {
    type Err = BadProperties;

    fn from_str(text: &str) -> Result<BalloonProperties, BadProperties> {
        let mut properties = Properties::parse(text, None);
        let mut flag = |key: &str, default| match properties.take(key) {
            None => Ok(default),
            Some(value) => properties::switch(key, &value).map_err(BadProperties),
        };
        let is_off = flag("off", false)?;
        flag("on", true)?;
        let model = BalloonModel {
            deflate_on_oom: flag("deflate-on-oom", false)?,
            free_page_reporting: flag("free-page-reporting", true)?,
        };
        properties
            .finish("on, off, deflate-on-oom and free-page-reporting")
            .map_err(BadProperties)?;
        Ok(BalloonProperties { model: (!is_off).then_some(model), id: None })
    }
}

/// Reads `on` or `off`.
fn switch(text: &str) -> Result<bool, BadProperties> {
    properties::switch("it", text).map_err(BadProperties)
}

/// The value of `--fw-cfg`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FwCfgProperties {
    pub(crate) name: String,
    pub(crate) contents: Contents,
}

/// The source of the contents of a file for the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Contents {
    File(PathBuf),
    Text(String),
}

/// The reason why a value is refused.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub(crate) struct BadProperties(pub(crate) String);

impl FromStr for FwCfgProperties {
    type Err = BadProperties;

    fn from_str(text: &str) -> Result<FwCfgProperties, BadProperties> {
        const NAME_MAX: usize = ring3_devices::fw_cfg::NAME_LEN - 1;
        let mut properties = Properties::parse(text, Some("name"));
        let name = properties.take("name").unwrap_or_default();
        let file = properties.take("file").filter(|file| !file.is_empty());
        let text = properties.take("string");
        properties.finish("name, file and string").map_err(BadProperties)?;
        if !(1..=NAME_MAX).contains(&name.len()) {
            return Err(BadProperties(format!("a name has 1 to {NAME_MAX} bytes: name=opt/NAME")));
        }
        let contents = match (file, text) {
            (Some(file), None) => Contents::File(file.into()),
            (None, Some(text)) => Contents::Text(text),
            _ => return Err(BadProperties("give either file=FILE or string=TEXT".to_owned())),
        };
        Ok(FwCfgProperties { name, contents })
    }
}

impl BoardArguments {
    /// Returns the identity of the machine.
    pub(crate) fn uuid(&self) -> Option<[u8; 16]> {
        self.smbios.iter().rev().find_map(|properties| properties.uuid)
    }

    /// Tells the machine by which ids people know its devices.
    pub(crate) fn name_devices(&self, vm: &mut Vm) {
        if let Some(id) = &self.balloon.id {
            vm.name_card(DeviceId::BALLOON, id.clone());
        }
    }

    /// Enters the options into `config`.
    pub(crate) fn describe(&self, config: &mut Config) -> Result<(), RunError> {
        config.hpet = self.hpet;
        config.note = self.vmcoreinfo;
        config.balloon = self.balloon.model;
        config.channels.names = self.channel.iter().map(|target| target.name.clone()).collect();
        config.test_device = self.test_device;
        config.on_panic = self.on_panic.map(|action| match action {
            OnPanic::Continue => ring3_vm::OnPanic::Continue,
            // Nothing ends by itself if it is to stand still at the end.
            OnPanic::End if config.stays_when_off => ring3_vm::OnPanic::Pause,
            OnPanic::Pause => ring3_vm::OnPanic::Pause,
            OnPanic::End => ring3_vm::OnPanic::End,
        });
        config.guest_tools = GuestTools {
            host_time: self.guest_tools.contains(&GuestTool::HostTime),
            histogram: self.guest_tools.contains(&GuestTool::Histogram),
        };
        for FwCfgProperties { name, contents } in &self.fw_cfg {
            let contents = match contents {
                Contents::Text(text) => text.clone().into_bytes(),
                Contents::File(path) => fs::read(path).map_err(|source| RunError::Read {
                    what: "file for the guest",
                    path: path.clone(),
                    source,
                })?,
            };
            config.fw_cfg_files.push(FwCfgFile { name: name.clone(), contents });
        }
        self.smbios.iter().try_for_each(|properties| properties.describe(config))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_id_is_read_in_the_order_of_a_guid() {
        let guid = "324e6eaf-d1d1-4bf6-bf41-b9bb6c91fb87".parse();
        let bytes = [
            0xaf, 0x6e, 0x4e, 0x32, 0xd1, 0xd1, 0xf6, 0x4b, 0xbf, 0x41, 0xb9, 0xbb, 0x6c, 0x91,
            0xfb, 0x87,
        ];
        assert_eq!(guid, Ok(GenerationId::Number(bytes)));
        assert_eq!("off".parse(), Ok(GenerationId::Off));
        assert_eq!("auto".parse(), Ok(GenerationId::Auto));
        assert!("on".parse::<GenerationId>().is_err());
    }

    #[test]
    fn a_balloon_is_there_with_its_properties() {
        let balloon = |deflate_on_oom, free_page_reporting| {
            let model = Some(BalloonModel { deflate_on_oom, free_page_reporting });
            Ok(BalloonProperties { model, id: None })
        };
        assert_eq!("off".parse(), Ok(BalloonProperties::default()));
        assert_eq!("on".parse(), balloon(false, true));
        assert_eq!("deflate-on-oom=on,free-page-reporting=off".parse(), balloon(true, false));
        for wrong in ["on=maybe", "deflate-on-oom=2", "yes"] {
            assert!(wrong.parse::<BalloonProperties>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn files_for_the_guest_have_a_name_and_one_kind_of_contents() {
        let file = |name: &str, contents| Ok(FwCfgProperties { name: name.to_owned(), contents });
        assert_eq!("name=opt/a,file=b".parse(), file("opt/a", Contents::File("b".into())));
        assert_eq!("opt/a,string=b,,c".parse(), file("opt/a", Contents::Text("b,c".into())));
        assert_eq!("opt/a,string=".parse(), file("opt/a", Contents::Text(String::new())));
        for wrong in
            ["", "file=b", "opt/a", "opt/a,file=", "opt/a,file=b,string=c", "opt/a,string=b,x=y"]
        {
            assert!(wrong.parse::<FwCfgProperties>().is_err(), "{wrong}");
        }
        assert!(format!("{},string=", "x".repeat(56)).parse::<FwCfgProperties>().is_err());
    }
}
