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

echo "== sed"
sed s/an/AN/ right
sed 's/an/AN/g; s/d\(.\)t/<\1&>/' right
sed -n '2p;$=' left
sed -e 2d -e 's/$/!/' left
sed '/banana/,$d' left
sed -n '/a/,/b/p' left right
sed '2!s/^/  /' left
sed -E 's/(a|b)+/[&]/2' right
sed '1i\
before
2a after
3c changed' left
sed -n 'H;${x;s/\n/,/g;p}' left
sed ':a;N;$!ba;s/\n/+/g' left
sed '1!G;h;$!d' left
sed y/abc/xyz/ left
sed 's|/usr/\(bin\)|\1/usr|;s/[/]/:/g' <<END
/usr/bin
END
sed -n l tabs
sed 2q left
sed '1q5' left; echo $?
sed 's/x*/-/g' left
sed 's/a/\n/;P;D' left
sed -n '/banana/{s/a/o/gp;=
}' left
sed '2,1s/^/#/' left
sed '1,+1s/^/#/' left
sed 's/\t/<tab>/;s/ \{2,\}/_/' tabs
sed -n '$!{n;p}' left
sed '$!N;s/\n/ /' left
sed 's/A/x/I' left
sed -e 't end' -e 's/an/n/;ta' -e 's/^/no /' -e ':a' -e ':end' left
printf 'no newline' | sed 's/no/a/'; echo
cp left edited; sed -i s/a/A/ edited; cat edited
sed -n 'w written' left; cat written
sed k left 2>/dev/null || echo refused
sed 's/a' left 2>/dev/null || echo refused

echo "== xargs"
seq 1 7 | xargs
seq 1 7 | xargs -n 3 echo n
printf 'a b\nc\n' | xargs -I % echo '<%>' %%
printf '"a b" c\\ d\n' | xargs -n 1
printf 'x y\0z\0' | xargs -0 -n 1 echo
xargs -r echo nothing </dev/null
xargs echo something </dev/null
echo a | xargs false; echo $?
echo a | xargs /missing 2>/dev/null; echo $?

echo "== expr"
expr 1 + 2 \* 3
expr \( 1 + 2 \) \* 3
expr 7 / 2 - 7 % 2
expr 10 \> 9 \& 2 \< 10
expr abc \< abd
expr a = b; echo $?
expr abcdef : 'abc\(.*\)'
expr abcdef : 'b'; echo $?
expr abcdef : '.*'
expr '' \| 5
expr 1 / 0 2>/dev/null; echo $?
expr 2 - 5

echo "== diff"
diff left right; echo $?
diff left left; echo $?
diff -q left right
seq 1 40 >numbers
sed -e 3d -e 's/^8$/eight/' -e '20a\
twenty and a half' -e '30,31d' numbers >changed
diff numbers changed
diff -u numbers changed | sed '1,2s/	.*//'
printf 'one\ntwo' >unended
printf 'one\ntwo\n' | diff unended -
printf 'one\ntwo\nthree' | diff -u unended - | sed '1,2s/	.*//'
diff /dev/null left
diff -u left /dev/null | sed '1,2s/	.*//'
diff left missing 2>/dev/null; echo $?
cd / && rm -r /tmp/texts.d
