#!/bin/bash
# `tokamak launch --slurm` and `doctor --cluster` under a real Slurm: three nodes on this machine (box.sh).
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
BOX_GPUS=4 BOX_CPUS=4 BOX_CONF=KillWait=3 bash tests/slurm/box.sh start "$work/box" 3 > /dev/null
# shellcheck source=/dev/null
. "$work/box/env"

fail() {
  echo "slurm_test: $case: $*"
  for log in "$work/$case"/*.log; do [ ! -s "$log" ] || { echo "-- $log"; tail -n 12 "$log"; }; done
  squeue -o '%i %T %r' || true
  exit 1
}

# begin STEPS [OVERRIDE...] [-- WORD...]: submits a small model's run; words of `launch --slurm` come after --.
begin() {
  local steps=$1 words=()
  shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do words+=("$1"); shift; done
  [ $# -eq 0 ] || shift
  mkdir -p "$work/$case"
  overrides=(--model.flavor=hf "--model.hf_assets_path=$PWD/tests/oracles/llama_tiny" --training.dataset=synthetic
    --training.mixed_precision_param=float32 --training.threads=1 --training.seq_len=16 --training.global_batch_size=4
    --training.local_batch_size=1 "--training.steps=$steps" --metrics.log_freq=1 --checkpoint.enable
    --checkpoint.interval=1000000 --checkpoint.last_save_model_only=false "${words[@]}")
  job=$("$program" launch --slurm --no-follow --nodes=2 --ranks-per-node=1 --time=30 "$@" -- \
    train --job.dump_folder="$work/$case/run" "${overrides[@]}") || fail "it was not submitted"
  case "$job" in '' | *[!0-9]*) fail "no job id: $job" ;; esac
  job_log=$work/$case/run/slurm-$job.log
  rank_log=$work/$case/run/slurm-$job/rank-0.log
}

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

# The same run on no cluster, for its losses.
expect_same_losses() {
  OMP_NUM_THREADS=1 "$program" launch -n 2 -- train --job.dump_folder="$work/$case/whole" "${overrides[@]}" > "$work/$case/whole.log" 2>&1 ||
    fail "the run that nobody touched"
  [ "$(losses "$work/$case/run")" = "$(losses "$work/$case/whole")" ] || fail "other losses than an untouched run"
}

# Submitted, checked, followed to the end.
case_finished() {
  local folder=$work/$case/run
  mkdir -p "$work/$case"
  "$program" launch --slurm --nodes=2 --ranks-per-node=2 --time=30 -- train --job.dump_folder="$folder" --model.flavor=hf \
    --model.hf_assets_path="$PWD/tests/oracles/llama_tiny" --training.dataset=synthetic --training.seq_len=16 \
    --training.threads=1 --training.global_batch_size=4 --training.local_batch_size=1 --training.steps=30 --metrics.log_freq=1 \
    --checkpoint.enable > "$work/$case/out.log" 2>&1 || fail "launch --slurm"
  for text in "pmix starts 4 ranks on 2 nodes" "cluster: all 2 hosts are good" "Training completed" COMPLETED; do
    grep -q "$text" "$work/$case/out.log" || fail "the follower has not printed: $text"
  done
  expect [ "$(steps_done)" = 30 ]
  job=$(sed -n 's/.*: job \([0-9]*\); its log.*/\1/p' "$work/$case/out.log")
  expect [ "$(find "$folder/slurm-$job" -name 'rank-*.log' | wc -l)" = 4 ]
  if grep -q "hosts checked in" "$folder/slurm-$job/rank-0.log"; then fail "the hosts were checked twice"; fi
  grep -q "\"job\": \"$job\"" "$folder/metrics.jsonl" || fail "no job id in metrics.jsonl"
}

# Ctrl-C ends the following, not the job.
case_follower() {
  begin 1000000 -- --no-check
  await 60 "steps" has_steps 3
  local first=$job
  "$program" launch --slurm --nodes=2 --ranks-per-node=1 --no-check --dump-folder="$work/$case/other" -- doctor \
    > "$work/$case/out.log" 2>&1 &
  local follower=$!
  await 30 "the second job" grep -q "tokamak launch: job" "$work/$case/out.log"
  kill -INT $follower
  local code=0
  wait $follower || code=$?
  expect [ $code = 130 ]
  grep -q "keeps running" "$work/$case/out.log" || fail "it does not say that the job keeps running"
  local second
  second=$(sed -n 's/.*: job \([0-9]*\); its log.*/\1/p' "$work/$case/out.log")
  expect [ "$(squeue -h -j "$second" | wc -l)" = 1 ]
  scancel "$first" "$second"
  await 30 "the end" state_is CANCELLED
}

