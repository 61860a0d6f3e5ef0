#!/bin/bash
# Runs every fuzz target for the given seconds from its seeds and what earlier runs found.
# A crash leaves its input in build/fuzz/crashes.
set -u
cd "$(dirname "$0")/.." || exit 70

seconds=${1:-30}
python3 fuzz/make_seeds.py build/fuzz/seeds || exit 70
mkdir -p build/fuzz/crashes
failed=()
for program in build/fuzz/bin/*_fuzz; do
  name=$(basename "$program" _fuzz)
  mkdir -p "build/fuzz/corpus/$name" "build/fuzz/seeds/$name"
  # The limits turn an allocation from a declared size and a slow path into failures.
  if "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=512 \
    -max_len=65536 -print_final_stats=0 -verbosity=0 -artifact_prefix="build/fuzz/crashes/$name-" \
    "build/fuzz/corpus/$name" "build/fuzz/seeds/$name" >"build/fuzz/$name.log" 2>&1; then
    echo "fuzz: $name: ok ($(find "build/fuzz/corpus/$name" -type f | wc -l) inputs)"
  else
    echo "fuzz: $name: FAILED"
    tail -n 40 "build/fuzz/$name.log"
    failed+=("$name")
  fi
done
[ ${#failed[@]} -eq 0 ] || { echo "fuzz: failed: ${failed[*]}"; exit 1; }
