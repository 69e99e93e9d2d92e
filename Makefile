# Entry points for people and for CI; the work is done by cargo and by the
# scripts in tests/guests. `make help` lists the targets.

export RING3_GUESTS := $(abspath $(or $(RING3_GUESTS),guests))
# Where rustup installs, for shells that have not read its profile yet.
export PATH := $(PATH):$(HOME)/.cargo/bin

# For `make run`: the guest's kernel command line, its memory, further options.
APPEND ?= console=ttyS0
MEMORY ?= 128M
ARGS ?=

# For `make power-cuts`: how many for each kind of image.
CUTS ?= 10000

# For `make chaos`: how many kills.
KILLS ?= 1000

# For `make fuzz-cpu`: how many random instructions to compare, for each of the testers.
CASES ?= 10000000

# Which instruction forms the tests have executed; to print that fails if some form is not among them.
COVERAGE := $(CURDIR)/target/cpu-coverage
PRINT_COVERAGE := target/gate/examples/cpu_coverage $(COVERAGE)

# Which tests could not run on this host, and why.
SKIPPED := $(CURDIR)/target/skipped

# How many tests of a program run at once. Those on guests and servers wait for a third of their time.
export RUST_TEST_THREADS ?= $(shell echo $$((2 * $$(nproc))))

# For `make fuzz-bytes`, `make fuzz-images` and `make fuzz-virtio`: how long to look, and where new cases are kept.
FUZZ_SECONDS ?= 600
FUZZ_CASES := $(CURDIR)/target/fuzz-bytes
FUZZ_IMAGES := $(CURDIR)/target/fuzz-images
FUZZ_VIRTIO := $(CURDIR)/target/fuzz-virtio

SCRIPTS := .ci/run packaging/deb packaging/try-deb $(addprefix tests/guests/,archive cloud-amd64 disk disk-amd64 exits fetch fetch-debug init initramfs install-needs iso suite tern-source unpack)

.PHONY: build
build: needs ## build ring3 (the default)
	cargo build --release

.PHONY: run
run: build guests ## boot Linux to a shell in this terminal (Ctrl-A x ends it)
	cargo run --quiet --release --bin ring3 -- run \
		--kernel $(RING3_GUESTS)/linux-686/vmlinuz \
		--initrd $(RING3_GUESTS)/initramfs.cpio.gz \
		--append "$(APPEND)" -m $(MEMORY) $(ARGS)

.PHONY: run64
run64: build guests ## the same with 64-bit Linux
	cargo run --quiet --release --bin ring3 -- run \
		--kernel $(RING3_GUESTS)/linux-amd64/vmlinuz \
		--initrd $(RING3_GUESTS)/initramfs-amd64.cpio.gz \
		--append "$(APPEND)" -m $(MEMORY) $(ARGS)

# Guests come over the network while the checks compute. Two groups of test programs run at once: those on guests and servers leave a processor idle now and then, and
# many others are one long computation. The first group tests the program `ring3` as a whole.
.PHONY: test
test: export RING3_COVERAGE := $(COVERAGE)
test: export RING3_SKIPPED := $(SKIPPED)
test: export PROPTEST_CASES ?= 100
test: needs ## all checks and all tests, those on real guests too
	rm -rf $(COVERAGE) $(SKIPPED)
	$(MAKE) --no-print-directory --jobs=2 --output-sync=line check guests
	cargo test --workspace --profile gate --no-run
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-program test-parts
	cargo test --workspace --profile gate --test bench_net
	@$(PRINT_COVERAGE) >$(COVERAGE).txt || { head -n 20 $(COVERAGE).txt >&2; exit 1; }
	@touch $(SKIPPED); sort -u $(SKIPPED); echo "$$(sort -u $(SKIPPED) | wc -l) tests were skipped"

.PHONY: test-program test-parts
test-program:
	cargo test --workspace --profile gate --test program
test-parts:
	cargo test --workspace --profile gate --lib --bins
	cargo test --workspace --profile gate --test '[!bp]*'
	MAKEFLAGS= cargo test --workspace --profile gate --doc
	$(MAKE) --no-print-directory --silent -C guest BUILD=$(CURDIR)/target/guest test-rs test-fs test-lib test-net

.PHONY: test-long
test-long: guests guests-debug guests-cloud ## the tests that take many minutes: all cases of random tests, and long runs of guests
	RING3_MALFORMED=1000 cargo test --workspace --profile gate --test allocations
	RING3_MALFORMED=1000 cargo test --workspace --profile gate --test whole malformed
	RING3_POWER_CUTS=1000 RING3_FUZZ_TIMES=10 cargo test --workspace --profile gate --test whole -- \
		power_cuts full_disk
	RING3_FUZZ_TIMES=20 PROPTEST_CASES=1000 cargo test --workspace --profile gate --lib --test '[!abpw]*' --test any_bytes
	cargo test --workspace --profile gate --test program --test whole -- --ignored --skip server_process --skip chaos
	$(MAKE) --no-print-directory --silent -C guest BUILD=$(CURDIR)/target/guest NET_PACKETS=1000000 test-net

.PHONY: chaos
chaos: guests ## kill servers and the supervisor KILLS times under load: nothing must be lost
	RING3_CHAOS_KILLS=$(KILLS) cargo test --workspace --profile gate --test program -- --ignored --nocapture \
		supervisor::nothing_is_lost_in_chaos

