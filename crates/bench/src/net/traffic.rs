//! The traffic that is sent between two guests, and its line in the table.

use super::super::statistics::{Figure, SPREAD, Series, Turn, cell};

/// The address of the guest that serves.
pub(super) const SERVER: &str = "10.0.0.1";

/// The kinds of traffic that the guests' program produces (`guest/suite/network.c`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Records by TCP, all in one direction.
    Stream,
    /// Records by TCP, each of which is returned before the next one is sent.
    StreamEcho,
    /// Datagrams by UDP, each of which is returned before the next one is sent.
    DatagramEcho,
    /// Echo requests, each of which is answered before the next one is sent.
    Ping,
    /// Echo requests, several of them in flight at a time, each sent once.
    Flood,
}

impl Kind {
    /// Returns the word by which the guests' program knows this kind.
    pub(super) fn word(self) -> &'static str {
        match self {
            Kind::Stream => "stream",
            Kind::StreamEcho => "stream-echo",
            Kind::DatagramEcho => "datagram-echo",
            Kind::Ping => "ping",
            Kind::Flood => "flood",
        }
    }
}

/// Packets or records of one kind.
#[derive(Debug, Clone, Copy)]
pub(super) struct Traffic {
    pub(super) kind: Kind,
    /// Bytes of each packet or record; those of echo requests include their header of 8 bytes.
    pub(super) bytes: u32,
    /// How many packets or records a quick card sends.
    pub(super) count: u32,
}

/// The results of all turns.
#[derive(Debug, Clone, Default)]
pub(super) struct Measured {
    /// Seconds for each packet or record.
    pub(super) time: Series,
    /// The share of packets that were lost, from 0 to 1.
    pub(super) lost: Series,
}

impl Measured {
    /// Adds the results of a turn.
    pub(super) fn add(&mut self, turn: Turn, time: f64, lost: f64) {
        self.time.add(turn, time);
        self.lost.add(turn, lost);
    }
}

/// The columns of a value, without its spread, and of a ratio.
const VALUE: usize = 11;
const RATIO: usize = 8;
/// The columns of a pair of guests in the table.
pub(super) const FIRST: usize = VALUE + SPREAD;
pub(super) const OTHERS: usize = FIRST + RATIO;

impl Traffic {
    pub(super) const fn new(kind: Kind, bytes: u32, count: u32) -> Traffic {
        Traffic { kind, bytes, count }
    }

    pub(super) fn name(&self) -> String {
        let what = match self.kind {
            Kind::Stream => "TCP stream, MB/s,",
            Kind::StreamEcho => "TCP round trip, us,",
            Kind::DatagramEcho => "UDP round trip, us,",
            Kind::Ping => "ping, us,",
            Kind::Flood => "flood ping, echoes/s,",
        };
        format!("{what} {} bytes", self.bytes)
    }

    /// Returns whether lost packets are not sent again.
    pub(super) fn may_lose(&self) -> bool {
        self.kind == Kind::Flood
    }

    /// Returns the command by which a guest sends `count` packets or records.
    pub(super) fn command(&self, count: u32) -> String {
        format!("suite --network {SERVER} {} {} {count}", self.kind.word(), self.bytes)
    }

    /// Returns the value for the table: MB/s of a stream in one direction, echoes a second of a flood, and
    /// otherwise the microseconds until an echo is back. Its spread is taken to be that of the time.
    fn value(&self, time: Figure) -> Figure {
        let value = match self.kind {
            Kind::Stream => self.rate(time.median),
            Kind::Flood => 1.0 / time.median,
            _ => time.median * 1e6,
        };
        Figure { median: value, ..time }
    }

    /// Returns the rate in MB/s, if each record takes `time` seconds.
    pub(super) fn rate(&self, time: f64) -> f64 {
        f64::from(self.bytes) / time / 1e6
    }

    /// Returns the table's line: the value of each measurement, and for all but the first also its time as a
    /// multiple of the first one's in the same turns.
    pub(super) fn line(&self, card: &str, measured: &[Measured]) -> String {
        let one = |(index, one): (usize, &Measured)| {
            let value = cell(one.time.figure().map(|time| self.value(time)), VALUE, 1, "");
            if index == 0 {
                return value;
            }
            let ratio = one.time.ratio(&measured[0].time);
            let ratio = ratio.map_or("-".into(), |ratio| format!("{:.2}x", ratio.median));
            format!("{value}{ratio:>RATIO$}")
        };
        let cells = measured.iter().enumerate().map(one).collect::<String>();
        format!("{:<36}{card:<14}{cells}", self.name())
    }

    /// Returns a line with the losses, if this traffic can have any.
    pub(super) fn losses(&self, card: &str, measured: &[Measured]) -> Option<String> {
        if !self.may_lose() {
            return None;
        }
        let one = |(index, one): (usize, &Measured)| {
            let lost =
                cell(Figure::of(one.lost.values()).map(|lost| lost.times(1e2)), VALUE, 1, "");
            let width = if index == 0 { FIRST } else { OTHERS };
            format!("{lost:<width$}")
        };
        let cells = measured.iter().enumerate().map(one).collect::<String>();
        let name = format!("flood ping, % lost, {} bytes", self.bytes);
        Some(format!("{name:<36}{card:<14}{cells}"))
    }
}

/// The traffic in the table.
pub(super) const TABLE: [Traffic; 8] = [
    Traffic::new(Kind::Stream, 65536, 2000),
    Traffic::new(Kind::Stream, 1448, 20000),
    Traffic::new(Kind::StreamEcho, 1, 2000),
    Traffic::new(Kind::DatagramEcho, 64, 2000),
    Traffic::new(Kind::Ping, 64, 2000),
    Traffic::new(Kind::Ping, 1400, 2000),
    Traffic::new(Kind::Flood, 64, 4000),
    Traffic::new(Kind::Flood, 1400, 4000),
];

/// Traffic whose packets are as large as the card's setting: datagrams that IP would otherwise fragment, and
/// streams on cards that cut them.
pub(super) const BY_SIZE: [Traffic; 2] =
    [Traffic::new(Kind::Stream, 65536, 2000), Traffic::new(Kind::DatagramEcho, 8900, 2000)];

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(times: [f64; 2]) -> [Measured; 2] {
        times.map(|time| {
            let mut measured = Measured::default();
            measured.add(0, time, 0.25);
            measured
        })
    }

    fn words(line: &str) -> Vec<&str> {
        let words: Vec<_> = line.split_whitespace().collect();
        words[words.len() - 3..].to_vec()
    }

    #[test]
    fn lines_have_rates_or_times() {
        let text = TABLE[0].line("virtio", &measured([65.536e-6, 655.36e-6]));
        assert_eq!(words(&text), ["1000.0", "100.0", "10.00x"]);
        let text = TABLE[2].line("virtio", &measured([50e-6, 100e-6]));
        assert_eq!(words(&text), ["50.0", "100.0", "2.00x"]);
        let text = TABLE[6].line("e1000", &measured([50e-6, 100e-6]));
        assert_eq!(words(&text), ["20000.0", "10000.0", "2.00x"]);
        assert_eq!(text.len(), 36 + 14 + FIRST + OTHERS);
        assert_eq!(TABLE[2].command(7), "suite --network 10.0.0.1 stream-echo 1 7");
    }

    #[test]
    fn floods_alone_have_losses() {
        let of_flood = TABLE[6].losses("e1000", &measured([1e-6, 1e-6])).unwrap();
        assert_eq!(words(&of_flood), ["e1000", "25.0", "25.0"]);
        assert_eq!(TABLE[4].losses("e1000", &measured([1e-6, 1e-6])), None);
    }
}
