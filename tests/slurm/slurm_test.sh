#!/bin/bash
# The batch script of docs/launching.md under a real Slurm: two nodes on this machine (box.sh).
#
#   slurm_test.sh PROGRAM [CASE...]
#
# Without cases all of them run. Ends with 77, which ctest takes for skipped, where there is no Slurm or no
# root.
set -euo pipefail
cd "$(dirname "$0")/../.."
program=$(realpath "$1")
shift

[ "$(id -u)" = 0 ] || { echo "skipped: wanted root"; exit 77; }
command -v slurmctld slurmd munged > /dev/null || { echo "skipped: wanted slurm-wlm and munge"; exit 77; }

work=$(mktemp -d /tmp/tokslurm-XXXX)
finish() {
  bash tests/slurm/box.sh stop "$work/box" > /dev/null 2>&1 || true
  rm -rf "$work"
}
trap finish EXIT
BOX_GPUS=0 BOX_CPUS=4 BOX_CONF=KillWait=3 bash tests/slurm/box.sh start "$work/box" 2 > /dev/null
# shellcheck source=/dev/null
. "$work/box/env"

fail() {
  echo "slurm_test: $case: $*"
  for log in "$work/$case"/*.log; do [ ! -s "$log" ] || { echo "-- $log"; tail -n 12 "$log"; }; done
  squeue -o '%i %T %r' || true
  exit 1
}

# write_script STEPS [OVERRIDE...]: the documented script for this box, with a small model.
write_script() {
  local steps=$1 overrides
  shift
  mkdir -p "$work/$case"
  overrides="--model.flavor=hf --model.hf_assets_path=$PWD/tests/oracles/llama_tiny --training.dataset=synthetic \
--training.mixed_precision_param=float32 --training.threads=1 --training.seq_len=16 --training.global_batch_size=4 \
--training.local_batch_size=1 --training.steps=$steps --metrics.log_freq=1 --checkpoint.enable \
--checkpoint.interval=1000000 --checkpoint.last_save_model_only=false $*"
  awk '/^## Slurm/ {at = 1} at && /^```/ {at++; next} at == 2' docs/launching.md |
    sed -e 's/--nodes=4/--nodes=2/; s/--ntasks-per-node=8/--ntasks-per-node=1/; s/--cpus-per-task=12/--cpus-per-task=1/' \
      -e "s|tokamak train llama3_8b.toml --job.dump_folder=.*|$program train --job.dump_folder=$work/$case/run $overrides|" \
      > "$work/$case/script"
  grep -q "$program train" "$work/$case/script" || fail "docs/launching.md has no script"
}

submit() { job=$(sbatch --parsable --output="$work/$case/job.log" "$work/$case/script"); }

steps_done() { if [ -e "$work/$case/run/metrics.jsonl" ]; then wc -l < "$work/$case/run/metrics.jsonl"; else echo 0; fi; }

# await SECONDS WHAT COMMAND...
await() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    [ $SECONDS -lt $end ] || fail "waited too long for $what"
    sleep 0.2
  done
}

has_steps() { [ "$(steps_done)" -ge "$1" ]; }
state_is() { [[ "$(scontrol show job "$job" -o 2> /dev/null)" == *"JobState=$1"* ]]; }
exit_code() { scontrol show job "$job" -o | sed 's/.* ExitCode=\([0-9]*\):.*/\1/'; }
restarts() { scontrol show job "$job" -o | sed 's/.* Restarts=\([0-9]*\).*/\1/'; }
has_restarted() { [ "$(restarts)" -ge "$1" ]; }
saved() { compgen -G "$work/$case/run/checkpoint/step-*/manifest.json" > /dev/null; }
expect() { "$@" || fail "expected: $*"; }
losses() { sed 's/"lr".*//' "$1/metrics.jsonl"; }

# The same run by one process on no cluster, for its losses.
expect_same_losses() {
  local words
  words=$(sed -n "s|.*$program train --job.dump_folder=[^ ]* ||p" "$work/$case/script")
  # shellcheck disable=SC2086
  OMP_NUM_THREADS=1 "$program" launch -n 2 -- train --job.dump_folder="$work/$case/whole" $words > "$work/$case/whole.log" 2>&1 ||
    fail "the run that nobody touched"
  [ "$(losses "$work/$case/run")" = "$(losses "$work/$case/whole")" ] || fail "other losses than an untouched run"
}

case_finished() {
  write_script 30
  submit
  await 60 "the end" state_is COMPLETED
  expect [ "$(steps_done)" = 30 ]
}

# What --signal=TERM@300 sends five minutes before the time limit.
case_time_limit() {
  write_script 3000
  submit
  await 60 "steps" has_steps 5
  scancel --signal=TERM "$job"
  await 60 "a requeue" has_restarted 1
  expect saved
  grep -q "Stopped by signal 15" "$work/$case/job.log" || fail "it was not stopped in order"
  await 60 "more steps" has_steps "$(($(steps_done) + 5))"
  grep -q "Stopped by signal 15" "$work/$case/job.log" || fail "the log was truncated"
  scancel "$job"
  await 30 "the end" state_is CANCELLED
}

case_cancelled() {
  write_script 1000000
  submit
  await 60 "steps" has_steps 5
  scancel "$job"
  await 30 "the end" state_is CANCELLED
  expect saved
  expect [ "$(restarts)" = 0 ]
}

case_users_mistake() {
  write_script 30 --training.no_such_key=1
  submit
  await 60 "the end" state_is FAILED
  expect [ "$(exit_code)" = 2 ]
  expect [ "$(restarts)" = 0 ]
}

case_killed_rank() {
  write_script 400 --checkpoint.interval=20
  submit
  await 60 "steps" has_steps 25
  local rank
  rank=$(pgrep -n -f "^$program train --job.dump_folder=$work/$case/run") || fail "no rank to kill"
  kill -KILL "$rank"
  await 30 "a requeue" has_restarted 1
  await 90 "the end" state_is COMPLETED
  expect_same_losses
}

case_power_loss() {
  write_script 400 --checkpoint.interval=20
  submit
  await 60 "steps" has_steps 25
  bash tests/slurm/box.sh node "$work/box" 2 down
  await 90 "a requeue" has_restarted 1
  bash tests/slurm/box.sh node "$work/box" 2 up
  await 120 "the end" state_is COMPLETED
  expect_same_losses
}

case_one_folder() {
  write_script 1000000
  submit
  local first=$job
  await 60 "steps" has_steps 5
  job=$(sbatch --parsable --output="$work/$case/second.log" "$work/$case/script")
  await 60 "the second job's end" state_is FAILED
  expect [ "$(exit_code)" = 2 ]
  local steps
  steps=$(steps_done)
  await 60 "steps of the first" has_steps $((steps + 5))
  scancel "$first"
  job=$first
  await 30 "the end" state_is CANCELLED
}

case_no_pmix() {
  write_script 30
  sed -i 's/--mpi=pmix/--mpi=none/' "$work/$case/script"
  submit
  await 60 "the end" state_is FAILED
  expect [ "$(exit_code)" = 2 ]
  grep -q "srun --mpi=pmix" "$work/$case/job.log" || fail "it does not say what to do"
}

all=(finished time_limit cancelled users_mistake killed_rank one_folder no_pmix power_loss)
[ $# -gt 0 ] || set -- "${all[@]}"
for case in "$@"; do
  start=$SECONDS
  "case_$case"
  echo "slurm_test: $case: ok ($((SECONDS - start)) s)"
done
