# Every target sets itself up: missing packages come from the distribution (tools/setup.sh).
# `make` alone builds; `make help` lists the targets.

SECONDS ?= 30
CCACHE := $(shell command -v ccache 2>/dev/null)
export CMAKE_CXX_COMPILER_LAUNCHER ?= $(CCACHE)
export CMAKE_CUDA_COMPILER_LAUNCHER ?= $(CCACHE)

# CUDA=1 builds the GPU backend in, for this machine's GPUs or, where none is seen, for Hopper.
CUDA ?= 0
ifneq ($(CUDA),0)
  NVCC := $(or $(shell command -v nvcc 2>/dev/null),$(wildcard /usr/local/cuda/bin/nvcc))
  export CUDACXX ?= $(NVCC)
  CUDA_ARCHS ?= $(if $(shell nvidia-smi -L 2>/dev/null | grep GPU),native,90-real)
  CUDA_FLAGS = -DTOK_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$(CUDA_ARCHS)"
else
  CUDA_FLAGS = -DTOK_CUDA=OFF
endif

.PHONY: build cuda-all site notebook extra release trackers hip rows recipes demo install portable deb wheel test objects exports faults slurm lint tidy fuzz mutate sanitize clean help
.DEFAULT_GOAL := build

## build: the program, at build/release/bin/tokamak; CUDA=1 builds it with the GPU backend
build:
	@tools/setup.sh build $(if $(filter-out 0,$(CUDA)),cuda)
	@cmake --preset release -Wno-dev --log-level=WARNING $(CUDA_FLAGS)
	@cmake --build --preset release --target tokamak

## cuda-all: the program for sm_80, sm_90, sm_100 and sm_120, at build/cuda-all/bin/tokamak
cuda-all:
	@tools/setup.sh build cuda
	@cmake --preset cuda-all -Wno-dev --log-level=WARNING
	@cmake --build --preset cuda-all --target tokamak

## hip: the program with the GPU backend for AMD's gfx90a, at build/hip/bin/tokamak; HIP_ARCHS="gfx90a;gfx942" for others
HIP_ARCHS ?= gfx90a
hip:
	@tools/setup.sh build hip
	@cmake --preset hip -Wno-dev --log-level=WARNING -DTOK_HIP_ARCHITECTURES="$(HIP_ARCHS)"
	@cmake --build --preset hip --target tokamak

## demo: build, train a small Llama for about two minutes, print a sample of its text
demo: build
	@tools/demo.sh || [ $$? -eq 85 ]

## rows: tokamak_rows, which prices published measurements, at build/release/bin/tokamak_rows
rows:
	@tools/setup.sh build
	@cmake --preset release -Wno-dev --log-level=WARNING $(CUDA_FLAGS)
	@cmake --build --preset release --target tokamak_rows

## recipes: checks recipes/: its table of prices, a dry run and three steps of each proxy
recipes: build
	@python3 tools/recipes.py build/release/bin/tokamak --try

## install: the program, man pages, completion, machines and presets below PREFIX; PORTABLE=1 builds it for other CPUs too
PREFIX ?= /usr/local
PORTABLE ?= 0
TREE = $(if $(filter-out 0,$(PORTABLE)),portable,release)
install: $(if $(filter-out 0,$(PORTABLE)),portable,build)
	@cmake --build --preset $(TREE) --target manual
	@cmake --install build/$(TREE) --strip --prefix "$(DESTDIR)$(PREFIX)" >/dev/null
	@echo "installed $(DESTDIR)$(PREFIX)/bin/tokamak"

## portable: programs for x86-64-v2, v3, v4 and v4 with bf16 that need glibc and GCC's libraries alone, in build/portable; CUDA=1 adds the GPU part
portable:
	@tools/setup.sh build $(if $(filter-out 0,$(CUDA)),cuda)
	@cmake --preset portable -Wno-dev --log-level=WARNING $(CUDA_FLAGS)
	@cmake --build --preset portable --target tokamak manual

## deb: build/portable/tokamak_VERSION_amd64.deb, for Debian 12 and 13
deb: portable
	@cd build/portable && cpack -G DEB >/dev/null && ls -sh tokamak_*.deb

## wheel: build/portable/tokamak-VERSION-py3-none-manylinux_2_34_x86_64.whl; pip installs `tokamak` from it
wheel: portable
	@rm -rf build/portable/stage && cmake --install build/portable --strip --prefix build/portable/stage >/dev/null
	@python3 tools/make_wheel.py build/portable/stage build/portable

## release: deb, wheel, tarball, SBOM, notes and SHA256SUMS of a commit in build/release-files; tools/release.py --compare compares two
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null)
release: deb wheel
	@python3 tools/release.py build/portable build/release-files

## extra: builds the example of TOK_EXTRA into the tests' build, trains it, and takes it out again
extra:
	@tools/setup.sh build
	@cmake --preset dev -DTOK_EXTRA=$(CURDIR)/tests/extra -Wno-dev --log-level=WARNING
	@cmake --build --preset dev --target tokamak
	@python3 tests/extra/extra_test.py build/dev/bin/tokamak; result=$$?; \
	  cmake --preset dev -DTOK_EXTRA= -Wno-dev --log-level=WARNING && exit $$result

