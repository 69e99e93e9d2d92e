#!/bin/sh
# ways.sh SERVICE DEVICE: copies files to a disk with an empty ext2 while its driver reaches ports in each of
# the ways.

service=$1 device=$2 failed=0
mount $device /mnt || exit 1
cat /bin/* >/tmp/original
wanted=$(cksum </tmp/original)

for way in message direct trap bitmap kernel; do
    service way $service $way && service restart $service || failed=1
    cp /tmp/original /mnt/$way && sync || failed=1
    umount /mnt && mount $device /mnt || failed=1
    [ "$(cksum </mnt/$way)" = "$wanted" ] || { echo "$service: $way: the copy is wrong"; failed=1; }
    service list | grep -q "^$service .* up .* $way\$" || { echo "$service: $way: it is not up"; failed=1; }
done

umount /mnt || failed=1
[ $failed = 0 ] && echo "$service: right in all ways"
exit $failed
