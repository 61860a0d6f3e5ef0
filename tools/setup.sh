#!/bin/sh
# Installs what is missing from the distribution: setup.sh [build|lint|fuzz]...
# Silent and instant when all is there. Debian 12 names; needs root or sudo only to install.
# The OpenCL headers are there because the CMake package of libdnnl-dev asks for them.
set -eu

build="cmake ninja-build g++ pkg-config python3
  libbenchmark-dev libcli11-dev libdnnl-dev libfmt-dev libgtest-dev libopenmpi-dev libpcre2-dev libprotobuf-dev
  libsimdjson-dev libspdlog-dev libtomlplusplus-dev libxxhash-dev libzstd-dev nlohmann-json3-dev
  ocl-icd-opencl-dev openmpi-bin protobuf-compiler zlib1g-dev"
clang="clang-14 libclang-rt-14-dev"
lint="clang-format-14 clang-tidy-14 codespell shellcheck yamllint"

wanted=$build
for set in "$@"; do
  case $set in
    build) ;;
    lint) wanted="$wanted $clang $lint" ;;
    fuzz) wanted="$wanted $clang" ;;
    *) echo "setup.sh: unknown set '$set': wanted build, lint or fuzz" >&2; exit 2 ;;
  esac
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "setup.sh: not a Debian system; these must be installed by hand: $wanted" >&2
  exit 0
fi

# shellcheck disable=SC2086,SC2016
installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' $wanted 2>/dev/null |
  sed -n 's/ installed$//p') || true
missing=
for package in $wanted; do
  printf '%s\n' "$installed" | grep -qx "$package" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

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
