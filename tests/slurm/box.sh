#!/bin/bash
# A Slurm in a box: a controller and several nodes on one machine, for tests.
#
#   box.sh start DIR NODES   starts what of it does not run yet, and waits until its NODES nodes are idle
#   box.sh stop DIR          ends every process of it; what lies in DIR stays
#   box.sh node DIR N down   node nN loses power: all its processes die at once
#   box.sh node DIR N up     it comes back
#
# After a start:  . DIR/env   and then sinfo, srun, sbatch, scancel as anywhere.
#
# Wants root and Debian's slurm-wlm and munge (no systemd, no database). DIR holds everything: key, sockets, configuration, state,
# logs; at most 40 characters, for sockets have short names. Several boxes may run side by side. All traffic is loopback's; only where
# this machine's name does not lead to 127.*, the nodes listen on every interface (munge guards them).
#
# Where the kernel lets it (a container: CAP_SYS_ADMIN), each node has its own hostname n1, n2, ..., process ids and mounts, so that
# a program sees different hosts; DIR/nN.pid is the process whose death takes the node's. Else all nodes bear this machine's name,
# and Open MPI, which goes by names, fails across them (within one it works). All nodes share the disk, /tmp, /dev/shm and the cores:
# DIR/env sets OMP_NUM_THREADS=1, and more ranks than cores are slow.
#
# Quicker than a cluster: a requeued job waits 10 s (by default 120), a silent node is down after 20 s (300). KillWait is Slurm's 30 s.
#
#   BOX_CPUS=8      cores that each node claims to have, whatever the machine has
#   BOX_GPUS=4      GPUs that each node claims to have (aliases of /dev/null; wants CAP_MKNOD); 0: none
#   BOX_CONF=...    more lines for slurm.conf, as BOX_CONF=$'KillWait=5\nMpiDefault=pmix'
#   BOX_PREPARE=... a command for bash on each node before its slurmd starts, with $NODE; its mounts are the node's own
set -euo pipefail

die() { echo "box.sh: $*" >&2; exit 1; }

usage() { sed -n '4,7s/^# *//p' "$0" >&2; exit 2; }

# The process that we started, not another with its number: number and time of its start.
born() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20 || true; }

alive() {
  [ -s "$DIR/$1.pid" ] || return 1
  local pid start
  read -r pid start < "$DIR/$1.pid"
  [ -n "$start" ] && [ "$(born "$pid")" = "$start" ] && [ "$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -c1)" != Z ]
}

pid_of() { cut -d' ' -f1 "$DIR/$1.pid"; }

# begin NAME WORD...: a process in the background, with its log and its number.
begin() {
  local name=$1
  shift
  setsid "$@" < /dev/null >> "$DIR/$name.log" 2>&1 &
  local pid=$!
  disown
  echo "$pid $(born "$pid")" > "$DIR/$name.pid"
}

# end NAME SIGNAL: until it is gone; after five seconds by force.
end() {
  if alive "$1"; then
    kill "-$2" "$(pid_of "$1")" 2>/dev/null || true
    for _ in $(seq 50); do alive "$1" || break; sleep 0.1; done
    if alive "$1"; then kill -KILL "$(pid_of "$1")" 2>/dev/null || true; fi
  fi
  rm -f "$DIR/$1.pid"
}

wait_for() {
  local what=$1 seconds=$2
  shift 2
  for _ in $(seq $((seconds * 5))); do if "$@"; then return 0; fi; sleep 0.2; done
  die "$what: not within $seconds s; its log is in $DIR"
}

can_split() { unshare --uts --pid --fork --kill-child --mount-proc hostname n1 2>/dev/null; }

is_taken() { cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -qi "^ *[0-9]*: [0-9a-f]*:$(printf %04X "$1") "; }

