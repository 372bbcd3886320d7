# The front door: `make help`.

export PATH := $(PATH):$(HOME)/.cargo/bin
# Where cargo puts what it builds.
TARGET_DIR ?= $(or $(CARGO_TARGET_DIR),target)
CARGO ?= cargo
# A failed test shows its chain of causes; where each was passed on is noise.
export RUST_LIB_BACKTRACE ?= 0
# Many tests wait, for servers and for time to pass.
export RUST_TEST_THREADS ?= $(shell expr $$(nproc) \* 5 / 2)

.DEFAULT_GOAL := help
.PHONY: lint help servers build tests check test demo bench soak pitr fuzz corpus seeds scale

help: ## this list
	@sed -n 's/^\([a-z]*\):[^#]*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

servers: ## install the servers that tests and demo use (quick when they are there)
	@scripts/servers

build: ## build the holdfast program, optimized
	$(CARGO) build --release -p holdfast

lint: ## format and lints
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

check: lint ## format, lints, links of the documentation, and the tests that need no server
	$(CARGO) doc --workspace --no-deps --quiet
	$(CARGO) test -p holdfast-formats -p holdfast-pipe -p holdfast-repo
	$(CARGO) test -p holdfast-core -p holdfast-stores -p holdfast-testkit -p holdfast-bench -p holdfast --lib --bins

tests:
	$(CARGO) test --workspace --no-run

# Both at once: one waits for the network where the other computes.
test: ## every test, on real servers
	@$(MAKE) --no-print-directory --jobs servers tests
	scripts/in-memory $(CARGO) test --workspace --no-fail-fast

demo: ## back up a busy server, restore it, prove the copy equal (DEMO='--server mysql-9.7')
	@scripts/servers $(or $(filter mariadb-% mysql-%,$(DEMO)),mariadb-10.11)
	$(CARGO) build --release -p holdfast -p holdfast-testkit
	@$(TARGET_DIR)/release/demo $(DEMO)

SUITE ?= physical
bench: servers ## cost beside other tools, see docs/evidence/bench.md (SUITE=logical BENCH=--quick)
	$(CARGO) build --release -p holdfast -p holdfast-bench
	@$(TARGET_DIR)/release/holdfast-bench $(SUITE) $(BENCH)

soak: servers ## rounds of work, faults, backup, restore and proof (SOAK='--server mysql-9.7 --rounds 100 --seed 7')
	$(CARGO) build --release -p holdfast -p holdfast-testkit
	@$(TARGET_DIR)/release/soak $(SOAK)

pitr: servers ## recovery to random moments, with everything killed before (PITR='--server mysql-9.7 --targets 50 --seed 7')
	$(CARGO) build --release -p holdfast -p holdfast-testkit
	@$(TARGET_DIR)/release/pitr $(PITR)

CASES ?= 20000
SECONDS_EACH ?= 30
# Where the fuzzer's target begins: what is kept of earlier runs, and the seeds. For loops over `target`.
with_kept = mkdir -p fuzz/corpus/$$target; \
  if [ -f fuzz/kept/$$target.tar.xz ]; then tar -C fuzz/corpus -xJf fuzz/kept/$$target.tar.xz; fi
inputs = fuzz/corpus/$$target $$(ls -d fuzz/seeds/$$target 2>/dev/null)
cargo_fuzz = command -v cargo-fuzz >/dev/null || $(CARGO) install --locked cargo-fuzz

fuzz: ## parsers and repository against random input (CASES=20000 SECONDS_EACH=30); needs a nightly toolchain
	PROPTEST_CASES=$(CASES) $(CARGO) test --release -p holdfast-formats -p holdfast-pipe -p holdfast-repo
	@$(cargo_fuzz)
	@set -e; for target in $$($(CARGO) +nightly fuzz list); do \
	  $(with_kept); \
	  $(CARGO) +nightly fuzz run $$target $(inputs) -- -max_total_time=$(SECONDS_EACH) -rss_limit_mb=1024; \
	done

corpus: ## keep what the fuzzer has found since, as few inputs as reach the same; needs a nightly toolchain
	@$(cargo_fuzz)
	@set -e; for target in $$($(CARGO) +nightly fuzz list); do \
	  rm -rf fuzz/merged; mkdir -p fuzz/merged/$$target; $(with_kept); \
	  $(CARGO) +nightly fuzz run $$target fuzz/merged/$$target $(inputs) -- -merge=1 -rss_limit_mb=1536; \
	  tar -C fuzz/merged -cJf fuzz/kept/$$target.tar.xz --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner $$target; \
	done; rm -rf fuzz/merged

seeds: servers ## take the fuzzer's seeds anew from real servers and a small repository
	HOLDFAST_FUZZ_SEEDS=$(CURDIR)/fuzz/seeds $(CARGO) test -p holdfast-core --test runner fuzz_seeds -- --ignored
	HOLDFAST_FUZZ_SEEDS=$(CURDIR)/fuzz/seeds $(CARGO) test -p holdfast-repo --lib fuzzing::tests::write_seeds -- --ignored

SCALE ?= 2048,200000
scale: ## memory and time on a made up server of 2 TiB and 200,000 files: hours (SCALE=GiB,files)
	HOLDFAST_SCALE=$(SCALE) $(CARGO) test --release -p holdfast-core --test runner scale::memory -- --nocapture
