//! What `--help` and `--nic help` say of network cards.

/// A list of what there is, with examples.
pub(super) const NIC: &str = "\
A network card, and what is behind it: KIND[,PROPERTY=VALUE]... Given up to eight times; if not given, there is no card.

Kinds:
  user      a NAT that needs no rights, in a process of its own; its properties are those of \"ring3 nat --help\", among them
            hostfwd=tcp|udp:[ADDRESS]:PORT-[ADDRESS]:PORT and restrict=on
  switch    a network with all others of this user that say so (see \"ring3 switch\"); path=SOCKET for another one
  stream    a connection with another machine, QEMU's too: addr=HOST:PORT|unix:PATH, server=on, reconnect=SECONDS
  dgram     packets to another machine or to several: local.type=inet|unix, local.host=ADDRESS, local.port=PORT,
            local.path=PATH, and the same of remote
  socket    the same in QEMU's older words: listen=|connect=|mcast=|udp=ADDRESS, localaddr=ADDRESS
  tap       an interface of the host that is there: ifname=NAME
  none      no card

Properties of each card:
  id=NAME                                      what tools call it
  model=virtio|e1000|rtl8029|ne2000            what it is; virtio if not given
  mac=ADDRESS                                  its address
  romfile=FILE                                 by which it boots from the network (--boot n): iPXE where that is installed and
                                               nothing is given, and romfile= for nothing
  pcap=FILE, pcap-filter=EXPRESSION            a copy of all packets, or of some
  mtu=BYTES, num-queues=N, disable-legacy=on|off, disable-modern=on|off
                                               of model=virtio
  iobase=PORT, irq=N                           of model=ne2000

Examples:
  --nic user                                   the guest reaches what the host does
  --nic user,hostfwd=tcp::2222-:22             and \"ssh -p 2222 localhost\" reaches the guest
  --nic user,model=e1000,pcap=packets.pcap
  --nic switch                                 each machine that says so is on one network
  --nic stream,addr=unix:link.sock,server=on   two machines: this is one,
  --nic stream,addr=unix:link.sock             and this is the other
  --nic tap,ifname=tap0";

#[cfg(test)]
mod tests {
    use super::super::NicProperties;
    use super::NIC;

    #[test]
    fn the_examples_are_understood() {
        let examples = NIC.lines().filter_map(|line| line.strip_prefix("  --nic "));
        let mut count = 0;
        for example in examples.filter_map(|line| line.split_whitespace().next()) {
            let nic: Result<NicProperties, _> = example.parse();
            assert!(nic.is_ok(), "{example}: {nic:?}");
            count += 1;
        }
        assert_eq!(count, 7);
    }
}
