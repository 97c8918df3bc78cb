# The one entry point. Each target does its own set-up.
#
#   make deps    install what is missing (Debian packages, .venv); says what it installs
#   make build   the switch, the rig, the lab
#   make demo    two real guests, side by side on the standard path and on memlane
#   make check   while working: formats, lints, types, unit tests, the switch's tests that may run together, links; a minute after an edit
#   make test    everything that can be checked here
#   make prove   what takes longer than tests may: harnesses, interleavings, sanitizers, fuzzing (PROVE_SECONDS=20 each), more guests, the oldest
#                toolchain, another architecture, guests of Xen; names what is missing
#   make soak    everything at once on sixteen guests, for twenty minutes (SECONDS=1200); make test does it for seconds
#   make lint    formats, lints, types, words, links in doc comments
#   make docs    the pages as a book: target/book/index.html; fetches mdbook the first time
#   make docs-reference  generates docs/reference again, after a change of keys, commands, routes, counters, guarantees or the places of tests
#   make docs-words  the words of each hand-written page, against the aim
#   make deny    licences, known vulnerabilities, sources and duplicates of the crates
#   make bench   criterion benches of ring, table and worker, and memlane against the kernel's bridge
#   make ablation  memlane without one idea at a time, for the lab's what_each_idea_is_worth and _waiting_rule_: target/ablation
#   make headlines  the primary endpoints in 20 minutes, of a commit with REV=COMMIT; all its runs, with an interval between them if they are five
#   make figures  writes the figures of README and docs again, of each the newest published run; names those of an older data path
#   make bench-gate REV=COMMIT  is this tree slower than COMMIT? Exit code 1 if a row is, 3 if the rounds do not tell
#   make bench-observe  the cost of a capture, scrapes, top and the watchdog against their bars: 5 minutes on a quiet machine
#   make bench-addresses  the cost of anti-spoofing, policy rules and a large segment against their bars: 2 minutes on a quiet machine
#   make bench-attach  the CPU time of attaching and detaching ports in a network of thousands, its threads and memory, against bars: 2 minutes on a quiet machine
#   make bench-holes  how late a pair's frames are beside a guest whose frames lie in holes of its memory: 2 minutes on a quiet machine
#   make bench-resolution  the ARP and ND frames that 100 guests receive, beside the kernel's bridge: 2 minutes, as root
#   make bench-uplinks  an uplink by AF_XDP against one by TAP and bridge: 2 minutes on a quiet machine, as root
#   make fuzz    every fuzz target for a minute each (FUZZ_SECONDS=60)
#   make fuzz-corpus  only the committed seeds, without a fuzzer; make test does that too
#   make xenvmnic  XenVMNIC, the guests' module for Xen, for Debian's kernel: target/xenvmnic/xenvmnic.ko
#   make package  memlane as .deb and .rpm, the lab as .deb and wheel: target/package
#   make kit      one file that measures memlane beside its rivals on another machine, with KVM: target/memlane-kit
#   make static   memlane as one program without libraries: target/package/build
#   make test-xen  guests of Xen on memlane and beside it, on the real hypervisor in an emulated PC (a quarter of an hour after make build)

LAB := .venv/bin/memlane-lab
# Namespaces, TAPs and bridges need root; what is built and kept stays the user's own.
AS_ROOT := $(if $(filter-out 0,$(shell id -u)),sudo env "HOME=$$HOME" "PATH=$$PATH")

.PHONY: deps build demo test lint lab-test lab-lint

deps: packages .venv/installed plugin

# Tests need some more packages, which are installed with the others then.
check test beside rust-test rust-beside rust-alone lab-beside lab-test guests: TESTS = test
prove package static: TESTS = test prove

.PHONY: packages
packages:
	@lab/install-packages $(TESTS)

# The lab's own Python, with exactly the locked packages; made anew when the lock changes.
.venv/installed: lab/requirements.lock lab/pyproject.toml | packages
	@echo "make deps: installing the lab into .venv"
	@python3 -m venv .venv
	@.venv/bin/pip install --quiet --disable-pip-version-check --require-hashes --requirement lab/requirements.lock
	@.venv/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable lab
	@touch $@

# What counts instructions in QEMU, and the traffic that it counts.
.PHONY: plugin
plugin: .venv/installed
	@.venv/bin/python -c "from memlane_lab.counting import host; host.plugin(); host.plugin('xen'); host.program()"

