# How RS reads its configuration and programs, in programs of the host.

RS_TEST := gcc -m32 -std=gnu99 -O1 -Wall -Wextra -ffreestanding -nostdinc -fno-pic -no-pie -Iinclude -fsanitize=undefined

test-rs:
	mkdir -p build/tests
	$(RS_TEST) -o build/tests/configuration tests/rs/configuration.c servers/rs/configuration.c
	$(RS_TEST) -o build/tests/program tests/rs/program.c lib/program.c
	build/tests/configuration etc/services
	build/tests/program

.PHONY: test-rs
