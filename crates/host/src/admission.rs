//! Decides which clients a server lets in when there are more than it has room for, so that no peer keeps the
//! others out.
//!
//! A *peer* is a process (of a Unix socket) or an address. If a client comes when there are already as many
//! clients as there may be in all, or of its peer ([`Room`]), one client has to go:
//!
//! * if the newcomer's peer has too many clients itself: one of these that has taken longer than [`GREETING`]
//!   to say what it wants, or that has been idle for longer than the [room](Room::idle) allows;
//! * otherwise, if a peer has at least two more connections than the newcomer's peer: one of its clients,
//!   even if all of them are active;
//! * otherwise: a client of a peer with no fewer connections that has taken too long, as in the first case;
//! * if there is no such client: the newcomer.
//!
//! Among several such clients the oldest that has not yet said what it wants has to go, or else the one that
//! has been idle for longest.
//!
//! The functions that decide take the time as an argument, so that tests need not wait.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{socket_domain, socket_peercred};
use rustix::net::{AddressFamily, Shutdown, getpeername, shutdown};

/// The time after which a client that has not said what it wants may have to go.
pub const GREETING: Duration = Duration::from_secs(1);

/// The other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// A process that has connected to a Unix socket.
    Process {
        /// The process's user.
        user: u32,
        /// The process's number.
        process: i32,
    },
    /// The address of the other end.
    Address(IpAddr),
    /// The host does not tell who the other end is.
    Unknown,
}

impl Peer {
    /// Returns the peer at the other end of `socket`.
    pub fn of(socket: impl AsFd) -> Peer {
        let socket = socket.as_fd();
        if socket_domain(socket) == Ok(AddressFamily::UNIX) {
            return socket_peercred(socket).map_or(Peer::Unknown, |peer| Peer::Process {
                user: peer.uid.as_raw(),
                process: peer.pid.as_raw_nonzero().get(),
            });
        }
        let address = getpeername(socket).ok().flatten();
        let address = address.and_then(|address| std::net::SocketAddr::try_from(address).ok());
        address.map_or(Peer::Unknown, |address| Peer::Address(address.ip()))
    }
}

/// Limits for the clients of a server.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// Upper bound of the number of all clients.
    pub all: usize,
    /// Upper bound of the number of clients of one peer.
    pub of_a_peer: usize,
    /// The time without a request after which a client may have to go for another one of equal standing. None
    /// means that an idle client may stay for ever.
    pub idle: Option<Duration>,
}

/// The clients of a server, and the limits by which it lets them in.
#[derive(Debug)]
pub struct Admission {
    room: Room,
    clients: Mutex<Clients>,
}

#[derive(Debug, Default)]
struct Clients {
    next: u64,
    all: Vec<Client>,
}

#[derive(Debug)]
struct Client {
    number: u64,
    peer: Peer,
    /// Whether the client has said what it wants.
    is_ready: bool,
    /// When the client came, or was last active.
    since: Instant,
    connection: OwnedFd,
}

impl Client {
    /// Returns whether the client may have to go for another one of equal standing.
    fn may_go(&self, room: Room, now: Instant) -> bool {
        let most = if self.is_ready { room.idle } else { Some(GREETING) };
        most.is_some_and(|most| now.saturating_duration_since(self.since) >= most)
    }
}

/// A client that was let in. It counts until this is dropped.
#[derive(Debug)]
pub struct Admitted {
    admission: Arc<Admission>,
    number: u64,
}

