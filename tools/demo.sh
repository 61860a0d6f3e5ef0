#!/bin/sh
# Trains configs/demo.toml from nothing into outputs/demo and prints a sample of the result. The text is
# the King James Bible of Debian's package bible-kjv; where that is not to be had, this repository's own.
# SEED=2 draws other weights and another sample.
set -eu
cd "$(dirname "$0")/.."

program=build/release/bin/tokamak
seed=${SEED:-1}
at=outputs/demo
rm -rf $at
mkdir -p $at/text

# A verse is a line; chapters are apart by an empty one. Numbers and headings are left out.
write_text() {
  bible -l100000 gen1:1-rev22:21 | awk '
    /^ *[0-9]+ / { sub(/^ *[0-9]+ /, ""); print; next }
    /[A-Za-z]/ { print "" }' >$at/text/kjv.txt
  [ "$(wc -c <$at/text/kjv.txt)" -gt 4000000 ]
}

# The loss of each logged step, as a row of bars.
sparkline() {
  sed -n 's/.*"loss": *\([0-9.]*\).*/\1/p' $at/metrics.jsonl | awk '
    { loss[NR] = $1; if (NR == 1 || $1 < least) least = $1; if ($1 > most) most = $1 }
    END {
      # Bars of one to eight eighths, U+2581 to U+2588 in UTF-8.
      for (b = 1; b <= 8; ++b) bars[b] = sprintf("\342\226%c", 128 + b)
      for (i = 1; i <= NR; ++i) row = row bars[1 + int(7.99 * (loss[i] - least) / (most - least + 1e-9))]
      printf "loss %.2f %s %.2f\n", loss[1], row, loss[NR]
    }'
}

if { command -v bible >/dev/null || tools/setup.sh demo; } && write_text; then
  prompt="And it came to pass"
  "$program" tokenizer train $at/text -o $at/tokenizer --vocab-size 4096
  "$program" train configs/demo.toml --debug.seed="$seed"
else
  echo "demo: there is no program bible here: this repository's own text is taken instead"
  prompt="#include "
  "$program" train configs/demo.toml --debug.seed="$seed" --training.dataset=self --model.vocab=2048
fi

echo
sparkline
step=$(find $at/checkpoint -maxdepth 1 -name 'step-*' | sort -V | tail -n 1)
echo
echo "A sample from $step:"
"$program" generate "$step" --prompt="$prompt" --max-new-tokens=160 --temperature=0.7 --top-k=40 --seed="$seed"
