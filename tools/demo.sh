#!/bin/sh
# Trains configs/demo.toml into outputs/demo for about two minutes and prints a sample of the result. The
# text is the King James Bible of Debian's package bible-kjv; where that is not to be had, the embedded Shakespeare.
# The number of steps is what this machine can do in BUDGET=110 seconds at the rate that it has now; where
# that is too few to learn words, a smaller model takes more of them. An interrupted demo goes on.
# SEED=2 draws other weights and another sample.
set -eu
cd "$(dirname "$0")/.."

program=build/release/bin/tokamak
seed=${SEED:-1}
budget=${BUDGET:-110}
at=outputs/demo

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

# Runs train with these words and sends it SIGTERM after so many seconds, on which it saves and exits with 85.
train_for() {
  (sleep "$1" && touch $at/late && kill "$(cat $at/pid)") >/dev/null 2>&1 &
  watcher=$!
  shift
  code=0
  # shellcheck disable=SC2016
  sh -c 'echo $$ >"$0"; exec "$@"' $at/pid "$program" train configs/demo.toml --debug.seed="$seed" "$@" || code=$?
  kill $watcher 2>/dev/null || true
  return $code
}

# Prints the tokens/s of training with these words: the median of what six seconds log.
rate_of() {
  train_for 6 "$@" --job.dump_folder=$at/rate --checkpoint.enable=false --metrics.log_freq=1 >/dev/null 2>&1 || true
  sed -n 's/.*"tps": *\([0-9.]*\).*/\1/p' $at/rate/metrics.jsonl | sort -n | awk '
    { rate[NR] = $1 } END { print int(rate[int((NR + 1) / 2)]) }'
  rm -rf $at/rate $at/late
}

# Writes the text, its tokenizer and, into choice, the words that choose model and steps for this machine.
prepare() {
  rm -rf $at
  mkdir -p $at/text
  set --
  if { command -v bible >/dev/null || tools/setup.sh demo; } && write_text; then
    "$program" tokenizer train $at/text -o $at/tokenizer --vocab-size 4096
  else
    echo "demo: there is no program bible here: it trains on the embedded Shakespeare instead"
    set -- --training.dataset=shakespeare --model.vocab=2048
  fi
  steps=$(($(rate_of "$@") * budget / 1024))
  if [ $steps -lt 1100 ]; then
    set -- "$@" --model.layers=2 --model.dim=128 --model.heads=4
    steps=$(($(rate_of "$@") * budget / 1024))
  fi
  if [ $steps -gt 3000 ]; then steps=3000; elif [ $steps -lt 60 ]; then steps=60; fi
  warmup=$((steps < 600 ? steps / 10 : 60))
  echo "$*" --training.steps=$steps --lr_scheduler.warmup_steps=$warmup --metrics.log_freq=$((steps / 30)) >$at/choice.part
  mv $at/choice.part $at/choice
}

if [ ! -e $at/choice ] || [ -e $at/done ]; then prepare; fi
code=0
# shellcheck disable=SC2046
train_for $((budget + 30)) $(cat $at/choice) || code=$?
if [ $code -ne 0 ] && [ ! -e $at/late ]; then
  [ $code -ne 85 ] || echo "demo: interrupted; make demo goes on from its last step"
  exit $code
fi
[ $code -eq 0 ] || echo "demo: the time is up before the last step, as where other work slows this machine down"
touch $at/done

prompt="And it came to pass"
[ -s $at/text/kjv.txt ] || prompt="First Citizen:
"
echo
sparkline
step=$(find $at/checkpoint -maxdepth 1 -name 'step-*' | sort -V | tail -n 1)
echo
echo "A sample from $step:"
"$program" generate "$step" --prompt="$prompt" --max-new-tokens=160 --temperature=0.7 --top-k=40 --seed="$seed"
