#!/bin/sh
# hal.sh: lets the service hal measure each of the ways to ports (drivers/hal). Each way must allow all accesses
# to the service's own ports, and all but the last one must refuse the port behind them and a word that reaches
# it, for which RS ends the service.

failed=0

wrong() {
    echo "hal: $*"
    failed=1
}

# Waits until RS and FS say so.
wait_for() {
    tries=0
    until eval "$1" 2>/dev/null; do
        sleep 0.1
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { wrong "$2"; return 1; }
    done
}

start() {
    service up hal || failed=1
    wait_for 'echo "loop 0" >/dev/hal' "$way: it does not come up"
}

for way in message direct trap bitmap kernel; do
    service way hal $way || failed=1
    start
    dmesg >/tmp/before
    for access in loop nothing in8 in16 in32 out8 out16 out32 ins8 ins16 ins32 outs8 outs16 outs32 vector; do
        # Twice, as a timer may interrupt one of them.
        for again in 1 2; do
            echo "$access 10" >/dev/hal || wrong "$way: $access was refused"
            echo "$way $(cat /dev/hal)"
        done
    done
    dmesg >/tmp/after
    cmp /tmp/before /tmp/after || wrong "$way: the kernel has said something of its own ports"
    # In the kernel nothing is refused, and a fault of the driver itself is still its end.
    if [ $way = kernel ]; then
        echo "behind 1" >/dev/hal || wrong "$way: the port behind was refused"
        service fail hal call
        wait_for 'service list | grep -q "^hal .* down .*"' "$way: it does not end"
        continue
    fi
    for access in behind:248 across:247; do
        port=${access#*:} access=${access%:*}
        # The processor's own refusal has no port; the others name it.
        [ $way = bitmap ] && refused="exception 13" || refused="no right to port $port"
        before=$(dmesg | grep -c "$refused")
        echo "$access 1" >/dev/hal 2>/dev/null
        wait_for 'service list | grep -q "^hal .* down .*"' "$way: $access was not refused"
        [ $(dmesg | grep -c "$refused") -gt $before ] || wrong "$way: no word of the refusal of $access"
        [ $access = behind ] && start
    done
done

[ $failed = 0 ] && echo "hal: each way obeys the rights"
exit $failed
