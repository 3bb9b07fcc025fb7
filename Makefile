# One command for each habit; the parts are in scripts/. 'make' builds, 'make help' lists the rest.

PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo

.DEFAULT_GOAL := build

.PHONY: help build demo test crash-long check-fields mutants mutants-at-once fuzz qualify bench bench-papers dist install uninstall deps fmt lint clean

help: ## what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## the xact command, the C library, the SQLite extension and the helper of xact run, optimised, in target/release
	$(CARGO) build --release -p xact-cli -p xact-capi -p xact-sqlite -p xact-run-helper

deps: ## install the system packages that the rest needs (or say which are missing)
	@scripts/deps

demo: deps build ## the main job on real input: a repository and a database, all or nothing
	@scripts/demo

test: ## everything that must hold: style, unit tests, tests on mounts
	@scripts/test

crash-long: ## the crash explorer's long part, hours; WORKLOADS='a b' picks some, RESUME=FILE remembers what is done
	$(CARGO) run --release -p xact-testkit --bin crash -- --long $(if $(RESUME),--resume $(RESUME)) $(WORKLOADS)
	$(CARGO) run --release -p xact-testkit --bin crash -- --ace 2 $(if $(RESUME),--resume $(RESUME))

check-fields: ## xact check against e2fsck, on every field of every structure; RESUME=FILE remembers what is done
	$(CARGO) run --release -p xact-testkit --bin fields -- $(if $(RESUME),--resume $(RESUME)) $(KINDS)

mutants: ## seed faults one at a time, hours: PART=layout; SITTING=1/20 takes a sample; without PART: list them
	@scripts/mutants $(PART) $(SITTING)

mutants-at-once: ## the same kinds of faults in one build, minutes: PART='layout txn'; SITTING=1/4
	@python3 scripts/mutants_at_once.py $(PART) $(if $(SITTING),--sitting $(SITTING))

fuzz: ## fuzz one target; TARGET=operations SECONDS=600; without TARGET: build all and list them
	@scripts/fuzz $(if $(TARGET),$(TARGET) $(SECONDS))

qualify: build ## foreign test suites at full length, an hour or two; WORDS='stress fsx' picks some
	@scripts/deps qualify
	@scripts/tools
	@LONG=1 tests/run $(WORDS)
	@FSX_OPERATIONS=$${FSX_OPERATIONS:-100000} FSX_SEEDS=$${FSX_SEEDS:-10} \
		$(CARGO) test --release -p xact-testkit --test fsx
	@CALLS=$${CALLS:-1000000} $(CARGO) test --release -p xact-fuse --test strangers

bench: build ## ratios to kernel ext4 and fuse2fs, in target/bench; BENCH='--quick' passes options
	@scripts/deps bench
	$(CARGO) run --release -p xact-bench -- $(BENCH)

bench-papers: build ## the figures of the five papers, in target/bench-papers/report.html; BENCH as above
	@scripts/deps bench
	$(CARGO) run --release -p xact-bench -- --papers --out target/bench-papers $(BENCH)

dist: deps build ## packages in target/dist: .deb, .rpm and a Python wheel; DIST='deb wheel' makes some
	@scripts/dist $(DIST)

install: build ## command, C library, man pages, completions, headers, helpers, units, under PREFIX (/usr/local); SETUID=1 enables the run helper
	@DESTDIR='$(DESTDIR)' scripts/install $(if $(filter 1,$(SETUID)),--setuid) '$(PREFIX)'

uninstall: ## take away what 'make install' put there
	@DESTDIR='$(DESTDIR)' scripts/install --remove '$(PREFIX)'

fmt: ## format the source
	$(CARGO) fmt --all

lint: ## what 'make test' says about style
	@scripts/lint

clean: ## build output
	$(CARGO) clean
