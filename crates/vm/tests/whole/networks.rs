//! Two machines with a cable between their network cards: Debian's drivers move files through it.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ring3_core::device::DeviceId;
use ring3_core::input::{DeviceInput, Input};
use ring3_core::net::{MacAddress, Offloads, Packet};
use ring3_vm::networks::Network;
use ring3_vm::{Config, Console, Ending, EngineChoice, Nic, NicModel, Sender, VirtioNic, Vm, door};

const CARD: DeviceId = DeviceId::NIC[0];
const PROMPT: &str = "ring3:~# ";
/// Longer than anything here takes on a busy machine. A test that hangs ends then.
const PATIENCE: Duration = Duration::from_secs(300);

/// Packets on the way in one direction of a cable. With more than half of them it is congested.
const CABLE_PACKETS: usize = 512;

/// One direction of a cable.
#[derive(Debug)]
struct Cable {
    shared: Arc<(Mutex<OnTheWay>, Condvar)>,
    /// The offloads that it carries; without any, it carries only complete frames.
    offloads: Offloads,
}

#[derive(Debug, Default)]
struct OnTheWay {
    packets: VecDeque<Packet>,
    told_congested: bool,
    is_cut: bool,
}

impl Cable {
    /// Returns a direction from the machine of `from` to that of `to`.
    fn new(from: Sender, to: Sender, offloads: Offloads) -> Cable {
        let shared = Arc::new((Mutex::new(OnTheWay::default()), Condvar::new()));
        let way = Arc::clone(&shared);
        thread::spawn(move || {
            let (lock, changed) = &*way;
            loop {
                let mut way = lock.lock().unwrap();
                while way.packets.is_empty() && !way.is_cut {
                    way = changed.wait(way).unwrap();
                }
                let Some(packet) = way.packets.pop_front() else { return };
                let is_over = way.told_congested && way.packets.len() < CABLE_PACKETS / 4;
                if is_over {
                    way.told_congested = false;
                }
                drop(way);
                if is_over {
                    from.send(for_card(DeviceInput::Congestion(false)));
                }
                to.send(for_card(DeviceInput::Packet(packet)));
            }
        });
        Cable { shared, offloads }
    }
}

fn for_card(input: DeviceInput) -> Input {
    Input::Device { device: CARD, input }
}

impl Network for Cable {
    fn send(&mut self, packet: Packet) {
        let mut way = self.shared.0.lock().unwrap();
        packet.without_offloads(self.offloads, |packet| way.packets.push_back(packet));
        self.shared.1.notify_all();
    }

    fn is_congested(&mut self) -> bool {
        let mut way = self.shared.0.lock().unwrap();
        let is_new = way.packets.len() > CABLE_PACKETS / 2 && !way.told_congested;
        way.told_congested |= is_new;
        is_new
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.shared.0.lock().unwrap().is_cut = true;
        self.shared.1.notify_all();
    }
}

/// A machine that runs in a thread.
struct Guest {
    sender: Sender,
    heard: Receiver<Vec<u8>>,
    text: String,
    thread: Option<JoinHandle<Ending>>,
}

struct Ear(mpsc::Sender<Vec<u8>>);

