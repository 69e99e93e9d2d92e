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
    /// Returns a direction from the machine of `from` to that of `to`, between their cards `card`.
    fn new(from: Sender, to: Sender, card: DeviceId, offloads: Offloads) -> Cable {
        let for_card = move |input| Input::Device { device: card, input };
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

/// A card of each kind, and the cable at it.
struct Card {
    model: NicModel,
    /// The arguments for `modprobe`. The driver of a second card of a kind is there already.
    driver: Option<&'static str>,
    offloads: Offloads,
}

/// Returns the cards in the order in which Linux numbers them.
fn cards() -> [Card; 5] {
    let virtio = || NicModel::Virtio(VirtioNic::default());
    let (all, none) = (Offloads::ALL, Offloads::default());
    [
        Card { model: virtio(), driver: Some("-a virtio_pci virtio_net"), offloads: all },
        Card { model: virtio(), driver: None, offloads: none },
        Card { model: NicModel::E1000, driver: Some("e1000"), offloads: all },
        Card { model: NicModel::Rtl8029, driver: Some("ne2k-pci"), offloads: none },
        Card { model: NicModel::NE2000_ISA, driver: Some("ne io=0x300 irq=5"), offloads: none },
    ]
}

/// Returns two of Debian's kernels with these cards, and a cable between each two of the same kind. Returns
/// None if there are no guests.
fn pair() -> Option<[Guest; 2]> {
    let doors = [door(), door()];
    let senders = [doors[0].0.clone(), doors[1].0.clone()];
    let mut guests = Vec::new();
    for (index, (sender, mut door)) in doors.into_iter().enumerate() {
        let (mut nics, mut cables) = (Vec::new(), Vec::new());
        for (number, (card, id)) in cards().into_iter().zip(DeviceId::NIC).enumerate() {
            let mac = MacAddress([2, 0, 0, 0, number as u8, index as u8 + 1]);
            nics.push(Some(Nic { mac, model: card.model, rom: None }));
            let other = senders[1 - index].clone();
            cables.push((id, Cable::new(sender.clone(), other, id, card.offloads)));
        }
        let config = Config { nics, ..Config::default() };
        let (say, heard) = mpsc::channel();
        let software =
            crate::support::debian_with_modules(&format!("{} quiet", crate::support::CONSOLE))?;
        let thread = thread::spawn(move || {
            let mut vm = Vm::with_engine(config, software, EngineChoice::Auto).unwrap();
            for (id, cable) in cables {
                vm.attach_network(id, None, Box::new(cable));
            }
            vm.run(&mut door, &mut Ear(say)).unwrap()
        });
        guests.push(Guest { sender, heard, text: String::new(), thread: Some(thread) });
    }
    guests.try_into().ok()
}

/// Moves files through the cards `eth{number}` in both directions at once, and compares the received files with
/// those sent.
fn moves_files(guests: &mut [Guest; 2], number: usize, card: &Card) {
    let (name, model) = (format!("eth{number}"), &card.model);
    for (index, guest) in guests.iter_mut().enumerate() {
        let own = index + 1;
        let mut told =
            card.driver.map_or(String::new(), |driver| guest.work(&format!("modprobe {driver}")));
        let up = format!("ip addr add 10.0.{number}.{own}/24 dev {name}; ip link set {name} up");
        told += &guest.work(&up);
        assert!(!told.contains("ip: "), "{model:?}: {told}{}", guest.work("dmesg | tail"));
        guest.work("rm -f come other; head -c 3000000 /dev/urandom > sent");
        guest.work("(nc -l -p 5000 < sent > come &)");
    }
    let [first, second] = &mut *guests;
    let pings = first.work(&format!("ping -c 3 -s 1400 10.0.{number}.2"));
    assert!(pings.contains("3 packets received"), "{model:?}: {pings}");
    // Each listens for one stream. The one that connects sends its own file and receives the other one's.
    first.work(&format!("nc 10.0.{number}.2 5000 < sent > other; sync"));
    let sums = |guest: &mut Guest, file: &str| {
        let text = guest.work(&format!("sha256sum < {file}"));
        text.split_whitespace().next().unwrap_or_default().to_owned()
    };
    assert_eq!(sums(first, "sent").len(), 64);
    assert_eq!(sums(first, "other"), sums(second, "sent"), "{model:?}");
    assert_eq!(sums(first, "sent"), sums(second, "come"), "{model:?}");
    for guest in [first, second] {
        let errors = guest.work(&format!("cat /sys/class/net/{name}/statistics/rx_errors"));
        assert!(errors.starts_with("0\r\n"), "{model:?}: {errors}");
        // The first guest's own listener is not in use.
        guest.work(&format!("killall nc; ip link set {name} down"));
    }
}

#[test]
fn cards_of_each_kind_move_files() {
    let Some(mut guests) = pair() else { return };
    for guest in &mut guests {
        guest.wait_for(PROMPT);
    }
    for (number, card) in cards().iter().enumerate() {
        moves_files(&mut guests, number, card);
    }
}
