#!/bin/sh
# faults.sh SERVICE DEVICE: makes the driver of a disk with an empty ext2 fail in every way that RS knows,
# while files are copied to the disk. Each copy must be right, then and after the disk is mounted anew.

service=$1 device=$2
mount $device /mnt || exit 1
cat /bin/* >/tmp/original
wanted=$(cksum </tmp/original)
failed=0

restarts() {
    service list | while read -r name number state count rest; do
        [ "$name" = $service ] && echo $count
    done
}

for fault in pointer loop port exit dumb call destination interrupt; do
    before=$(restarts)
    service fail $service $fault || failed=1
    copies=0
    # A hang shows when pings are not answered: until then, and once behind it, copies go on.
    while [ $copies -lt 40 ]; do
        cp /tmp/original /mnt/$fault || failed=1
        sync
        sum=$(cksum </mnt/$fault)
        if [ "$sum" != "$wanted" ]; then
            echo "$service: $fault: $sum, not $wanted"
            failed=1
        fi
        copies=$((copies + 1))
        [ "$(restarts)" != "$before" ] && break
        sleep 0.5
    done
    if [ "$(restarts)" = "$before" ]; then
        echo "$service: $fault: it was not replaced"
        failed=1
    fi
done

umount /mnt && mount $device /mnt || failed=1
for file in /mnt/pointer /mnt/loop /mnt/port /mnt/exit /mnt/dumb /mnt/call /mnt/destination /mnt/interrupt; do
    [ "$(cksum <$file)" = "$wanted" ] || { echo "$service: $file has changed"; failed=1; }
done
umount /mnt || failed=1
[ $failed = 0 ] && echo "$service: all faults survived, $(restarts) restarts"
exit $failed
