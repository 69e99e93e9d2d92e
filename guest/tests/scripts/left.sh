#!/bin/sh
# left.sh: the drivers console and ata fail while programs wait for them, and stay down (on-failure leave in
# /etc/services). Whoever waits must get an error, and whoever asks later too, until they are started again.

failed=0

wrong() {
    echo "left: $*"
    failed=1
}

is_down() {
    service list | grep -q "^$1 .* down "
}

# A program that waits for a key. The shell waits for it at most so long.
timeout 60 cat /dev/console >/tmp/keys 2>&1 &
reader=$!
sleep 1
service fail console pointer || wrong "console cannot fail"
wait $reader
status=$?
[ $status = 1 ] || wrong "the reader of the console ended with status $status"
grep "^cat: /dev/console: " /tmp/keys || wrong "the reader of the console got no error"
is_down console || wrong "console is not down"
timeout 60 cat /dev/console 2>/dev/null
[ $? = 1 ] || wrong "a console without a driver can be read"
service up console && sleep 1 && echo >/dev/console || wrong "the console does not come back"

# FS waits for the disk's driver until RS ends it. It does not wait for another one, which takes half a minute.
dd if=/dev/hda of=/tmp/sector count=1 2>/dev/null || wrong "the disk cannot be read"
service fail ata loop || wrong "ata cannot fail"
sleep 0.1
start=$(date +%s)
cat /dev/hda >/dev/null 2>&1 && wrong "a disk without a driver can be read"
seconds=$(($(date +%s) - start))
[ $seconds -le 15 ] || wrong "the disk's error took $seconds s"
is_down ata || wrong "ata is not down"
start=$(date +%s)
cat /dev/hda >/dev/null 2>&1 && wrong "a disk without a driver can be read later"
seconds=$(($(date +%s) - start))
[ $seconds -le 2 ] || wrong "the disk's second error took $seconds s"
service up ata && sleep 1 || wrong "ata does not come back"
dd if=/dev/hda of=/tmp/again count=1 2>/dev/null && cmp /tmp/sector /tmp/again || wrong "the disk has changed"

[ $failed = 0 ] && echo "left: nobody waits for a driver that stays down"
exit $failed