.PHONY: test-checked
test-checked: needs ## the unit tests with checks for overflow and debug assertions
	cargo test --profile checked --workspace --lib
	cargo test --profile checked -p ring3-x86 -p ring3-translator --tests

.PHONY: check
check: needs ## formatting, lints, documentation, and licences where cargo-deny is installed
	cargo fmt --check
	cargo clippy --profile gate --workspace --all-targets -- -D warnings
	$(MAKE) --no-print-directory doc
	shellcheck $(SCRIPTS)
	@if command -v cargo-deny >/dev/null; then set -x; cargo deny check bans licenses sources; else \
		echo "cargo-deny is missing, so licences were not checked; get it with: cargo install --locked cargo-deny"; fi

.PHONY: bench
bench: guests ## measure parts, and whole systems beside the QEMU that is installed
	cargo bench --workspace
	cargo run --release -- bench boot
	cargo run --release -- bench work
	cargo run --release -- bench cpu
	cargo run --release -- bench exits

.PHONY: fuzz-cpu
fuzz-cpu: needs ## compare random instructions with this machine's CPU
	RING3_FUZZ_CASES=$(CASES) cargo test --release --no-fail-fast -p ring3-x86 \
		--test host_cpu --test host_x87 -- --nocapture
	RING3_FUZZ_CASES=$(CASES) cargo test --release -p ring3-translator --test host_cpu -- --nocapture

.PHONY: fuzz-bytes
fuzz-bytes: needs ## look for FUZZ_SECONDS for bytes on which the processor panics or hangs
	@command -v cargo-fuzz >/dev/null || \
		{ echo "cargo-fuzz is missing; get it with: cargo install --locked cargo-fuzz" >&2; exit 1; }
	mkdir -p $(FUZZ_CASES)
	cd crates/x86 && cargo fuzz run --sanitizer none any_bytes $(FUZZ_CASES) fuzz/corpus/any_bytes \
		-- -max_total_time=$(FUZZ_SECONDS) -max_len=384 -len_control=0 -timeout=20

.PHONY: fuzz-images
fuzz-images: needs ## look for FUZZ_SECONDS for images on which a format panics or hangs
	@command -v cargo-fuzz >/dev/null || \
		{ echo "cargo-fuzz is missing; get it with: cargo install --locked cargo-fuzz" >&2; exit 1; }
	mkdir -p $(FUZZ_IMAGES)
	cd crates/block && cargo fuzz run --sanitizer none images $(FUZZ_IMAGES) \
		-- -max_total_time=$(FUZZ_SECONDS) -max_len=65536 -timeout=20 -rss_limit_mb=1024

.PHONY: fuzz-virtio
fuzz-virtio: needs ## look for FUZZ_SECONDS for drivers on which a virtio device panics or hangs
	@command -v cargo-fuzz >/dev/null || \
		{ echo "cargo-fuzz is missing; get it with: cargo install --locked cargo-fuzz" >&2; exit 1; }
	mkdir -p $(FUZZ_VIRTIO)
	cd crates/devices && cargo fuzz run --sanitizer none virtio $(FUZZ_VIRTIO) \
		-- -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -timeout=20 -rss_limit_mb=1024

.PHONY: power-cuts
power-cuts: needs ## cut the power of each kind of image CUTS times, and look at what is left
	RING3_POWER_CUTS=$(CUTS) cargo test --release -p ring3-block --test whole power_cuts

.PHONY: cpu-coverage
cpu-coverage: needs ## print which instruction forms which test has executed, none first
	rm -rf $(COVERAGE)
	RING3_COVERAGE=$(COVERAGE) cargo test --quiet --profile gate -p ring3-x86 --tests >/dev/null
	@cargo build --quiet --profile gate -p ring3-x86 --example cpu_coverage
	$(PRINT_COVERAGE)

.PHONY: doc
doc: needs ## document all crates for those who work on them, into target/doc
	RUSTDOCFLAGS="-D warnings" cargo doc --profile gate --quiet --workspace --no-deps --document-private-items

.PHONY: book
book: ## build the book into target/book
	@command -v mdbook >/dev/null || \
		{ echo "mdbook is missing; get it with: cargo install --locked mdbook" >&2; exit 1; }
	mdbook build book

.PHONY: deb
deb: build ## make a Debian package in target/debian
	@packaging/deb target/release/ring3 target/debian

.PHONY: try-deb
try-deb: build guests ## install the package in a new, minimal Debian, and try it there
	packaging/try-deb $$(packaging/deb target/release/ring3 target/debian) \
		$(RING3_GUESTS)/linux-686/vmlinuz $(RING3_GUESTS)/initramfs.cpio.gz

.PHONY: guests
guests: needs ## fetch and build the guests (quick when they are there)
	@tests/guests/fetch
	@tests/guests/unpack
	@tests/guests/initramfs
	@tests/guests/suite
	@tests/guests/exits
	@tests/guests/iso
	@tests/guests/disk
	@tests/guests/disk-amd64
	@tests/guests/tern-source

.PHONY: guests-debug
guests-debug: guests ## fetch the names and lines of the guests' kernels for debuggers, 1.5 GB
	@tests/guests/fetch-debug

.PHONY: guests-cloud
guests-cloud: needs ## build a disk with Debian as clouds offer it, 200 MB
	@tests/guests/cloud-amd64

.PHONY: needs
needs: ## install missing Debian packages
	@tests/guests/install-needs

.PHONY: clean
clean: ## remove what was built; the fetched guests stay
	cargo clean

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile | expand -t 12