# What --signal=TERM@300 sends five minutes before the time limit.
case_time_limit() {
  begin 3000
  await 60 "steps" has_steps 5
  scancel --signal=TERM "$job"
  await 60 "a requeue" has_restarted 1
  expect saved
  grep -q "Stopped by SIGTERM" "$rank_log" || fail "it was not stopped in order"
  await 60 "more steps" has_steps "$(($(steps_done) + 5))"
  grep -q "Stopped by SIGTERM" "$rank_log" || fail "the log was truncated"
  scancel "$job"
  await 30 "the end" state_is CANCELLED
}

case_cancelled() {
  begin 1000000 -- --no-check
  await 60 "steps" has_steps 5
  scancel "$job"
  await 30 "the end" state_is CANCELLED
  expect saved
  expect [ "$(restarts)" = 0 ]
}

# A mistake is found before the job is submitted; one that only the nodes can find ends it.
case_users_mistake() {
  mkdir -p "$work/$case"
  if "$program" launch --slurm --nodes=2 --ranks-per-node=1 -- train --training.no_such_key=1 2> "$work/$case/out.log"; then
    fail "a wrong key was submitted"
  fi
  if "$program" launch --slurm --nodes=2 --ranks-per-node=1 --partition=none --dump-folder="$work/$case" -- doctor 2> "$work/$case/out.log"; then
    fail "a job for no partition was submitted"
  fi
  grep -q "Slurm refuses the job" "$work/$case/out.log" || fail "it does not say that Slurm refuses the job"
  expect [ -z "$(squeue -h)" ]
  begin 30 --training.dataset=c4 --training.dataset_path=/no/such/folder -- --no-check
  await 60 "the end" state_is FAILED
  expect [ "$(exit_code)" = 2 ]
  expect [ "$(restarts)" = 0 ]
  grep -q "/no/such/folder" "$job_log" || fail "the log does not name the mistake"
}

case_killed_rank() {
  begin 400 --checkpoint.interval=20 -- --no-check
  await 60 "steps" has_steps 25
  local rank
  rank=$(pgrep -n -f "^$program train --job.dump_folder=$work/$case/run") || fail "no rank to kill"
  kill -KILL "$rank"
  await 30 "a requeue" has_restarted 1
  await 90 "the end" state_is COMPLETED
  expect_same_losses
}

case_power_loss() {
  begin 400 --checkpoint.interval=20
  await 60 "steps" has_steps 25
  bash tests/slurm/box.sh node "$work/box" 2 down
  await 90 "a requeue" has_restarted 1
  bash tests/slurm/box.sh node "$work/box" 2 up
  await 120 "the end" state_is COMPLETED
  expect_same_losses
}

case_one_folder() {
  begin 1000000 -- --no-check
  local first=$job
  await 60 "steps" has_steps 5
  begin 1000000 -- --no-check
  await 60 "the second job's end" state_is FAILED
  expect [ "$(exit_code)" = 2 ]
  grep -q "process .* of Slurm job $first" "$job_log" || fail "it does not name the job that has the folder"
  local steps
  steps=$(steps_done)
  await 60 "steps of the first" has_steps $((steps + 5))
  scancel "$first"
  job=$first
  await 30 "the end" state_is CANCELLED
}

# Where Slurm has no PMIx, mpirun starts the ranks.
case_no_pmix() {
  mkdir -p "$work/$case/run"
  "$program" launch --slurm --dry-run --nodes=2 --ranks-per-node=1 -- doctor --cluster --dump-folder="$work/$case/run" |
    sed "s|for mpi in pmix mpirun|for mpi in none mpirun|; s|^run=.*|run=$work/$case/run|; s|=outputs/slurm|=$work/$case/run/slurm|" > "$work/$case/script"
  job=$(sbatch --parsable "$work/$case/script")
  await 60 "the end" state_is COMPLETED
  local log=$work/$case/run/slurm-$job.log
  grep -q "srun --mpi=pmix" "$log" || fail "it does not say what was wrong"
  grep -q "mpirun starts 2 ranks on 2 nodes" "$log" || fail "mpirun was not tried"
}

