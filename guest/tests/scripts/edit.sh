#!/bin/sh
# edit.sh: the editor, with keys from a pipe. Prints what is not so.

failed=0

# edited WHAT KEYS WANTED: edits a file with the lines one, two and three.
edited() {
    printf 'one\ntwo\nthree\n' >/tmp/edited
    printf "$2" | edit /tmp/edited >/tmp/screen
    got=$(tr '\n' , </tmp/edited)
    [ "$got" = "$3" ] && return
    echo "edit: $1: <$got>, not <$3>"
    failed=1
}

edited insert 'x\ry\023\021' "x,yone,two,three,"
edited end '\033[F!\033[B?\023\021' "one!,two?,three,"
edited delete '\033[3~\033[B\033[3~\177\023\021' "newo,three,"
edited undo '\033[3~\033[3~\032\023\021' "one,two,three,"
edited redo 'abc\032\032\023\021' "abcone,two,three,"
edited search '\027hr\r!\023\021' "one,two,t!hree,"
edited again '\027o\r\016!\023\021' "!one,two,three,"
edited line '\0073\r>\023\021' "one,two,>three,"
edited cut '\013\033[B\026\023\021' "two,one,three,"
edited lose 'x\021y\r' "one,two,three,"
edited keep 'x\021n\r\023\021' "xone,two,three,"
edited page '\033[6~a\033[5~b\023\021' "obne,two,three,a"
edited cancel '\027zz\003x\023\021' "xone,two,three,"
grep -q "\[7m/tmp/edited" /tmp/screen || { echo "edit: no state is shown"; failed=1; }

# A file of some megabytes, and one with a long line.
yes 'a line of a long file' | head -n 100000 >/tmp/long
printf '\00799999\rX\033[5~\0071\rY\023\021' | edit /tmp/long >/tmp/screen
[ "$(grep -n '^[XY]' /tmp/long | tr '\n' ,)" = "1:Ya line of a long file,99999:Xa line of a long file," ] ||
    { echo "edit: a long file"; failed=1; }
tr '\n' ' ' </tmp/long >/tmp/edited
printf '\033[FZ\033[HA\023\021' | edit /tmp/edited >/tmp/screen
[ "$(cut -c 1-3 /tmp/edited)$(cut -c 2200002- /tmp/edited)" = "AYae Z" ] ||
    { echo "edit: a long line"; failed=1; }

edit 2>/dev/null
[ $? = 2 ] || { echo "edit: no usage"; failed=1; }
rm /tmp/edited /tmp/long /tmp/screen
[ $failed = 0 ] && echo "edit: all right"
exit $failed