build: deps
	@echo "make build: the switch and the rig (the first time 2 to 5 minutes)"
	cargo build --release --locked

demo: build
	$(LAB) prepare --guest auto
	$(AS_ROOT) $(LAB) demo

# First all that compiles, and tests that a busy machine does not change, side by side: two processors have few idle moments so. What nothing
# waits for has the lowest priority. Then, with nothing beside them, tests that measure times or watch a whole process, and the lab's.
test:
	@$(MAKE) --no-print-directory --jobs=4 --output-sync=target 'LATER=nice -n 19' beside
	@$(MAKE) --no-print-directory rust-alone lab-test

# The longest first.
.PHONY: beside
beside: rust-beside guests clippy lab-lint lab-beside loom formats xenvmnic-test

# Rust that is no part of the workspace, because it is built for guests.
APART := lab/agent lab/shop/application
# Programs as tests are compiled: the lab's tests run those of `rust-test`, since the optimised ones take minutes to build and are measured, not
# tested. Shared by the crates apart.
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
TESTED := MEMLANE=$(TARGET)/debug/memlane MEMLANE_RIG=$(TARGET)/debug/memlane-rig

.PHONY: check check-rust check-lab
# Compiling and waiting, of which tests do much, go on side by side; what each says is told when it has finished.
check: .venv/installed
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=target check-rust clippy check-lab

check-rust: formats
	cargo test --quiet --locked --workspace --lib --test together

check-lab: lab-lint
	cd lab && ../.venv/bin/pytest -n 2 --dist loadgroup -m 'not real and not xen and not prove'

.PHONY: rust-test rust-beside rust-alone rust-programs loom rust-lint clippy formats
rust-test: rust-beside rust-alone

