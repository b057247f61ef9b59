# What one does with this repository. `make` lists it; the work is done by cargo, CMake and scripts/.
CARGO ?= cargo
BUILD := target/cmake
# Tests wait for each other more than they compute.
JOBS ?= $(shell expr 2 \* $$(nproc))
# cargo for tests, in the form in which clippy looks at what is compiled.
LINTED := RUSTC_WORKSPACE_WRAPPER=$(CURDIR)/scripts/linted.sh $(CARGO)
EXAMPLES := cpp_examples/01_hello_world/hello_world cpp_examples/02_prefill_decode/prefill_decode \
  cpp_examples/03_moe_layer/moe_layer cpp_examples/04_paged_attention/paged_attention cpp_examples/05_scheduler/scheduler \
  cpp_examples/07_hybrid_model/hybrid_model cpp_examples/08_bigger_than_memory/bigger_than_memory \
  cpp_examples/09_cluster/cluster
PREFIX ?= /usr/local
NVCC_VENV := target/nvcc-venv
NIXL_VENV := target/nixl-venv
PEERS := benches/target/release/kv_peers
SONAME := libnanomc.so.$(shell sed -n 's/^version = "\([0-9]*\)\..*/\1/p' Cargo.toml)
export PATH := $(HOME)/.cargo/bin:$(PATH)
.DEFAULT_GOAL := help
.PHONY: help demo test install package wheel python-test bench peers soak docs bless kernels cluster-deps clean lib tools configure checked tested

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: ## build the library and run the examples
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory configure
	@cmake --build $(BUILD) --target $(notdir $(EXAMPLES))
	@for example in $(EXAMPLES); do echo; $(BUILD)/$$example || exit 1; done

test: ## install what is missing, then all checks and tests
	@scripts/setup.sh test
	$(CARGO) fmt --all --check
	@$(MAKE) --no-print-directory -j2 tested checked

install: ## build and install below PREFIX (/usr/local)
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory tools
	cmake --install $(BUILD) --prefix "$(abspath $(PREFIX))"

package: ## .tar.gz and .deb into target/package
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory tools
	cpack --config $(BUILD)/CPackConfig.cmake -B target/package
	@rm -rf target/package/_CPack_Packages

bench: lib ## measure, and write docs/benchmarks.md
	target/release/nmc bench all $(if $(wildcard $(PEERS)),--peers $(PEERS)) --report docs/benchmarks.md

peers: ## build other allocators, with which `make bench` then compares
	$(CARGO) build --release --locked --manifest-path benches/Cargo.toml

wheel: lib ## wheel for Python into target/wheel
	python3 python/nanomc_wheel.py target/wheel

python-test: lib # the tests of the Python package alone; `make test` runs them as well
	python/test.sh target/release/libnanomc.so

soak: ## run the long random tests (an hour and more)
	@scripts/setup.sh soak
	scripts/soak.sh

docs: ## HTML of the header and of docs/ into target/docs
	@scripts/setup.sh docs
	@mkdir -p target/docs
	doxygen docs/Doxyfile
	@echo target/docs/html/index.html

bless: lib ## accept the changed C header, symbol list and .proto files
	NMC_BLESS=1 $(CARGO) test --locked --test header
	sh ctest/abi/check.sh list target/release/libnanomc.so > ctest/abi/symbols.txt
	test ! -x python/.venv/bin/python || python/.venv/bin/python python/generate.py
	$(CARGO) run --quiet --locked --manifest-path crates/nanomc-master/generate/Cargo.toml --target-dir target/generate
	git --no-pager diff --stat -- include ctest/abi python crates/nanomc-master/src

cluster-deps: ## install what a cluster can use from outside: NIXL (pip, into target/nixl-venv) and etcd (apt)
	@test -x $(NIXL_VENV)/bin/pip || python3 -m venv $(NIXL_VENV)
	$(NIXL_VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps 'nixl-cu12>=1.5,<1.6'
	@command -v etcd >/dev/null || $$(test "$$(id -u)" = 0 || echo sudo) apt-get install -y -qq etcd-server
	@echo "export NMC_NIXL=$$(find $(CURDIR)/$(NIXL_VENV) -name libnixl_capi.so | head -1)"

kernels: ## compile the GPU kernels anew (fetches nvcc with pip)
	@test -x $(NVCC_VENV)/bin/pip || python3 -m venv $(NVCC_VENV)
	$(NVCC_VENV)/bin/pip install --quiet --disable-pip-version-check nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 \
	  nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96 'nvidia-cuda-cccl==13.0.*'
	NMC_NVCC=$$(echo $(CURDIR)/$(NVCC_VENV)/lib/python3*/site-packages/nvidia/cu13/bin/nvcc) NMC_BLESS_KERNELS=1 \
	  $(CARGO) build --release --locked

clean: ## remove everything that was built
	rm -rf $(BUILD) $(addprefix target/,cmake.log debug release crash package docs tmp)

# ---- steps of the above ---------------------------------------------------------------------------------------------

# The library, nmc and nanomc-master. With the link a program linked with -L target/release finds the library there.
lib:
	$(CARGO) build --release --locked --workspace
	@ln -sf libnanomc.so target/release/$(SONAME)

configure:
	@mkdir -p target
	@cmake -S . -B $(BUILD) -G Ninja > target/cmake.log || { cat target/cmake.log; exit 1; }

# The same by way of CMake, and what is installed besides.
tools: configure
	@cmake --build $(BUILD) --target nanomc_build

# Side by side: one crate in one piece keeps one core for minutes, and tests wait more than they compute.
checked: configure
	cmake --build $(BUILD)
	ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)

tested:
	$(LINTED) test --workspace --locked
