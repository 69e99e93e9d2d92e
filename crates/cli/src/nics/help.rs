//! The text of `--help` and `--nic help` about network cards.

/// The list of networks and properties, with examples.
pub(super) const NIC: &str = "\
A network card, and the network behind it: KIND[,PROPERTY=VALUE]... May be given up to eight times; by default there is no card.

Kinds:
  user      a NAT that needs no rights, in a process of its own; its properties are those of \"ring3 nat --help\", among them
            hostfwd=tcp|udp:[ADDRESS]:PORT-[ADDRESS]:PORT and restrict=on
  switch    a network of all this user's machines with this option (see \"ring3 switch\"); path=SOCKET for another switch,
            start=off to wait for one instead of starting it
  stream    a connection with another machine, also one of QEMU: addr=HOST:PORT|unix:PATH, server=on, reconnect=SECONDS
  dgram     packets to another machine or to several: local.type=inet|unix, local.host=ADDRESS, local.port=PORT,
            local.path=PATH, and the same for remote
  socket    stream and dgram in QEMU's older words: listen=|connect=|mcast=|udp=ADDRESS, localaddr=ADDRESS
  tap       an existing interface of the host: ifname=NAME
  none      no card

Properties of each card:
  id=NAME                                      its name for tools
  model=virtio|e1000|rtl8029|ne2000            its model; by default virtio
  mac=ADDRESS                                  its address
  romfile=FILE                                 its ROM for booting from the network (--boot n); by default iPXE, if it
                                               is installed; an empty name for no ROM
  pcap=FILE, pcap-filter=EXPRESSION            a copy of all packets, or of those that match
  mtu=BYTES, num-queues=N, disable-legacy=on|off, disable-modern=on|off
                                               only for model=virtio
  iobase=PORT, irq=N                           only for model=ne2000

Examples:
  --nic user                                   the guest reaches all that the host reaches
  --nic user,hostfwd=tcp::2222-:22             and \"ssh -p 2222 localhost\" reaches the guest
  --nic user,model=e1000,pcap=packets.pcap
  --nic switch                                 all machines with this option are on one network
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