# Test programs of the switch whose tests have the processors for themselves: one for each file beside `together`.
ALONE := $(basename $(notdir $(wildcard switch/daemon/tests/*.rs))) soak
# All are compiled in one go. With --workspace in each command, dependencies have the same features, and none is compiled twice.
RUST_TEST := switch/test --quiet --locked --workspace
rust-beside: deps rust-programs
	$(RUST_TEST) --lib --bins --test together --test bpf --test metrics --test pcapng
	$(RUST_TEST) --doc
	$(foreach crate,$(APART),switch/test --quiet --locked --target-dir $(TARGET) --manifest-path $(crate)/Cargo.toml &&) true

rust-alone: deps rust-programs
	$(RUST_TEST) $(ALONE:%=--test %)

# As tests are compiled, programs among them. Where a linker is, this need not wait until packages are installed.
rust-programs: $(if $(shell command -v cc),,deps)
	cargo test --quiet --locked --workspace --no-run

# Every interleaving of what threads share without locks.
loom: deps
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom $(LATER) cargo test --quiet --locked --release --manifest-path switch/loom/Cargo.toml

.PHONY: xenvmnic xenvmnic-test
xenvmnic: deps
	xen/xenvmnic/build target/xenvmnic

# The ring's logic as a program; the module itself needs Xen.
xenvmnic-test: deps
	xen/xenvmnic/tests/run target/xenvmnic/tests

# REV=COMMIT: the one to compare with. ROUNDS=100 ONLY='a row' tells more where 40 leave it undecided. Root, for the TAP row's namespace.
.PHONY: bench bench-addresses bench-attach bench-gate bench-holes bench-observe bench-resolution bench-uplinks
bench-gate: deps
	.venv/bin/python -m memlane_lab.bench_gate --build $(or $(REV),$(error make bench-gate REV=COMMIT: which commit?))
	$(AS_ROOT) .venv/bin/python -m memlane_lab.bench_gate --built $(REV) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(ONLY),--only '$(ONLY)')

# ABLATIONS="as-it-is copy-warm" builds only those.
.PHONY: ablation
ablation: deps
	switch/ablation $(ABLATIONS)

# One run of a commit's switch (REV=COMMIT, as the page names it; without it the present one), built in a git worktree and kept in
# target/revisions. Its folder is named by commit and minute, so that runs of days and machines can be joined. `memlane-lab publish FOLDER --as
# headlines` commits it to docs/benchmarks/headlines.md. Exit codes 1 and 3 of the lab are verdicts, 2 is a failure.
.PHONY: headlines
headlines: SHA = $(shell git rev-parse --verify --quiet '$(or $(REV),HEAD)^{commit}')
headlines: SWITCH = target/revisions/$(SHA)
headlines: HEADLINES = results/headlines/$(shell echo $(SHA) | cut -c1-12)
headlines: deps
	.venv/bin/python -m memlane_lab.measuring.revisions $(or $(REV),HEAD)
	$(LAB) prepare --guest auto
	$(AS_ROOT) env MEMLANE=$(abspath $(SWITCH)/memlane) MEMLANE_RIG=$(abspath $(SWITCH)/memlane-rig) \
		$(LAB) run promises --primary --budget $(or $(BUDGET),20min) --out $(HEADLINES)/$$(date -u +%FT%H%M) || test $$? -ne 2
	$(LAB) between $(HEADLINES)/* || test $$? -ne 2

.PHONY: figures
figures: deps
	$(LAB) figures

bench-observe: build
	.venv/bin/python -m memlane_lab.bench_gate.observe $(if $(ROUNDS),--rounds $(ROUNDS))

bench-addresses: build
	.venv/bin/python -m memlane_lab.bench_gate.addresses $(if $(ROUNDS),--rounds $(ROUNDS))

bench-attach: build
	.venv/bin/python -m memlane_lab.bench_gate.attach

bench-resolution: build
	cd lab && $(AS_ROOT) ../.venv/bin/pytest -q -s -m prove tests/end_to_end/test_address_resolution.py

bench-holes: build
	.venv/bin/python -m memlane_lab.bench_gate.holes $(if $(ROUNDS),--rounds $(ROUNDS))

bench-uplinks: build
	$(AS_ROOT) .venv/bin/python -m memlane_lab.bench_gate.uplinks $(if $(ROUNDS),--rounds $(ROUNDS))

bench: build
	cargo bench --quiet --locked --package memlane --bench '*'
	cargo build --quiet --locked --release
	$(AS_ROOT) switch/daemon/benches/against_bridge

# In a folder of its own, for other flags compile all anew.
PACKAGE := $(TARGET)/package
.PHONY: package
package: deps
	contrib/package/build $(PACKAGE)/build
	rm -rf $(PACKAGE)/tree
	contrib/package/stage $(PACKAGE)/tree $(PACKAGE)/build/release/memlane
	contrib/package/make $(PACKAGE)/tree $(PACKAGE)
	contrib/package/lab $(PACKAGE)
	lintian --fail-on warning $(PACKAGE)/*.deb
	.venv/bin/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir $(PACKAGE) ./lab
	ls -l $(PACKAGE)/*.deb $(PACKAGE)/*.rpm $(PACKAGE)/*.whl

# One file that runs on any Linux of this architecture.
.PHONY: static
static: deps
	rustup target add $(shell uname -m)-unknown-linux-musl
	contrib/package/build $(PACKAGE)/build --target $(shell uname -m)-unknown-linux-musl
	contrib/package/check-static $(PACKAGE)/build/$(shell uname -m)-unknown-linux-musl/release/memlane

# One file for another machine with KVM; its archive is shown by `memlane-lab publish ARCHIVE`.
.PHONY: kit
kit: static
	$(LAB) kit --switch $(PACKAGE)/build/$(shell uname -m)-unknown-linux-musl/release/memlane --out $(TARGET)/memlane-kit

PROVE_SECONDS ?= 20
.PHONY: prove
prove: build lint deny portable loom guests
	switch/prove $(PROVE_SECONDS)
	$(MAKE) --no-print-directory static
	cd lab && $(AS_ROOT) ../.venv/bin/pytest -m prove
	$(MAKE) --no-print-directory test-xen

SECONDS ?= 1200
.PHONY: soak
soak: deps
	MEMLANE_SOAK_SECONDS=$(SECONDS) cargo test --quiet --locked --package memlane --test soak -- --nocapture

FUZZ_SECONDS ?= 60
.PHONY: fuzz fuzz-corpus fuzz-seeds

fuzz: build
	switch/fuzz/run $(FUZZ_SECONDS)

fuzz-corpus:
	cargo test --quiet --locked --package memlane --test fuzz_corpus

# After a change to what the targets read.
fuzz-seeds:
	cargo run --quiet --locked --manifest-path switch/fuzz/Cargo.toml --bin make-seeds

lint: rust-lint lab-lint words rustdoc

# Licences, known vulnerabilities, sources and duplicates of all crates.
.PHONY: deny portable
deny: deps
	switch/deny Cargo.toml $(foreach crate,$(APART) switch/fuzz switch/loom,$(crate)/Cargo.toml)

# The toolchain that Cargo.toml names as the oldest, and code for the other architecture, as far as the compiler checks it.
OLDEST := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
portable: deps
	cargo check --quiet --locked --package memlane --features "$$(switch/ablation --features)"
	rustup toolchain install --no-self-update --profile minimal $(OLDEST)
	cargo +$(OLDEST) check --quiet --locked --workspace --all-targets --target-dir target/portable
	rustup target add aarch64-unknown-linux-gnu
	cargo check --quiet --locked --workspace --target aarch64-unknown-linux-gnu --target-dir target/portable

# Prose, by Vale, and its counts; the counts alone are a test of the lab, too.
.PHONY: docs docs-reference docs-words
MDBOOK := .venv/mdbook/bin/mdbook
$(MDBOOK): docs/requirements.lock
	@echo "make docs: installing mdbook into .venv/mdbook"
	@python3 -m venv .venv/mdbook
	@.venv/mdbook/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement docs/requirements.lock
	@touch $@

docs: $(MDBOOK)
	$(MDBOOK) build docs
	python3 docs/theme/take_along.py target/book

docs-reference:
	MEMLANE_DOCS=write cargo test --quiet --locked --package memlane --test together every_generated_page_is_current

docs-words:
	words/pages

.PHONY: words
words:
	words/lint

# Names in doc comments lead somewhere, those of private items too.
.PHONY: rustdoc
rustdoc: deps
	RUSTDOCFLAGS="-D rustdoc::broken_intra_doc_links" cargo doc --quiet --locked --workspace --no-deps --document-private-items

formats: deps
	cargo fmt --all --check
	$(foreach crate,$(APART) switch/fuzz,cargo fmt --check --manifest-path $(crate)/Cargo.toml &&) true
	$(foreach crate,$(APART) switch/fuzz switch/loom,cargo metadata --locked --format-version=1 --manifest-path $(crate)/Cargo.toml >/dev/null &&) true

rust-lint: formats clippy

# In `make test` after the compilation of tests, which holds the target directory's lock and is waited for.
clippy: deps $(if $(LATER),rust-programs)
	$(LATER) cargo clippy --quiet --locked --workspace --all-targets -- -D warnings
	$(foreach crate,$(APART),$(LATER) cargo clippy --quiet --locked --all-targets --target-dir $(TARGET) --manifest-path $(crate)/Cargo.toml -- -D warnings &&) true

# What the lab's tests boot and run.
.PHONY: guests
guests: deps
	$(LATER) $(LAB) prepare

# Beds side by side, more than there are processors, since their tests wait half of the time; then, each alone, the tests that measure times or
# rates.
lab-test: deps rust-programs guests
	$(AS_ROOT) env $(TESTED) lab/pytest-again -n 4 --dist loadgroup -m 'real and not timed and not xen and not prove'
	$(AS_ROOT) env $(TESTED) lab/pytest-again -m 'timed and not xen and not prove'

# Those that boot nothing.
.PHONY: lab-beside
lab-beside: deps rust-programs
	$(AS_ROOT) env $(TESTED) lab/pytest-again -n 2 --dist loadgroup -m 'not real and not xen and not prove'

# The real hypervisor, in an emulated PC: what cannot be checked without it, then the table of path lengths. XenVMNIC must reach what the table
# asks of it. memlane's bars are missed (exit code 1): that is told, and explained in docs/benchmarks/notes/xen.md.
.PHONY: test-xen
test-xen: build xenvmnic
	cd lab && ../.venv/bin/pytest -m xen
	rm -rf target/test-xen
	$(LAB) run xen_table_1 --only netback --only XenVMNIC --out target/test-xen
	$(LAB) run xen_table_1 --only netback --only memlane --out target/test-xen --resume || test $$? -eq 1
	grep -q ',memlane,.*,instructions_per_packet,' target/test-xen/xen_table_1/samples.csv

# Programs in Python beside the lab.
SCRIPTS := ../switch/mutants ../words/count ../words/pages ../docs/theme/take_along.py
lab-lint: deps
	cd lab && ../.venv/bin/ruff format --check . $(SCRIPTS) && ../.venv/bin/ruff check . $(SCRIPTS) && ../.venv/bin/mypy
	$(foreach script,$(SCRIPTS),(cd lab && ../.venv/bin/mypy --strict $(script)) &&) true
