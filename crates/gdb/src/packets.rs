//! Packets of the remote protocol (GDB manual, "Overview"), and QEMU's own ones ("GDB usage" in QEMU's
//! manual).

use ring3_vm::debug::Interrupts;

/// The most bytes of a packet.
pub(crate) const PACKET_MAX: usize = 16 << 10;

/// QEMU's bits for single steps. Virtual time is that of instructions, so nothing stops it for a step.
const STEP_BITS: &str = "ENABLE=1,NOIRQ=2,NOTIMER=4";
const NO_IRQ: u32 = 2;

/// What a debugger has set by QEMU's packets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    /// Whether addresses are guest-physical.
    pub(crate) is_physical: bool,
    step: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { is_physical: false, step: 7 }
    }
}

impl Settings {
    /// Returns what becomes of interrupts in a single step.
    pub(crate) fn interrupts(self) -> Interrupts {
        if self.step & NO_IRQ == 0 { Interrupts::Taken } else { Interrupts::HeldBack }
    }

    /// Answers the packet `body`, if it is one of QEMU's.
    pub(crate) fn answer(&mut self, body: &str) -> Option<String> {
        let ok = || "OK".to_owned();
        let refused = || "E22".to_owned();
        let (name, value) = body.split_once([':', '=']).unwrap_or((body, ""));
        Some(match name {
            "qqemu.sstepbits" => STEP_BITS.to_owned(),
            "qqemu.sstep" => format!("0x{:x}", self.step),
            "Qqemu.sstep" => match u32::from_str_radix(value.trim_start_matches("0x"), 16) {
                Ok(bits) if bits < 8 => {
                    self.step = bits;
                    ok()
                }
                _ => refused(),
            },
            "qqemu.PhyMemMode" => u8::from(self.is_physical).to_string(),
            "Qqemu.PhyMemMode" => match value {
                "0" | "1" => {
                    self.is_physical = value == "1";
                    ok()
                }
                _ => refused(),
            },
            "qqemu.Supported" => "sstepbits;sstep;PhyMemMode".to_owned(),
            _ => return None,
        })
    }
}

/// A packet has more than [`PACKET_MAX`] bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a packet has more than {PACKET_MAX} bytes")]
pub(crate) struct TooLong;

/// Cuts a stream of bytes into packets.
#[derive(Debug, Default)]
pub(crate) struct Framer {
    packet: Vec<u8>,
    /// The bytes of the checksum that are missing, once it has begun.
    missing: Option<u8>,
}

impl Framer {
    /// Takes one byte. Returns a whole packet, from `$` to its checksum, or a byte outside of packets.
    pub(crate) fn push(&mut self, byte: u8) -> Result<Option<Vec<u8>>, TooLong> {
        if self.packet.len() >= PACKET_MAX {
            return Err(TooLong);
        }
        self.packet.push(byte);
        let is_over = match (&mut self.missing, byte) {
            (Some(missing), _) => {
                *missing -= 1;
                *missing == 0
            }
            (None, b'#') if self.packet.len() > 1 => {
                self.missing = Some(2);
                false
            }
            (None, _) => self.packet[0] != b'$',
        };
        if !is_over {
            return Ok(None);
        }
        self.missing = None;
        Ok(Some(std::mem::take(&mut self.packet)))
    }
}

/// Returns the body of `packet` as text, if its checksum is right.
pub(crate) fn body(packet: &[u8]) -> Option<&str> {
    let (body, checksum) = packet.strip_prefix(b"$")?.split_at_checked(packet.len() - 4)?;
    let checksum = std::str::from_utf8(checksum.strip_prefix(b"#")?).ok()?;
    let is_right = u8::from_str_radix(checksum, 16) == Ok(sum(body));
    std::str::from_utf8(body).ok().filter(|_| is_right)
}

/// Returns the packet with this body.
pub(crate) fn packet(body: &str) -> String {
    format!("${body}#{:02x}", sum(body.as_bytes()))
}

fn sum(body: &[u8]) -> u8 {
    body.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut framer = Framer::default();
        bytes.iter().filter_map(|byte| framer.push(*byte).unwrap()).collect()
    }

    #[test]
    fn packets_are_cut_out_of_the_stream() {
        assert_eq!(frames(b"+$g#67\x03$?#3f$cut"), [&b"+"[..], b"$g#67", b"\x03", b"$?#3f"]);
        assert_eq!(frames(b"$##1$"), [b"$##1"]);
        let mut framer = Framer::default();
        framer.push(b'$').unwrap();
        let mut taken = (1..).map(|count| (count, framer.push(b'a')));
        assert_eq!(taken.find(|(_, pushed)| pushed.is_err()), Some((PACKET_MAX, Err(TooLong))));
    }

    #[test]
    fn only_packets_with_a_right_checksum_have_a_body() {
        assert_eq!(body(packet("qqemu.sstep").as_bytes()), Some("qqemu.sstep"));
        for wrong in ["$g#68", "$g#6x", "$#0", "+", "$", "", "g#67"] {
            assert_eq!(body(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn qemu_packets_are_answered() {
        let mut settings = Settings::default();
        let mut answer = |body| settings.answer(body);
        assert_eq!(answer("qqemu.sstep").as_deref(), Some("0x7"));
        assert_eq!(answer("Qqemu.sstep=1").as_deref(), Some("OK"));
        assert_eq!(answer("Qqemu.sstep:0x5").as_deref(), Some("OK"));
        assert_eq!(answer("Qqemu.sstep=9").as_deref(), Some("E22"));
        assert_eq!(answer("qqemu.PhyMemMode").as_deref(), Some("0"));
        assert_eq!(answer("Qqemu.PhyMemMode:1").as_deref(), Some("OK"));
        assert_eq!(answer("qqemu.PhyMemMode").as_deref(), Some("1"));
        assert_eq!(answer("Qqemu.PhyMemMode:2").as_deref(), Some("E22"));
        assert_eq!(answer("g"), None);
        assert_eq!((settings.is_physical, settings.interrupts()), (true, Interrupts::Taken));
    }
}
