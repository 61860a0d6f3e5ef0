#!/bin/bash
# Every lint step on every tracked file; goes on after a failure and names what failed at the end.
set -u
cd "$(dirname "$0")/.." || exit 70

failed=()
step() {
  local name=$1
  shift
  if "$@"; then echo "lint: $name: ok"; else
    echo "lint: $name: FAILED"
    failed+=("$name")
  fi
}

# Packages are built by hand (make deb, make wheel); this much of it takes seconds.
configure_portable() {
  cmake --preset portable -Wno-dev --log-level=ERROR >/dev/null
}

mapfile -t code < <(git ls-files -co --exclude-standard '*.h' '*.cpp' '*.cu' '*.cuh')
mapfile -t scripts < <(git ls-files -co --exclude-standard '*.sh' .ci/run)
mapfile -t yaml < <(git ls-files -co --exclude-standard '*.yaml' '*.yml')
mapfile -t words < <(git ls-files -co --exclude-standard '*.h' '*.cpp' '*.cu' '*.cuh' '*.md' \
  '*.sh' '*.py' '*.cmake' '*.txt' '*.toml' Makefile .ci/run | grep -vE '_test.cpp$|^tests/data/|^data/')

step clang-format clang-format-14 --dry-run -Werror "${code[@]}"
step codespell codespell --ignore-words tools/codespell-ignore.txt "${words[@]}"
step shellcheck shellcheck "${scripts[@]}"
step yamllint yamllint -d '{extends: relaxed, rules: {line-length: disable}}' "${yaml[@]}"
step layers python3 tools/check_layers.py
step sizes python3 tools/check_sizes.py
step tests python3 tools/check_tests.py
step words python3 tools/check_words.py
step portable configure_portable
step clang-tidy tools/tidy.sh

[ ${#failed[@]} -eq 0 ] || { echo "lint: failed: ${failed[*]}"; exit 1; }
echo "lint: all ok"
