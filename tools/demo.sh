#!/bin/sh
# Trains configs/demo.toml from nothing into outputs/demo and prints a sample of the result.
set -eu
cd "$(dirname "$0")/.."

program=build/release/bin/tokamak
rm -rf outputs/demo
"$program" train configs/demo.toml
step=$(find outputs/demo/checkpoint -maxdepth 1 -name 'step-*' | sort -V | tail -n 1)
echo
echo "A sample from $step:"
"$program" generate "$step" --prompt="#include " --max-new-tokens=200 --temperature=0.7 --seed=1