free_ports() {
  local base=$((20000 + ($$ * 37 + RANDOM) % 9000)) count=$1 i
  for _ in $(seq 200); do
    for i in $(seq 0 "$((count - 1))"); do
      if is_taken $((base + i)); then base=$((base + count)); continue 2; fi
    done
    echo "$base"
    return
  done
  die "no $count free ports in a row"
}

write_conf() {
  local base any="" gpus=${BOX_GPUS:-4} i
  base=$(free_ports $((NODES + 1)))
  for i in $(seq 0 $((gpus - 1))); do
    mknod "$DIR/gpu$i" c 1 3 2>/dev/null || { echo "box.sh: no devices may be made here, so no GPUs" >&2; gpus=0; break; }
  done
  # A client listens where its host's name leads; where that is not loopback, all have to listen everywhere.
  case $(getent ahostsv4 "$(hostname)" | head -n 1) in 127.*) any=,NoInAddrAny ;; esac
  mkdir -p "$DIR/state"
  {
    cat <<CONF
ClusterName=box
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=$base
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$DIR/munge.socket,cred_expire=10
CommunicationParameters=NoCtldInAddrAny$any
StateSaveLocation=$DIR/state
SlurmdSpoolDir=$DIR/%n
TmpFS=$DIR/%n
SlurmctldPidFile=$DIR/ctld.lock
SlurmdPidFile=$DIR/%n.lock
SlurmdLogFile=$DIR/%n.steps.log
SlurmdDebug=info
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2,bf_continue
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=20
MailProg=/bin/true
MpiDefault=none
JobCompType=jobcomp/filetxt
JobCompLoc=$DIR/jobs.txt
GresTypes=gpu
${BOX_CONF:-}
CONF
    for i in $(seq "$NODES"); do
      printf 'NodeName=n%d NodeHostname=%s NodeAddr=127.0.0.1 Port=%d CPUs=%d RealMemory=1000 Gres=%s\n' \
        "$i" "$([ -e "$DIR/split" ] && echo "n$i" || echo localhost)" $((base + i)) "${BOX_CPUS:-8}" \
        "$([ "$gpus" -gt 0 ] && echo "gpu:$gpus")"
    done | sed 's/ Gres=$//'
    echo "PartitionName=box Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=60 State=UP OverSubscribe=YES:4"
  } > "$DIR/slurm.conf"
  if [ "$gpus" -gt 0 ]; then
    echo "NodeName=n[1-$NODES] Name=gpu File=$DIR/gpu[0-$((gpus - 1))]" > "$DIR/gres.conf"
  else
    : > "$DIR/gres.conf"
  fi
  echo "CgroupPlugin=cgroup/v1" > "$DIR/cgroup.conf"
  # Open MPI leaves loopback out unless told; the cores of the nodes are the same few cores.
  printf 'export SLURM_CONF=%s/slurm.conf OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo OMP_NUM_THREADS=1\n' "$DIR" > "$DIR/env"
  { cat /etc/hosts; for i in $(seq "$NODES"); do echo "127.0.0.1 n$i"; done; } > "$DIR/hosts"
}

# Runs as the node, in its own namespaces if there are any.
run_node() {
  local NODE=$1
  if [ -e "$DIR/split" ]; then
    hostname "$NODE"
    mount --bind "$DIR/hosts" /etc/hosts
  fi
  # shellcheck source=/dev/null
  if [ -s "$DIR/prepare" ]; then . "$DIR/prepare"; fi
  [ -e "$DIR/split" ] || exec slurmd -D -N "$NODE"
  slurmd -D -N "$NODE" &  # not exec: the first process of a node has to bury the steps' processes
  wait "$!"
}

start_node() {
  alive "n$1" && return
  rm -rf "${DIR:?}/n$1"  # of steps that died with the node: their folders would be in the way of the next try
  mkdir "$DIR/n$1"
  local split=()
  if [ -e "$DIR/split" ]; then split=(unshare --uts --mount --pid --fork --kill-child --mount-proc); fi
  SLURM_CONF=$DIR/slurm.conf begin "n$1" "${split[@]}" bash "$SELF" run-node "$DIR" "n$1"
}