# Three ends alike are no accident: 76, and no requeue. Here the run's folder is taken away from under it.
case_crash_loop() {
  begin 1000000 -- --no-check
  await 60 "steps" has_steps 3
  printf '137 7\n137 7\n' > "$work/$case/run/slurm-$job/ends"
  echo '{"step":7}' > "$work/$case/metrics"
  mv "$work/$case/metrics" "$work/$case/run/metrics.jsonl"
  pkill -KILL -n -f "^$program train --job.dump_folder=$work/$case/run"
  await 30 "the end" state_is FAILED
  expect [ "$(exit_code)" = 76 ]
  expect [ "$(restarts)" = 0 ]
}

# Node n2 has another program than n1, which the check before step 0 finds: a copy with one byte more.
change_program_of_n2() {
  mkdir -p "$work/$case"
  { cat "$program"; echo; } > "$work/$case/other"
  chmod +x "$work/$case/other"
  in_n2 mount --bind "$work/$case/other" "$program"
}
in_n2() { nsenter --mount --pid --target="$(pgrep -P "$(cut -d' ' -f1 "$work/box/n2.pid")")" "$@"; }

expect_n2_left_out() {
  await 60 "a requeue" has_restarted 1
  await 120 "the end" state_is COMPLETED
  in_n2 umount "$program"
  expect [ "$(restarts)" = 1 ]
  [[ "$(scontrol show job "$job" -o)" == *" ExcNodeList=n2 "* ]] || fail "n2 is not excluded"
  expect_same_losses
}

# train checks the hosts, and names one that Slurm then leaves out.
case_left_out() {
  change_program_of_n2
  begin 30 -- --no-check
  expect_n2_left_out
  grep -q "tokamak: machine: cluster: leave out n2 (comm.check_cluster)" "$rank_log" || fail "n2 is not named"
  grep -q "cluster: 2 hosts checked in" "$rank_log" || fail "the hosts that took over were not checked"
}

# So does the script's own check.
case_check_leaves_out() {
  change_program_of_n2
  begin 30
  expect_n2_left_out
  grep -q "cluster: leave out n2" "$job_log" || fail "n2 is not named"
  if grep -q "hosts checked in" "$rank_log"; then fail "the hosts were checked twice"; fi
}

# All nodes of the box have this machine's network.
case_network() {
  local interface
  interface=$(ip -4 -o addr show up scope global 2> /dev/null | awk '{ print $2; exit }')
  [ -n "$interface" ] || { echo "slurm_test: $case: skipped: no network"; return; }
  unset OMPI_MCA_btl_tcp_if_include OMPI_MCA_oob_tcp_if_include
  begin 10 -- --no-check
  # shellcheck source=/dev/null
  . "$work/box/env"
  await 90 "the end" state_is COMPLETED
  grep -q "network: .* connects all 2 hosts, found in" "$job_log" || fail "no interface was found"
  grep -q "export NCCL_SOCKET_IFNAME==" "$work/$case/run/slurm-$job/network" || fail "it was not set"
}

# doctor under srun: a line for each host, and a file for each.
case_doctor() {
  mkdir -p "$work/$case"
  TOKAMAK_CACHE=$work/$case/cache timeout 60 srun --nodes=2 --ntasks=4 "$program" doctor --dump-folder="$work/$case/run" \
    > "$work/$case/out.log" 2>&1 || fail "doctor"
  for host in n1 n2; do
    expect [ "$(grep -c "^$host: cpu " "$work/$case/out.log")" = 1 ]
    expect [ -s "$work/$case/cache/machine.$host.json" ]
  done
  expect [ "$(find "$work/$case/cache" -name '*.json' | wc -l)" = 2 ]
  if grep -v '^n[12]: ' "$work/$case/out.log"; then fail "lines without a host"; fi
}

# Ranks see all GPUs of their node, also where each task has asked for one.
case_binding() {
  mkdir -p "$work/$case/run"
  # shellcheck disable=SC2016 # for the shell of the rank
  "$program" launch --slurm --dry-run --no-check --nodes=1 --ranks-per-node=2 --sbatch=gpus-per-task=1 \
    --dump-folder="$work/$case/run" -- doctor |
    sed 's|"$program" doctor|bash -c '\''echo sees $CUDA_VISIBLE_DEVICES'\''|' > "$work/$case/script"
  job=$(sbatch --parsable "$work/$case/script")
  job_log=$work/$case/run/slurm-$job.log
  await 60 "the end" state_is COMPLETED
  for rank in 0 1; do
    grep -qx "sees 0,1" "$work/$case/run/slurm-$job/rank-$rank.log" ||
      fail "rank $rank does not see both GPUs: $(cat "$work/$case/run/slurm-$job/rank-$rank.log")"
  done
}

