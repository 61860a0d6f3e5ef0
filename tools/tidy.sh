#!/bin/bash
# clang-tidy within TIDY_BUDGET_S seconds (300): first what this branch changed, then the other files
# from a place that moves with every commit, so that all get their turn. `make tidy` checks them all.
# Tests go without the path-sensitive analyzer, which spends its time in GoogleTest. Findings fail in
# changed files, and with TIDY_STRICT=1 (`make tidy`) in all; elsewhere they are printed.
set -eu
cd "$(dirname "$0")/.."

cmake --preset clang -Wno-dev --log-level=WARNING >/dev/null
cmake --build --preset clang --target generated >/dev/null

TIDY_DEADLINE=$(($(date +%s) + ${TIDY_BUDGET_S:-300}))
TIDY_LOGS=$(mktemp -d)
export TIDY_DEADLINE TIDY_LOGS
trap 'rm -rf "$TIDY_LOGS"' EXIT

check() {
  [ "$(date +%s)" -lt "$TIDY_DEADLINE" ] || exit 0
  log=$TIDY_LOGS/$(echo "$1" | tr / _)
  case $1 in *_test.cpp | *_bench.cpp) checks='-clang-analyzer-*' ;; *) checks= ;; esac
  if clang-tidy-14 -p build/clang --quiet --extra-arg=-Wno-unknown-warning-option --checks="$checks" "$1" >"$log" 2>/dev/null; then
    mv "$log" "$log.ok"
  fi
}
export -f check

base=$(git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main 2>/dev/null || echo HEAD)
all=$(python3 tools/compiled_files.py build/clang/compile_commands.json)
changed=$(git diff --name-only "$base" -- '*.cpp' | grep -Fx "$all" || true)
rest=$(echo "$all" | grep -vFx "${changed:-none}" || true)
turn=$(($(git rev-list --count HEAD) * 37 % ($(echo "$rest" | wc -l) + 1)))
{ echo "$changed"; echo "$rest" | tail -n +$((turn + 1)); echo "$rest" | head -n "$turn"; } |
  sed '/^$/d' | xargs -P "$(nproc)" -I{} bash -c 'check {}'

ok=$(find "$TIDY_LOGS" -name '*.ok' | wc -l)
bad=$(cd "$TIDY_LOGS" && find . -type f ! -name '*.ok' | sed 's#^./##')
fatal=$bad
if [ "${TIDY_STRICT:-0}" = 0 ]; then
  fatal=$(echo "$bad" | grep -Fx "$(echo "${changed:-none}" | tr / _)" || true)
fi
echo "clang-tidy: $ok of $(echo "$all" | wc -l) files clean, $(echo "$bad" | sed '/^$/d' | wc -l) with findings"
[ -z "$bad" ] || (cd "$TIDY_LOGS" && echo "$bad" | xargs cat | grep -v '^$' >&2)
[ -z "$fatal" ]
