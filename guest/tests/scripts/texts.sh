# texts.sh: commands for texts. texts.expected is what Debian's dash and its commands print.

mkdir /tmp/texts.d && cd /tmp/texts.d || exit 1
printf 'one:two:three\nno delimiter\na:b:\n::\n' >colons
printf 'apple\nbanana\ncherry\n' >left
printf 'banana\ncherry\ndate\n' >right
printf 'a\tb\n\tindented\n12345678\tx\n\n  two\ttabs\n' >tabs

echo "== cut"
cut -d : -f 2 colons
cut -d : -f 2- -s colons
cut -c 1-3,5 colons
cut -b -2 colons
cut -d: -f1,3 <colons
cut -c 0 colons 2>/dev/null || echo refused
cut -x 2>/dev/null || echo refused

echo "== paste"
paste left right
paste -d , left colons
paste -s left right
paste -s -d '+-' colons
seq 1 7 | paste -d ' ' - - -
paste left missing 2>/dev/null || echo refused

echo "== comm"
comm left right
comm -12 left right
comm -3 left right
comm -13 left right

echo "== fold"
seq 1 30 | tr '\n' ' ' | fold -w 20
seq 1 30 | tr '\n' ' ' | fold -s -w 20; echo
printf 'a\tbcdefghijk\n' | fold -w 10
printf 'a\tbcdefghijk\n' | fold -b -w 10
printf '\n\nx\n' | fold

echo "== rev and tac"
rev left tabs
tac left right
seq 1 5 | tac

echo "== nl"
nl tabs
nl -b a -w 3 -s ': ' tabs
nl -v 10 -i 5 left

echo "== expand"
expand tabs
expand -t 4 tabs
expand -i tabs
cd / && rm -r /tmp/texts.d