# SIGUSR1 saves, and the run goes on.
case_usr1() {
  begin 1000000 -- --no-check
  await 60 "steps" has_steps 5
  scancel --signal=USR1 "$job"
  await 30 "a checkpoint" saved
  await 60 "more steps" has_steps "$(($(steps_done) + 5))"
  expect state_is RUNNING
  scancel "$job"
  await 30 "the end" state_is CANCELLED
}

# Whether both ranks have come to main(), which blocks signals first: before that the kernel ends them.
have_begun() {
  local ranks rank blocked
  ranks=$(pgrep -f "^$program train --job.dump_folder=$work/$case/run") || return 1
  [ "$(wc -w <<< "$ranks")" = 2 ] || return 1
  for rank in $ranks; do
    blocked=$(sed -n 's/^SigBlk:[[:space:]]*//p' "/proc/$rank/status" 2> /dev/null) || return 1
    [ $((0x${blocked:-0} >> 14 & 1)) = 1 ] || return 1
  done
}

# A signal in the first moments is no death by signal.
case_early_signal() {
  begin 1000000 -- --no-check
  await 60 "both ranks" have_begun
  scancel --signal=TERM "$job"
  await 60 "the end of the first attempt" test -s "$work/$case/run/slurm-$job/ends"
  expect [ "$(head -c 2 "$work/$case/run/slurm-$job/ends")" = 85 ]
  scancel "$job"
  await 30 "the end" state_is CANCELLED
}

# srun_train CODE SECONDS WORD...: train under srun, without a script of ours.
srun_train() {
  local wanted=$1 seconds=$2 code=0 start=$SECONDS
  shift 2
  mkdir -p "$work/$case"
  timeout 100 srun --nodes=2 --ntasks=2 "$@" train --job.dump_folder="$work/$case/run" --model.flavor=hf \
    --model.hf_assets_path="$PWD/tests/oracles/llama_tiny" --training.dataset=synthetic --training.seq_len=16 \
    --training.global_batch_size=4 --training.local_batch_size=1 --comm.init_timeout_seconds=8 \
    > "$work/$case/out.log" 2>&1 || code=$?
  expect [ $code = "$wanted" ]
  expect [ $((SECONDS - start)) -le "$seconds" ]
}

# One of two ranks never comes to MPI_Init, and nothing tells the other.
case_half_started() {
  # shellcheck disable=SC2016 # for the shell of the rank
  srun_train 75 40 --mpi=pmix --kill-on-bad-exit=0 bash -c '[ $SLURM_PROCID = 0 ] || exec sleep 30; exec "$0" "$@"' "$program"
  grep -q "rank 0 of 2 on n1: MPI_Init has not returned.*comm.init_timeout_seconds" "$work/$case/out.log" ||
    fail "it does not say what was missing"
}

# Slurm's own way to start MPI programs does not serve Open MPI.
case_no_pmi() {
  srun_train 2 20 --mpi=none "$program"
  grep -q "srun --mpi=pmix" "$work/$case/out.log" || fail "it does not say how to start it"
}

# `tokamak launch` as the batch script: it says that one node takes all ranks, and saves on scancel.
case_batch_launch() {
  mkdir -p "$work/$case/run"
  cat > "$work/$case/script" << SCRIPT
#!/bin/bash
exec "$program" launch -n 2 -- train --job.dump_folder="$work/$case/run" --model.flavor=hf --training.dataset=synthetic \
  --model.hf_assets_path="$PWD/tests/oracles/llama_tiny" --training.seq_len=16 --training.global_batch_size=4 \
  --training.local_batch_size=1 --training.steps=1000000 --metrics.log_freq=1 --checkpoint.enable --checkpoint.interval=1000000
SCRIPT
  job_log=$work/$case/out.log
  job=$(sbatch --parsable --nodes=2 --output="$job_log" "$work/$case/script")
  await 60 "steps" has_steps 5
  grep -q "this node takes all 2 ranks, though the Slurm job has 2 nodes" "$job_log" || fail "it does not say where"
  scancel "$job"
  await 30 "the end" state_is CANCELLED
  await 10 "a checkpoint" saved
}

all=(finished follower time_limit cancelled users_mistake killed_rank one_folder no_pmix crash_loop left_out
  check_leaves_out network doctor binding usr1 early_signal half_started no_pmi batch_launch power_loss)
[ $# -gt 0 ] || set -- "${all[@]}"
for case in "$@"; do
  start=$SECONDS
  "case_$case"
  echo "slurm_test: $case: ok ($((SECONDS - start)) s)"
done
