#!/bin/sh
# ways.sh SERVICE DEVICE: copies files to a disk with an empty ext2 while its driver reaches ports in each of
# the ways, and copies a part of the disk itself in blocks that are no whole sectors, to where it was.

service=$1 device=$2 failed=0
mount $device /mnt || exit 1
cat /bin/* >/tmp/original
wanted=$(cksum </tmp/original)

raw() {
    dd if=$device of=/tmp/large bs=300100 count=2 && dd if=$device of=/tmp/small bs=3001 count=200 &&
        cmp /tmp/large /tmp/small &&
        dd if=/tmp/large of=$device bs=300100 && dd if=/tmp/small of=$device bs=75025 &&
        dd if=$device of=/tmp/small bs=75025 count=8 && cmp /tmp/large /tmp/small
}

for way in message direct trap bitmap kernel; do
    service way $service $way && service restart $service || failed=1
    cp /tmp/original /mnt/$way && sync || failed=1
    umount /mnt || failed=1
    raw >/dev/null 2>&1 || { echo "$service: $way: blocks of the disk are wrong"; failed=1; }
    mount $device /mnt || failed=1
    [ "$(cksum </mnt/$way)" = "$wanted" ] || { echo "$service: $way: the copy is wrong"; failed=1; }
    service list | grep -q "^$service .* up .* $way\$" || { echo "$service: $way: it is not up"; failed=1; }
done

umount /mnt || failed=1
[ $failed = 0 ] && echo "$service: right in all ways"
exit $failed
