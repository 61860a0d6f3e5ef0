#!/bin/sh
# Installs what is missing from the distribution:
#   setup.sh [build|lint|fuzz|cuda|hip|slurm|notebook|site|trackers|demo|transformers]...
# Silent and instant when all is there. Debian 12 names; needs root or sudo only to install.
# Parts of three sets are from elsewhere (PyPI) and stay in build/: build unpacks the libraries and headers
# of Apache Arrow, cuda the headers of cudnn-frontend, transformers fetches PyTorch and two versions of
# transformers. The CUDA toolkit, cuDNN and NCCL are
# the machine's. hip takes the distribution's hipcc; where another one is in the path already, or
# below /opt/rocm, that is used and nothing is installed.
# The OpenCL headers are there because the CMake package of libdnnl-dev asks for them.
set -eu
cd "$(dirname "$0")/.."

build="cmake ninja-build g++ pkg-config python3 libjs-chart.js
  libbenchmark-dev libcli11-dev libcurl4-openssl-dev libdnnl-dev libevent-dev libfmt-dev libgtest-dev libjemalloc-dev
  libopenmpi-dev libpcre2-dev libprotobuf-dev libsimdjson-dev libssl-dev libtomlplusplus-dev libutf8proc-dev libxxhash-dev
  libzstd-dev
  nlohmann-json3-dev ocl-icd-opencl-dev openmpi-bin protobuf-compiler zlib1g-dev"
clang="clang-14 libclang-rt-14-dev"
hip="hipcc libamdhip64-dev"
demo="bible-kjv bible-kjv-text"
slurm="munge slurm-wlm"
lint="clang-format-14 clang-tidy-14 codespell shellcheck yamllint"

wanted=$build
with_arrow=
with_cuda=
with_transformers=
for set in "$@"; do
  case $set in
    build)
      with_arrow=yes
      python3 -m pip --version >/dev/null 2>&1 || wanted="$wanted python3-pip" ;;
    lint) wanted="$wanted $clang $lint" ;;
    fuzz) wanted="$wanted $clang" ;;
    cuda) with_cuda=yes ;;
    slurm) wanted="$wanted $slurm" ;;
    transformers)
      with_transformers=yes
      python3 -m pip --version >/dev/null 2>&1 || wanted="$wanted python3-pip" ;;
    notebook | site | trackers) wanted="$wanted python3-venv" ;;
    demo) if [ $# = 1 ]; then wanted=$demo; else wanted="$wanted $demo"; fi ;;
    hip) command -v hipcc >/dev/null || [ -x /opt/rocm/bin/hipcc ] || wanted="$wanted $hip" ;;
    *) echo "setup.sh: unknown set '$set': wanted build, lint, fuzz, cuda, hip, slurm, notebook, site, trackers, demo or transformers" >&2; exit 2 ;;
  esac
done

install_packages() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "setup.sh: not a Debian system; these must be installed by hand: $wanted" >&2
    return 0
  fi

  # shellcheck disable=SC2086,SC2016
  installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' $wanted 2>/dev/null |
    sed -n 's/ installed$//p') || true
  missing=
  for package in $wanted; do
    printf '%s\n' "$installed" | grep -qx "$package" || missing="$missing $package"
  done
  [ -n "$missing" ] || return 0

  if [ "$(id -u)" = 0 ]; then
    as_root=
  elif command -v sudo >/dev/null; then
    as_root=sudo
  else
    echo "setup.sh: neither root nor sudo; ask an administrator for: apt-get install$missing" >&2
    exit 2
  fi
  echo "installing:$missing"
  $as_root apt-get -qq update
  # shellcheck disable=SC2086
  $as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 install $missing >/dev/null
}

# Debian 12 has no Arrow C++ library. Python's wheel carries it, with its headers.
unpack_arrow() {
  at=build/arrow
  [ ! -e $at/lib/complete ] || return 0
  fetched=$(mktemp -d)
  if python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.11 --platform manylinux_2_28_x86_64 \
      -d "$fetched" pyarrow==26.0.1 >"$fetched/log" 2>&1; then
    echo "unpacking Apache Arrow (55 MB) into $at"
    python3 -m zipfile -e "$fetched"/*.whl "$fetched/wheel"
    rm -rf $at
    mkdir -p $at/lib
    mv "$fetched/wheel/pyarrow/include" $at/include
    mv "$fetched"/wheel/pyarrow/libarrow.so.* "$fetched"/wheel/pyarrow/libparquet.so.* $at/lib
    mv "$fetched"/wheel/pyarrow-*/licenses $at/licenses
    strip $at/lib/*.so.*
    touch $at/lib/complete
  else
    echo "setup.sh: the wheel pyarrow could not be fetched, so the program will not read Parquet files: $(tail -n 1 "$fetched/log")" >&2
  fi
  rm -rf "$fetched"
}

# Without them attention runs on this project's own kernel, which is slower.
unpack_cudnn_frontend() {
  at=build/cudnn-frontend
  [ ! -e $at/include/cudnn_frontend.h ] || return 0
  fetched=$(mktemp -d)
  if python3 -m pip download -q --no-deps --only-binary=:all: -d "$fetched" \
      nvidia-cudnn-frontend==1.32.0 >"$fetched/log" 2>&1; then
    python3 -m zipfile -e "$fetched"/*.whl "$fetched/wheel"
    mkdir -p $at
    header=$(find "$fetched/wheel" -name cudnn_frontend.h | head -n 1)
    mv "$(dirname "$header")" $at/include
  else
    echo "setup.sh: the wheel nvidia-cudnn-frontend could not be fetched: $(tail -n 1 "$fetched/log")" >&2
    echo "setup.sh: attention will be this project's own kernel; or unpack the wheel's headers into $at/include" >&2
  fi
  rm -rf "$fetched"
}

# The older version finds what both need in the folder of the newer one.
fetch_transformers() {
  at=build/transformers
  [ ! -e $at/complete ] || return 0
  echo "fetching PyTorch and transformers (0.6 GB) into $at"
  rm -rf $at
  mkdir -p $at
  fetch() {
    python3 -m pip install -q --no-compile --target "$@" >$at/log 2>&1 || { cat $at/log >&2; exit 2; }
  }
  fetch $at/5 transformers==5.24.0 requests sympy
  fetch $at/5 --no-deps torch==2.15.0 nvidia-cuda-runtime==13.2.86
  fetch $at/4 --no-deps transformers==4.57.6 tokenizers==0.22.1 huggingface_hub==0.36.2
  python3 tools/stub_cuda.py $at/5/torch/lib
  touch $at/complete
}

install_packages
if [ -n "$with_arrow" ]; then
  unpack_arrow
fi
if [ -n "$with_cuda" ]; then
  unpack_cudnn_frontend
fi
if [ -n "$with_transformers" ]; then
  fetch_transformers
fi
