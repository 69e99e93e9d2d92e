#!/bin/sh
# late.sh SERVICE DEVICE: the driver of a disk with an empty ext2 gives an answer so late that FS has given up
# the request, and just before the answer to the next one. FS must not take the one for the other.

service=$1 device=$2 failed=0
mount -r $device /mnt && service fail $service late || exit 1
# Nothing is ever written, so the next two requests are those of these two.
[ "$(ls /mnt 2>/dev/null)" = "" ] || { echo "$service: there is an answer that did not come"; failed=1; }
[ "$(ls /mnt)" = lost+found ] || { echo "$service: the answer to another request was taken"; failed=1; }
umount /mnt || failed=1
[ $failed = 0 ] && echo "$service: late answers are ignored"
exit $failed