impl Console for Ear {
    fn serial(&mut self, _: u8, bytes: &[u8]) -> io::Result<()> {
        // Nobody listens once the test has failed.
        let _ = self.0.send(bytes.to_vec());
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Guest {
    /// Waits until the guest has sent `text`, and returns everything until then.
    fn wait_for(&mut self, text: &str) -> String {
        loop {
            if let Some(at) = self.text.find(text) {
                let rest = self.text.split_off(at + text.len());
                return std::mem::replace(&mut self.text, rest);
            }
            let bytes = self.heard.recv_timeout(PATIENCE);
            let bytes = bytes.unwrap_or_else(|_| panic!("no {text:?} in {}", self.text));
            self.text.push_str(&String::from_utf8_lossy(&bytes));
        }
    }

    fn type_line(&self, line: &str) {
        let bytes = format!("{line}\n").into_bytes();
        self.sender
            .send(Input::Device { device: DeviceId::COM[0], input: DeviceInput::Serial(bytes) });
    }

    /// Makes the shell execute a line, and returns its output without the echo.
    fn work(&mut self, line: &str) -> String {
        self.type_line(line);
        let sent = self.wait_for(PROMPT);
        sent.split_once('\n').map(|(_, rest)| rest.to_owned()).unwrap_or_default()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.sender.send(Input::Quit);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns two of Debian's kernels with a card of `model` each, and a cable between them. Returns None if
/// there are no guests.
fn pair(model: NicModel, offloads: Offloads) -> Option<[Guest; 2]> {
    let doors = [door(), door()];
    let senders = [doors[0].0.clone(), doors[1].0.clone()];
    let mut guests = Vec::new();
    for (index, (sender, mut door)) in doors.into_iter().enumerate() {
        let mac = MacAddress([2, 0, 0, 0, 0, index as u8 + 1]);
        let config = Config { nics: vec![Nic { mac, model, rom: None }], ..Config::default() };
        let cable = Cable::new(sender.clone(), senders[1 - index].clone(), offloads);
        let (say, heard) = mpsc::channel();
        let software =
            crate::support::debian_with_modules(&format!("{} quiet", crate::support::CONSOLE))?;
        let thread = thread::spawn(move || {
            let mut vm = Vm::with_engine(config, software, EngineChoice::Auto).unwrap();
            vm.attach_network(CARD, None, Box::new(cable));
            vm.run(&mut door, &mut Ear(say)).unwrap()
        });
        guests.push(Guest { sender, heard, text: String::new(), thread: Some(thread) });
    }
    guests.try_into().ok()
}

/// Moves files through the cards in both directions at once, and compares the received files with those sent.
fn moves_files(model: NicModel, driver: &str, offloads: Offloads) {
    let Some(mut guests) = pair(model, offloads) else { return };
    for (index, guest) in guests.iter_mut().enumerate() {
        guest.wait_for(PROMPT);
        let own = index + 1;
        let mut told = guest.work(&format!("modprobe {driver}"));
        told += &guest.work(&format!("ip addr add 10.0.0.{own}/24 dev eth0; ip link set eth0 up"));
        assert!(!told.contains("ip: "), "{told}{}", guest.work("dmesg | tail"));
        guest.work("head -c 3000000 /dev/urandom > sent; (nc -l -p 5000 < sent > come &)");
    }
    let [first, second] = &mut guests;
    let pings = first.work("ping -c 3 -s 1400 10.0.0.2");
    assert!(pings.contains("3 packets received"), "{pings}");
    // Each listens for one stream. The one that connects sends its own file and receives the other one's.
    first.work("nc 10.0.0.2 5000 < sent > other; sync");
    let sums = |guest: &mut Guest, file: &str| {
        let text = guest.work(&format!("sha256sum < {file}"));
        text.split_whitespace().next().unwrap_or_default().to_owned()
    };
    assert_eq!(sums(first, "sent").len(), 64);
    assert_eq!(sums(first, "other"), sums(second, "sent"));
    assert_eq!(sums(first, "sent"), sums(second, "come"));
    for guest in [first, second] {
        let errors = guest.work("cat /sys/class/net/eth0/statistics/rx_errors");
        assert!(errors.starts_with("0\r\n"), "{errors}");
    }
}

#[test]
fn virtio_moves_files() {
    moves_files(NicModel::Virtio(VirtioNic::default()), "-a virtio_pci virtio_net", Offloads::ALL);
}

#[test]
fn virtio_moves_files_over_a_cable_without_offloads() {
    let model = NicModel::Virtio(VirtioNic::default());
    moves_files(model, "-a virtio_pci virtio_net", Offloads::default());
}

#[test]
fn e1000_moves_files() {
    moves_files(NicModel::E1000, "e1000", Offloads::ALL);
}

#[test]
fn rtl8029_moves_files() {
    moves_files(NicModel::Rtl8029, "ne2k-pci", Offloads::default());
}

#[test]
fn ne2000_moves_files() {
    moves_files(NicModel::NE2000_ISA, "ne io=0x300 irq=5", Offloads::default());
}
