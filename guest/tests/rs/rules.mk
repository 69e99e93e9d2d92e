# How RS reads its configuration and programs, in programs of the host.

RS_TEST := gcc -m32 -std=gnu99 -O1 -Wall -Wextra -ffreestanding -nostdinc -fno-pic -no-pie -Iinclude \
	-fsanitize=undefined

test-rs:
	mkdir -p $(BUILD)/tests
	$(RS_TEST) -o $(BUILD)/tests/configuration tests/rs/configuration.c servers/rs/configuration.c
	$(RS_TEST) -o $(BUILD)/tests/program tests/rs/program.c lib/program.c
	$(BUILD)/tests/configuration etc/services
	$(BUILD)/tests/program

.PHONY: test-rs
