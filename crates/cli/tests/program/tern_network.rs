//! Tern's drivers of network cards, and its network server, against servers on this host.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use crate::tern::tern;

/// Bytes of the file that is fetched and sent.
const LEN: usize = 300_000;

/// The names of cards, and of the services in Tern that drive them.
const CARDS: [(&str, &str); 3] =
    [("virtio", "virtio_net"), ("rtl8029", "ne2000"), ("ne2000", "ne2000_isa")];

fn file() -> Vec<u8> {
    (0..LEN as u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Accepts connections for ever, and returns the port.
fn server(serve: impl Fn(TcpStream) + Send + 'static) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || listener.incoming().flatten().for_each(serve));
    port
}

/// A server that answers each request with the file.
fn http_server() -> u16 {
    server(|mut client| {
        // A request is short. A client that has ended meanwhile does not get its answer.
        let _ = client.read(&mut [0; 4096]);
        let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {LEN}\r\n\r\n");
        let _ = client.write_all(head.as_bytes()).and_then(|()| client.write_all(&file()));
    })
}

/// A server that takes one file.
fn sink() -> (u16, JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let taken = thread::spawn(move || {
        let mut bytes = vec![0; LEN];
        listener.accept().unwrap().0.read_exact(&mut bytes).unwrap();
        bytes
    });
    (port, taken)
}

/// By each card a file comes in and goes out, with an address from DHCP.
#[test]
fn files_pass_through_all_cards() {
    let from = http_server();
    for (card, service, engine) in CARDS
        .map(|(card, service)| (card, service, "translator"))
        .into_iter()
        .chain([("virtio", "virtio_net", "interpreter")])
    {
        let (to, taken) = sink();
        let commands = format!(
            "for i in $(seq 100); do ifconfig {service} | grep 'by DHCP' && break; sleep 0.1; done; ping -c 1 10.0.2.2; \
             fetch http://10.0.2.2:{from}/file >/file && nc 10.0.2.2 {to} </file"
        );
        let nic = format!("user,model={card}");
        let arguments = ["--engine", engine, "--nic", &nic];
        let Some(text) = tern(&commands, &arguments) else { return };
        assert!(text.contains("10.0.2.15") && text.contains("1 sent, 1 answered"), "{text}");
        assert!(taken.join().unwrap() == file(), "{card} on the {engine}: {text}");
    }
}

/// A peer that has closed a connection refuses its ports for some time (TIME-WAIT), so each connection has another one.
#[test]
fn hundreds_of_connections_follow_each_other() {
    let port = server(|mut client| {
        let mut request = [0];
        let _ = client.read_exact(&mut request).and_then(|()| client.write_all(&request));
    });
    let command = format!(
        "for i in $(seq 100); do ifconfig virtio_net | grep 'by DHCP' && break; sleep 0.1; done; \
         suite io_network_latency 500 10.0.2.2:{port}"
    );
    tern(&command, &["--nic", "user"]);
}

/// Files come through although the driver fails in every way.
#[test]
fn tern_replaces_the_driver_of_a_card_while_files_are_fetched() {
    let port = http_server();
    let command = format!("sh /tests/cards.sh virtio_net http://10.0.2.2:{port}/file");
    let Some(text) = tern(&command, &["--nic", "user,model=virtio"]) else { return };
    assert!(text.contains("virtio_net: all faults survived, 8 restarts"), "{text}");
}
