#!/bin/sh
# cards.sh SERVICE URL: makes the driver of a network card fail in every way that RS knows, while a file is
# fetched from URL again and again. The file must be right each time.

service=$1 url=$2
for i in $(seq 100); do
    ifconfig $service | grep 'by DHCP' && break
    sleep 0.1
done
wanted=$(fetch $url | cksum)
failed=0

restarts() {
    service list | while read -r name number state count rest; do
        [ "$name" = $service ] && echo $count
    done
}

for fault in pointer loop port exit dumb call destination interrupt; do
    before=$(restarts)
    fetches=0
    service fail $service $fault || failed=1
    # A hang shows when pings are not answered: until then, and once behind it, fetches go on.
    while [ $fetches -lt 100 ]; do
        sum=$(fetch $url | cksum)
        if [ "$sum" != "$wanted" ]; then
            echo "$service: $fault: $sum, not $wanted"
            failed=1
        fi
        fetches=$((fetches + 1))
        [ "$(restarts)" != "$before" ] && break
        sleep 0.1
    done
    if [ "$(restarts)" = "$before" ]; then
        echo "$service: $fault: it was not replaced"
        failed=1
    fi
done
[ $failed = 0 ] && echo "$service: all faults survived, $(restarts) restarts"
exit $failed
