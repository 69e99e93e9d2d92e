#!/bin/sh
# commands.sh: what the shell and the small commands do. Prints what is not so.

failed=0

# same WHAT GOT WANTED
same() {
    [ "$2" = "$3" ] && return
    echo "$1: <$2>, not <$3>"
    failed=1
}

sh /tests/language.sh >/tmp/language 2>&1
cmp /tmp/language /tests/language.expected || failed=1
sh /tests/texts.sh >/tmp/texts 2>&1
cmp /tmp/texts /tests/texts.expected || failed=1
sh /tests/edit.sh >/tmp/edit.log 2>&1 || { cat /tmp/edit.log; failed=1; }

mkdir -p /tmp/c/a/b && cd /tmp/c || exit 1
seq 1 10 >ten
same seq "$(cat ten | tr '\n' ' ')" "1 2 3 4 5 6 7 8 9 10 "
same lost "$(seq 3 2>&1 >&-; echo $?)" "$(printf 'standard output: not all could be written\n1')"
same lost-echo "$(echo 3 2>&1 >&-; echo $?)" "$(printf 'sh: echo: standard output: Bad file descriptor\n1')"
same clock "$(clock pit 100; clock; clock apic 1000; clock; clock tickless; clock)" "$(printf 'pit 100\napic 1000\ntickless')"
clock pit 0 2>/dev/null && same clock-0 set refused
same head "$(head -n 2 ten | tr '\n' ,)" "1,2,"
same tail "$(tail -n 2 ten | tr '\n' ,)" "9,10,"
same tail-2 "$(tail -2 ten | tr '\n' ,)" "9,10,"
same sort "$(sort ten | head -3 | tr '\n' ,)" "1,10,2,"
same sort-n "$(sort -nr ten | head -2 | tr '\n' ,)" "10,9,"
same uniq "$(printf 'a\na\nb\n' | uniq -c | tr -d ' ' | tr '\n' ,)" "2a,1b,"
same grep "$(grep -n '^1' ten | tr '\n' ,)" "1:1,10:10,"
same grep-c "$(grep -c -v 1 ten)" 8
same wc "$(wc -l <ten | tr -d ' ')" 10
same basename "$(basename /x/y.c .c) $(dirname /x/y.c)" "y /x"
same printf "$(printf '%03d|%-3s|%x\n' 7 a 255)" "007|a  |ff"
# A program that has become another one is executed as that, however soon, and whatever is kept of the old one.
cp /bin/true program && ./program
same program $? 0
cat /bin/false >program
./program
same program-written $? 1
cp /bin/true other && ./other && mv other program && ./program
same program-replaced $? 0
rm program && cp /bin/false program
./program
same program-new $? 1
rm program
cp ten a/b/eleven && cp -r a copy
same cp "$(cksum <ten)" "$(cksum <copy/b/eleven)"
mv copy/b/eleven moved && rm -r copy
same find "$(find . | sort | tr '\n' ' ')" ". ./a ./a/b ./a/b/eleven ./moved ./ten "
ln moved hard && ln -s moved soft
same ln "$(cat hard soft | wc -l | tr -d ' ')" 20
same ls "$(ls | tr '\n' ' ')" "a hard moved soft ten "
chmod 640 moved
same chmod "$(ls -l moved | head -n 1 | tr -d '\n' | dd bs=10 count=1 2>/dev/null)" "-rw-r-----"
dd if=ten of=part bs=2 skip=1 count=2 2>/dev/null
same dd "$(tr '\n' , <part)" "2,3,"
same tee "$(echo x | tee t1 t2; cat t1 t2 | tr '\n' ,)" "x
x,x,"
same env "$(env A=b sh -c 'echo $A')" b
mknod fifo p
(echo through >fifo) &
same fifo "$(cat fifo)" through
wait
same yes "$(yes | head -n 3 | tr -d '\n')" yyy
same od "$(printf AB | od)" "00000000  41 42                                            AB"
sh -c 'kill -TERM $$'
same kill $? 143
# Commands about processes, names and the system.
same which "$(which ls)" /bin/ls
which missing && failed=1
timeout 0.1 sleep 5
same timeout $? 124
timeout 5 sh -c "exit 3"
same timeout-status $? 3
same nohup "$(nohup sh -c "kill -HUP \$\$; echo lives")" lives
same readlink "$(readlink soft) $(readlink -f soft)" "moved /tmp/c/moved"
same mktemp "$(test -f "$(mktemp x.XXXXXX)" && test -d "$(mktemp -d)" && echo both)" both
same strings "$(printf "\001abc\002long enough\003four" | strings | tr "\n" ,)" "long enough,four,"
same more "$(more ten | cksum)" "$(cksum <ten)"
same free "$(free | wc -l | tr -d " ")" 2
same uptime "$(uptime | cut -c 1-2)" up
dmesg >log || failed=1
which -x 2>/dev/null
same usage $? 2
cd / && rm -r /tmp/c
[ $failed = 0 ] && echo "commands: all right"
exit $failed
