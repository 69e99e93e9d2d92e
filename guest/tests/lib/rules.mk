# The C library against the host's, in one 32-bit program of the host.

LIB_TESTED := string ctype division memory numbers sort decimal strtod format file write_all characters \
	print scan time fnmatch regcomp regexec math error setjmp
LIB_TEST := $(BUILD)/tests/lib

test-lib:
	mkdir -p $(LIB_TEST)
	for name in $(LIB_TESTED); do \
		source=lib/$$name.c; [ -f $$source ] || source=lib/$$name.S; \
		gcc -m32 -std=c99 -Os -march=i686 -ffreestanding -fno-pic -fno-stack-protector -nostdinc -Iinclude \
			-c -o $(LIB_TEST)/$$name.o $$source || exit 1; \
	done
	ld -m elf_i386 -r -o $(LIB_TEST)/all.o $(LIB_TESTED:%=$(LIB_TEST)/%.o)
	objcopy --prefix-symbols=t_ $(LIB_TEST)/all.o
	gcc -m32 -no-pie -O1 -std=gnu99 -Wall -fno-builtin -o $(LIB_TEST)/compare tests/lib/compare.c \
		$(LIB_TEST)/all.o -lm
	$(LIB_TEST)/compare

.PHONY: test-lib
