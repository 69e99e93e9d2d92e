# The network server's protocols in a program of the host: TCP over a bad network, and hostile packets.

# How many hostile packets to send.
NET_PACKETS ?= 200000

NET_TEST := $(BUILD)/tests/net
NET_TESTED := arp dhcp fragments icmp interface ip random sockets tcp tcp_ack tcp_in tcp_out timers udp

$(NET_TEST): $(wildcard tests/net/*.[ch] servers/net/*.[ch])
	@mkdir -p $(dir $@)
	gcc -m32 -O1 -g -Wall -Wextra -fsanitize=undefined,address -fno-sanitize-recover=all -idirafter include \
		-Iservers/net -o $@ tests/net/*.c $(NET_TESTED:%=servers/net/%.c)

test-net: $(NET_TEST)
	$(NET_TEST) parts
	$(NET_TEST) streams 1 60
	$(NET_TEST) hostile 1 $(NET_PACKETS)

.PHONY: test-net
