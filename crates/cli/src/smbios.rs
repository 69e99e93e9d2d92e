//! `--smbios`, and QEMU's `-smbios` and `-uuid`: what the SMBIOS tables say, by the types of their structures.

use std::fs;
use std::str::FromStr;

use ring3_vm::{Config, Smbios, SmbiosText as Text};

use crate::board::{BadProperties, Contents};
use crate::qemu::machine::parse_uuid;
use crate::qemu::properties::{Properties, switch};
use crate::run::RunError;

/// The types of structures whose texts can be chosen, besides OEM strings, and the properties with them.
const TEXTS: [(&str, &[(&str, Text)]); 4] = [
    (
        "0",
        &[
            ("vendor", Text::FirmwareVendor),
            ("version", Text::FirmwareVersion),
            ("date", Text::FirmwareDate),
        ],
    ),
    (
        "1",
        &[
            ("manufacturer", Text::SystemManufacturer),
            ("product", Text::SystemProduct),
            ("version", Text::SystemVersion),
            ("serial", Text::SystemSerial),
            ("sku", Text::SystemSku),
            ("family", Text::SystemFamily),
        ],
    ),
    (
        "2",
        &[
            ("manufacturer", Text::BoardManufacturer),
            ("product", Text::BoardProduct),
            ("version", Text::BoardVersion),
            ("serial", Text::BoardSerial),
            ("asset", Text::BoardAsset),
            ("location", Text::BoardLocation),
        ],
    ),
    (
        "3",
        &[
            ("manufacturer", Text::ChassisManufacturer),
            ("version", Text::ChassisVersion),
            ("serial", Text::ChassisSerial),
            ("asset", Text::ChassisAsset),
            ("sku", Text::ChassisSku),
        ],
    ),
];
const OEM_STRINGS: &str = "11";

/// What one option says about structures of one type.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SmbiosProperties {
    texts: Vec<(Text, String)>,
    release: Option<(u8, u8)>,
    is_uefi: Option<bool>,
    pub(crate) uuid: Option<[u8; 16]>,
    oem_strings: Vec<Contents>,
}

impl SmbiosProperties {
    /// Returns the properties of a machine of which only the identity is known.
    pub(crate) fn of_uuid(uuid: [u8; 16]) -> SmbiosProperties {
        SmbiosProperties { uuid: Some(uuid), ..SmbiosProperties::default() }
    }

    /// Enters what is said into the machine's configuration, over what earlier options have said.
    pub(crate) fn describe(&self, config: &mut Config) -> Result<(), RunError> {
        let Smbios { texts, release, is_uefi, oem_strings } = &mut config.smbios;
        texts.extend(self.texts.iter().cloned());
        *release = self.release.or(*release);
        *is_uefi = self.is_uefi.unwrap_or(*is_uefi);
        config.uuid = self.uuid.or(config.uuid);
        for string in &self.oem_strings {
            oem_strings.push(match string {
                Contents::Text(text) => text.clone(),
                Contents::File(path) => fs::read_to_string(path).map_err(|source| {
                    RunError::Read { what: "OEM string", path: path.clone(), source }
                })?,
            });
        }
        Ok(())
    }
}

impl FromStr for SmbiosProperties {
    type Err = BadProperties;

    fn from_str(text: &str) -> Result<SmbiosProperties, BadProperties> {
        read(text).map_err(BadProperties)
    }
}

fn read(text: &str) -> Result<SmbiosProperties, String> {
    let mut properties = Properties::parse(text, None);
    let mut read = SmbiosProperties::default();
    let kind = properties.take("type").unwrap_or_default();
    if kind == OEM_STRINGS {
        for (key, value) in properties.iter() {
            read.oem_strings.push(match key {
                "value" => Contents::Text(value.to_owned()),
                "path" => Contents::File(value.into()),
                _ => return Err("there are value and path, any number of times".to_owned()),
            });
        }
        return Ok(read);
    }
    let Some((_, places)) = TEXTS.iter().find(|(number, _)| *number == kind) else {
        return Err("give type=0, 1, 2, 3 or 11".to_owned());
    };
    let mut known: Vec<_> = places.iter().map(|(key, _)| *key).collect();
    for (key, place) in *places {
        read.texts.extend(properties.take(key).map(|text| (*place, text)));
    }
    if kind == "0" {
        known.extend(["release", "uefi"]);
        let release = properties.take("release").map(|release| {
            let parts = release.split_once('.');
            let numbers =
                parts.and_then(|(major, minor)| major.parse().ok().zip(minor.parse().ok()));
            numbers.ok_or("a release looks like 1.2, with numbers up to 255")
        });
        read.release = release.transpose()?;
        read.is_uefi = properties.take("uefi").map(|value| switch("uefi", &value)).transpose()?;
    }
    if kind == "1" {
        known.push("uuid");
        read.uuid = properties.take("uuid").map(|uuid| parse_uuid(&uuid)).transpose()?;
    }
    properties.finish(&known.join(", "))?;
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the configuration of a machine with these options.
    fn described(options: &[&str]) -> Config {
        let mut config = Config::default();
        for option in options {
            option.parse::<SmbiosProperties>().unwrap().describe(&mut config).unwrap();
        }
        config
    }

    #[test]
    fn a_later_option_adds_to_an_earlier_one() {
        let config = described(&[
            "type=1,serial=a,,b,product=p,uuid=550e8400-e29b-41d4-a716-446655440000",
            "type=0,release=1.2,uefi=on",
            "type=1,serial=",
            "type=11,value=one,value=two",
            "type=11,value=three",
            "type=0,vendor=v",
        ]);
        let texts =
            [(Text::SystemSerial, ""), (Text::SystemProduct, "p"), (Text::FirmwareVendor, "v")];
        let expected = Smbios {
            texts: texts.map(|(place, text)| (place, text.to_owned())).into(),
            release: Some((1, 2)),
            is_uefi: true,
            oem_strings: ["one", "two", "three"].map(str::to_owned).to_vec(),
        };
        assert_eq!(config.smbios, expected);
        assert_eq!(config.uuid.map(|uuid| uuid[0]), Some(0x55));
        assert_eq!(described(&["type=1,serial=a,,b"]).smbios.texts[&Text::SystemSerial], "a,b");
    }

    #[test]
    fn what_no_structure_has_is_refused() {
        for wrong in [
            "",
            "serial=1",
            "type=4,version=1",
            "type=1,asset=1",
            "type=1,uuid=1-2",
            "type=0,release=1",
            "type=0,release=1.256",
            "type=0,uefi=maybe",
            "type=11,text=1",
        ] {
            assert!(wrong.parse::<SmbiosProperties>().is_err(), "{wrong}");
        }
    }
}