## test: build the dev preset and run all its tests
test:
	@tools/setup.sh build
	@cmake --preset dev -Wno-dev --log-level=WARNING
	@cmake --build --preset dev
	@ctest --preset dev

## trackers: trains with a real MLflow server, W&B offline, Aim and Trackio, from PyPI (1.2 GB), and kills what sends to them at random
trackers: build
	@tools/setup.sh build trackers
	@[ -x build/trackers/bin/mlflow ] || { python3 -m venv build/trackers && build/trackers/bin/pip install -q mlflow wandb aim trackio; }
	@build/trackers/bin/python tests/trackers/check_trackers.py build/release/bin/tokamak

## site: these pages with search, as a site, in build/site/html, by mkdocs-material from PyPI (60 MB)
site:
	@tools/setup.sh build site
	@[ -x build/site/bin/mkdocs ] || { python3 -m venv build/site && build/site/bin/pip install -q mkdocs-material==9.8.2; }
	@NO_MKDOCS_2_WARNING=1 build/site/bin/mkdocs build --quiet --strict && echo build/site/html/index.html

## notebook: executes python/first_run.ipynb and the tests of python/, with pandas and nbclient from PyPI (460 MB)
notebook:
	@tools/setup.sh build notebook
	@cmake --preset dev -Wno-dev --log-level=WARNING
	@cmake --build --preset dev --target tokamak
	@[ -x build/notebook/bin/jupyter-execute ] || { python3 -m venv build/notebook && \
	  build/notebook/bin/pip install -q ipykernel matplotlib nbclient pandas pyarrow; }
	@build/notebook/bin/python tests/python/package_test.py build/dev/bin/tokamak
	@TOKAMAK_PROGRAM=$(CURDIR)/build/dev/bin/tokamak PYTHONPATH=$(CURDIR)/python \
	  build/notebook/bin/jupyter-execute python/first_run.ipynb

## objects: trains on text in an S3 server from PyPI (moto, 150 MB), through a proxy that fails at random
objects:
	@tools/setup.sh build trackers
	@cmake --preset dev -Wno-dev --log-level=WARNING
	@cmake --build --preset dev --target tokamak tokamak_parquet
	@[ -x build/objects/bin/moto_server ] || { python3 -m venv build/objects && build/objects/bin/pip install -q "moto[server,s3]==5.2.5" pyarrow==26.0.1; }
	@build/objects/bin/python tests/objects/check_objects.py build/dev/bin/tokamak

## exports: exports of every family as transformers 4 and 5 load them, which are fetched into build/transformers
READERS := build/transformers/4:build/transformers/5 build/transformers/5
exports:
	@tools/setup.sh build transformers
	@cmake --preset dev -Wno-dev --log-level=WARNING
	@cmake --build --preset dev --target tokamak
	@PYTHONPATH=build/transformers/5 python3 tools/compare_exports.py build/dev/bin/tokamak $(READERS)

## faults: all jobs under faults (dead ranks, hangs, disks, signals), and COUNT=10 kills at random moments
faults:
	@tools/setup.sh build
	@cmake --preset dev -Wno-dev --log-level=WARNING
	@cmake --build --preset dev
	@TOK_FAULTS=all ctest --preset dev -L faults
	@python3 tests/faults/random_faults.py build/dev/bin/tokamak --count $(or $(COUNT),10)

## slurm: `launch --slurm` and `doctor --cluster` under a Slurm on this machine (root); CASES="finished time_limit" for some
slurm:
	@tools/setup.sh build slurm
	@cmake --preset dev -Wno-dev --log-level=WARNING
	@cmake --build --preset dev --target tokamak
	@tests/slurm/slurm_test.sh build/dev/bin/tokamak $(CASES)

## lint: format, spelling, scripts, layers, sizes, clang-tidy within a time budget (TIDY_BUDGET_S)
lint:
	@tools/setup.sh lint
	@tools/lint.sh

## tidy: clang-tidy over every source file
tidy:
	@tools/setup.sh lint
	@TIDY_STRICT=1 TIDY_BUDGET_S=86400 tools/tidy.sh

## fuzz: every fuzz target for SECONDS seconds
fuzz:
	@tools/setup.sh fuzz
	@cmake --preset fuzz -Wno-dev --log-level=WARNING
	@cmake --build --preset fuzz --target fuzz_targets
	@tools/fuzz.sh $(SECONDS)

## mutate: COUNT damaged files through convert, generate and train --dry-run
COUNT ?= 10000
mutate: build
	@python3 fuzz/mutate_inputs.py build/release/bin/tokamak --count $(COUNT)

## sanitize: graph, exec and the meshes of threads under TSan, then ASan and UBSan (TOK_MESH_SEED, TOK_MESH_COUNT draw others)
SANITIZED := tokamak_graph_test tokamak_exec_test tokamak_mesh_test
sanitize:
	@tools/setup.sh build
	@set -e; for preset in tsan asan; do \
	  cmake --preset $$preset -Wno-dev --log-level=WARNING; \
	  cmake --build --preset $$preset --target $(SANITIZED); \
	  for test in $(SANITIZED); do build/$$preset/bin/$$test --gtest_brief=1; done; \
	done

## clean: removes build/ and outputs/
clean:
	rm -rf build outputs

help:
	@sed -n 's/^## /make /p' Makefile