can_reach() { scontrol ping 2>/dev/null | grep -q "is UP"; }

idle_nodes() { [ "$(sinfo -h -N -o '%T' 2>/dev/null | grep -c -E '^(idle|mixed|allocated)$')" -ge "$1" ]; }

start() {
  command -v slurmctld slurmd munged > /dev/null || die "wanted Slurm; on Debian: apt-get install slurm-wlm munge"
  [ "$(id -u)" = 0 ] || die "wanted root"
  [ ${#DIR} -le 40 ] || die "$DIR: longer than 40 characters, and the names of sockets have room for 107"
  if [ ! -e "$DIR/slurm.conf" ]; then
    mkdir -p "$DIR"
    chmod 755 "$DIR"
    if can_split; then : > "$DIR/split"; fi
    NODES=${NODES:-2}
    [ -s "$DIR/munge.key" ] || (umask 077 && head -c 64 /dev/urandom > "$DIR/munge.key")
    printf '%s\n' "${BOX_PREPARE:-}" | sed '/^$/d' > "$DIR/prepare"
    write_conf
  fi
  local has
  has=$(grep -c ^NodeName "$DIR/slurm.conf")
  [ "${NODES:-$has}" = "$has" ] || die "$DIR holds a box of $has nodes; for another number take another DIR"
  export SLURM_CONF=$DIR/slurm.conf
  alive munge || begin munge munged --force --foreground --key-file="$DIR/munge.key" --socket="$DIR/munge.socket" \
    --pid-file="$DIR/munge.lock" --seed-file="$DIR/munge.seed" --log-file="$DIR/munged.log"
  wait_for munged 10 test -S "$DIR/munge.socket"
  alive ctld || begin ctld slurmctld -D
  wait_for slurmctld 20 can_reach
  for i in $(seq "$has"); do start_node "$i"; done
  wait_for "nodes" 60 idle_nodes "$has"
  echo ". $DIR/env"
}

# Without process ids of its own a node leaves its steps behind: those that have our configuration.
end_steps() {
  local proc
  for proc in /proc/[0-9]*; do
    grep -qsz "^SLURM_CONF=$DIR/slurm.conf$" "$proc/environ" || continue
    case $(cat "$proc/comm" 2>/dev/null) in slurmstepd) kill -KILL "${proc#/proc/}" 2>/dev/null || true ;; esac
  done
}

stop() {
  [ -e "$DIR/slurm.conf" ] || { echo "box.sh: no box in $DIR" >&2; return 0; }
  export SLURM_CONF=$DIR/slurm.conf
  local i
  if alive ctld && [ -n "$(timeout 5 squeue -h 2>/dev/null)" ]; then
    timeout 5 scancel --quiet --user="$(id -un)" 2>/dev/null || true
    for _ in $(seq 25); do [ -n "$(timeout 5 squeue -h 2>/dev/null)" ] || break; sleep 0.2; done
  fi
  for i in "$DIR"/n[0-9]*.pid; do
    [ -e "$i" ] && end "$(basename "$i" .pid)" "$([ -e "$DIR/split" ] && echo KILL || echo TERM)"
  done
  [ -e "$DIR/split" ] || end_steps
  end ctld TERM
  end munge TERM
}

node() {
  export SLURM_CONF=$DIR/slurm.conf
  case ${2:-} in
    down) end "n$1" KILL ;;
    up) start_node "$1" ;;
    *) usage ;;
  esac
}

[ $# -ge 2 ] || usage
SELF=$(readlink -f "$0")
mkdir -p "$2"
DIR=$(cd "$2" && pwd)
case $1 in
  start) NODES=${3:-} start ;;
  stop) stop ;;
  node) node "${3:-}" "${4:-}" ;;
  run-node) run_node "$3" ;;
  *) usage ;;
esac
