//! Messages of DHCP (RFC 2131, RFC 2132).

use std::fmt::Write;
use std::net::Ipv4Addr;

use ring3_core::net::MacAddress;

use super::fields::Fields;

/// What begins the options.
const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// Bytes of the names of server and file, between the fixed fields and the options.
const NAMES_LEN: usize = 64 + 128;
/// Upper bound of the options that are looked at.
const OPTIONS_MAX: usize = 64;

/// The options that are shown.
const REQUESTED_ADDRESS: u8 = 50;
const MESSAGE_TYPE: u8 = 53;
const END: u8 = 255;

const TYPES: [&str; 8] =
    ["discover", "offer", "request", "decline", "ack", "nak", "release", "inform"];

/// Describes a message, if it is one.
pub(super) fn describe(payload: &[u8]) -> Option<String> {
    let mut fields = Fields::new(payload);
    let [operation, _, _, _] = fields.take()?;
    let id = u32::from_be_bytes(fields.take()?);
    let _: [u8; 4] = fields.take()?;
    let [client, yours, _, _] = [fields.take()?, fields.take()?, fields.take()?, fields.take()?]
        .map(|bytes: [u8; 4]| Ipv4Addr::from(bytes));
    let card = MacAddress(fields.take()?);
    let _: [u8; 10] = fields.take()?;
    fields.bytes(NAMES_LEN)?;
    let mut name = if operation == 1 { "request" } else { "reply" };
    let mut requested = None;
    if fields.take() == Some(COOKIE) {
        for _ in 0..OPTIONS_MAX {
            let Some(option) = fields.byte().filter(|option| *option != END) else { break };
            if option == 0 {
                continue;
            }
            let Some(value) = fields.byte().and_then(|len| fields.bytes(len.into())) else { break };
            match (option, value) {
                (MESSAGE_TYPE, [kind]) => {
                    let known = usize::from(*kind).checked_sub(1).and_then(|at| TYPES.get(at));
                    name = known.unwrap_or(&"of an unknown type");
                }
                (REQUESTED_ADDRESS, [a, b, c, d]) => {
                    requested = Some(Ipv4Addr::new(*a, *b, *c, *d));
                }
                _ => {}
            }
        }
    }
    let mut text = format!("DHCP {name} from {card}, xid {id:#x}");
    for (what, address) in [
        ("client", Some(client).filter(|address| !address.is_unspecified())),
        ("requested", requested),
        ("your", Some(yours).filter(|address| !address.is_unspecified())),
    ] {
        if let Some(address) = address {
            // Writing to a string cannot fail.
            let _ = write!(text, ", {what} {address}");
        }
    }
    Some(text)
}
