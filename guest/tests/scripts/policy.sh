#!/bin/sh
# policy.sh SERVICE: lets a service fail, for which scripts decide, in all the ways that they can.

service=$1
failed=0

# shown COLUMN: what `service list` says of the service.
shown() {
    service list | while read -r name number state count cause rest; do
        [ "$name" = $service ] || continue
        case $1 in
        state) echo $state ;;
        restarts) echo $count ;;
        esac
    done
}

# is COLUMN VALUE: waits until it is so.
is() {
    tries=0
    while [ "$(shown $1)" != "$2" ]; do
        tries=$((tries + 1))
        if [ $tries = 100 ]; then
            echo "$service: its $1 is $(shown $1), not $2"
            failed=1
            return
        fi
        sleep 0.1
    done
}

echo 'echo "$*" >>/tmp/heard; sleep 0.2; service up "$1"' >/tmp/up
service script $service /tmp/up || failed=1
service fail $service exit
is restarts 1
is state up
service fail $service pointer
is restarts 2
is state up
service restart $service
is restarts 3
is state up
service fail $service call
is restarts 4
is state up
cat /tmp/heard

# A service that is to stay down.
echo 'service down "$1"' >/tmp/down
service script $service /tmp/down
service fail $service exit
is state down
service up $service
is state up
is restarts 4

# A script that does nothing, and one that is not there any more.
echo 'exit 1' >/tmp/idle
service script $service /tmp/idle
service fail $service exit
is restarts 5
is state up
rm /tmp/idle
service fail $service exit
is restarts 6
is state up

# A script that never ends: after half a minute RS does not wait for it any longer.
echo 'echo waits >/tmp/waits; sleep 1000' >/tmp/long
service script $service /tmp/long
service fail $service exit
while [ ! -f /tmp/waits ]; do sleep 0.1; done
is state waiting
is restarts 6
sleep 25
is state waiting
sleep 6
is state up
is restarts 7

# Without a script it is as before.
service script $service none
service fail $service exit
is restarts 8
is state up

# The servers that execute scripts have none.
service script fs /tmp/up 2>/dev/null && failed=1
service script pm /tmp/up 2>/dev/null && failed=1
service script $service /tmp/none 2>/dev/null && failed=1
[ $failed = 0 ] && echo "$service: all scripts have decided"
exit $failed