impl Admission {
    /// Returns an admission without clients.
    pub fn new(room: Room) -> Arc<Admission> {
        Arc::new(Admission { room, clients: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets in the client at the other end of `connection`, which comes now. If another client has to go for
    /// it, the connection of that one is shut down. Returns None if the newcomer itself has to go.
    pub fn admit(self: &Arc<Admission>, connection: impl AsFd) -> io::Result<Option<Admitted>> {
        let peer = Peer::of(&connection);
        self.admit_peer(peer, connection, Instant::now())
    }

    fn admit_peer(
        self: &Arc<Admission>,
        peer: Peer,
        connection: impl AsFd,
        now: Instant,
    ) -> io::Result<Option<Admitted>> {
        let connection = connection.as_fd().try_clone_to_owned()?;
        let mut clients = self.lock();
        match clients.leaving(self.room, &peer, now) {
            Leaving::Nobody => {}
            Leaving::Client(at) => {
                let client = clients.all.remove(at);
                // This fails if the client has already gone.
                let _ = shutdown(&client.connection, Shutdown::Both);
            }
            Leaving::Newcomer => return Ok(None),
        }
        clients.next += 1;
        let number = clients.next;
        clients.all.push(Client { number, peer, is_ready: false, since: now, connection });
        drop(clients);
        Ok(Some(Admitted { admission: Arc::clone(self), number }))
    }

    /// Returns the number of clients.
    pub fn clients(&self) -> usize {
        self.lock().all.len()
    }
}

/// The answer to the question which client has to go.
enum Leaving {
    Nobody,
    /// The client with this index.
    Client(usize),
    /// The newcomer.
    Newcomer,
}

impl Clients {
    /// Returns which client has to go for a newcomer of `peer`.
    fn leaving(&self, room: Room, peer: &Peer, now: Instant) -> Leaving {
        let count = |peer: &Peer| self.all.iter().filter(|client| client.peer == *peer).count();
        let own = count(peer);
        if own < room.of_a_peer && self.all.len() < room.all {
            return Leaving::Nobody;
        }
        let counts = self.all.iter().map(|client| (count(&client.peer), &client.peer));
        let heaviest = counts.max_by_key(|(count, _)| *count);
        let any: &dyn Fn(&Client) -> bool = match &heaviest {
            _ if own >= room.of_a_peer => {
                &|client| client.peer == *peer && client.may_go(room, now)
            }
            Some((most, heaviest)) if *most > own + 1 => &|client| client.peer == **heaviest,
            // A peer with fewer clients than the newcomer's keeps them.
            _ => &|client| count(&client.peer) >= own && client.may_go(room, now),
        };
        let candidates = self.all.iter().enumerate().filter(|(_, client)| any(client));
        let leaving = candidates.min_by_key(|(_, client)| (client.is_ready, client.since));
        leaving.map_or(Leaving::Newcomer, |(at, _)| Leaving::Client(at))
    }
}

impl Admitted {
    /// Notes that the client has said what it wants, or has made a request.
    pub fn is_active(&self) {
        let mut clients = self.admission.lock();
        if let Some(client) = clients.all.iter_mut().find(|client| client.number == self.number) {
            client.is_ready = true;
            client.since = Instant::now();
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.admission.lock().all.retain(|client| client.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    struct Door {
        admission: Arc<Admission>,
        start: Instant,
    }

    impl Door {
        fn new() -> Door {
            let room = Room { all: 8, of_a_peer: 6, idle: Some(SECOND * 60) };
            Door { admission: Admission::new(room), start: Instant::now() }
        }

        /// Lets a client of `process` come after `seconds` seconds.
        fn comes(&self, process: i32, seconds: u32) -> Option<(Admitted, UnixStream)> {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let peer = Peer::Process { user: 0, process };
            let now = self.start + SECOND * seconds;
            let admitted = self.admission.admit_peer(peer, ours, now).unwrap();
            admitted.map(|admitted| (admitted, theirs))
        }

        /// Lets the client make a request after `seconds` seconds.
        fn asks(&self, client: &(Admitted, UnixStream), seconds: u32) {
            let mut clients = self.admission.lock();
            let number = client.0.number;
            let client = clients.all.iter_mut().find(|client| client.number == number).unwrap();
            (client.is_ready, client.since) = (true, self.start + SECOND * seconds);
        }
    }

    fn is_cut(client: &(Admitted, UnixStream)) -> bool {
        let mut fds = [PollFd::new(&client.1, PollFlags::empty())];
        poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }

    fn cut(clients: &[(Admitted, UnixStream)]) -> Vec<usize> {
        (0..clients.len()).filter(|index| is_cut(&clients[*index])).collect()
    }

    #[test]
    fn a_peer_with_too_many_loses_its_own() {
        let door = Door::new();
        let clients: Vec<_> = (0..6).map(|_| door.comes(1, 0).unwrap()).collect();
        assert!(door.comes(1, 0).is_none());
        // The first client has had enough time to say what it wants, so it has to go.
        let seventh = door.comes(1, 1).expect("one has taken too long");
        assert_eq!(cut(&clients), [0]);
        for client in &clients[1..] {
            door.asks(client, 2);
        }
        door.asks(&seventh, 2);
        assert!(door.comes(1, 61).is_none());
        assert!(door.comes(1, 62).is_some());
        assert_eq!(cut(&clients), [0, 1]);
    }

    #[test]
    fn a_peer_with_many_makes_room_for_others() {
        let door = Door::new();
        let heavy: Vec<_> = (0..6).map(|_| door.comes(1, 0).unwrap()).collect();
        for client in &heavy {
            door.asks(client, 1);
        }
        let others = [2, 3].map(|process| door.comes(process, 1).unwrap());
        door.asks(&heavy[0], 2);
        // There is no room, so the peer with the most clients loses the one that has been idle for longest.
        let third = door.comes(4, 2).expect("another one has more");
        assert_eq!((cut(&heavy), cut(&others)), (vec![1], vec![]));
        // A client that has not said what it wants goes before an idle one.
        let half = door.comes(1, 2);
        assert!(half.is_none(), "it is the heaviest itself");
        drop(third);
        let half = door.comes(1, 2).unwrap();
        let fifth = door.comes(5, 2).unwrap();
        assert!(is_cut(&half) && cut(&heavy) == [1]);
        drop((half, fifth));
    }

    /// If each peer has one client, idle clients go for newcomers, and active ones stay.
    #[test]
    fn many_peers_with_one_each_do_not_keep_others_out() {
        let door = Door::new();
        let clients: Vec<_> = (0..8).map(|process| door.comes(process, 0).unwrap()).collect();
        door.asks(&clients[0], 2);
        assert!(door.comes(9, 0).is_none());
        for process in 0..20 {
            let newest = door.comes(10 + process, 2 + process as u32).expect("others are silent");
            assert!(!is_cut(&newest));
        }
        assert!(!is_cut(&clients[0]));
        assert!(door.admission.clients() <= 8);
    }

    #[test]
    fn peers_are_distinguished() {
        let (one, _other) = UnixStream::pair().unwrap();
        let process = std::process::id() as i32;
        assert!(matches!(Peer::of(&one), Peer::Process { process: it, .. } if it == process));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(Peer::of(&client), Peer::Address([127, 0, 0, 1].into()));
        let unconnected = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(Peer::of(unconnected), Peer::Unknown);
    }
}
