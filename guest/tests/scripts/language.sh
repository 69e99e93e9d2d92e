#!/bin/sh
# Much of the language of the shell; what it must print is in language.expected, which dash says too.

echo hello "a  b" 'c $x' d\ e
x=5; y="v $x"; echo $y "$y" ${x}z ${#y} ${u:-def} ${u-} ${x:+set} 
for i in 1 2 3; do echo n$i; done | cat
i=0; while [ $i -lt 3 ]; do i=$((i+1)); if [ $i = 2 ]; then continue; fi; echo w$i; done
case abc in x) echo no;; a*|b) echo yes;; esac
f() { echo "f $1 $#"; return 3; }
f one two; echo "status $?"
echo $(echo sub; echo two) `echo bq`
set -- a "b c" d; for p in "$@"; do echo "<$p>"; done; echo "$*" $#; shift; echo $1
cat <<EOT
here $x $(echo cmd)
EOT
cat <<'EOT'
raw $x
EOT
echo a > /tmp/tt; echo b >> /tmp/tt; cat < /tmp/tt; cat /tmp/tt 2>/dev/null | grep -c .
false || echo or; true && echo and; ! false && echo neg
(cd /; pwd); { echo grp; } 2>&1
p=/usr/lib/foo.tar.gz; echo ${p##*/} ${p%.gz} ${p%%.*} ${p#/}
echo $((3+4*2)) $((10%3==1 ? 7 : 8)) $(( (1<<4)|1 ))
if false; then echo x; elif true; then echo elif; else echo e; fi
IFS=:; v=a:b:c; set -- $v; echo $2; IFS=' 	
'
until true; do :; done; echo "nested $(echo "in $(echo deep)")"
read a b < /tmp/tt; echo "read $a"
eval 'echo ev$x'
export Q=env; sh -c 'echo $Q'
[ -f /tmp/tt -a -n "x" ] && echo tests
echo "a\"b" 'it'"'"'s' "\$x"
g() { local=1; for i in 1 2 3 4; do [ $i = 3 ] && break; echo g$i; done; }; g
echo "quoted glob *" ; echo ${x}$x"$x"
x=$(exit 4); echo $?
"echo" ok; \echo ok2
false; x=$?; echo $x; x=1; echo $?; false; x=$(exit 1); echo $?; false; x=$(true); echo $?
