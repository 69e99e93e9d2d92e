#!/bin/sh
# hal.sh: lets the service hal measure each of the four ways to ports. Each way must allow all accesses to the
# service's own ports and refuse the one behind them, for which RS ends the service.

failed=0
for way in message direct trap bitmap; do
    service way hal $way && service up hal || failed=1
    tries=0
    until dmesg | grep -q "^hal: $way: " && service list | grep -q '^hal .* down .*'; do
        sleep 0.1
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { echo "hal: $way: the port behind was not refused"; failed=1; break; }
    done
    dmesg | sed -n "/^hal: $way, /,\$p" >/tmp/$way
    grep "^hal: " /tmp/$way
    grep -q "^hal: $way: 0 of its own accesses were refused" /tmp/$way || failed=1
    # The processor's own refusal has no port; the others name it.
    [ $way = bitmap ] && refused="exception 13" || refused="no right to port 248"
    grep "$refused" /tmp/$way || { echo "hal: $way: no word of the refusal"; failed=1; }
done

[ $failed = 0 ] && echo "hal: each way obeys the rights"
exit $failed
