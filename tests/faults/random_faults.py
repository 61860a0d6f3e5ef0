#!/usr/bin/env python3
"""Jobs of `tokamak launch -- train` under faults at random moments, one lap after the other.

Each lap trains a tiny model with asynchronous saves while processes are killed, or with --shim also
stopped, told to end, or given disks and clocks that fail. When the lap has done its last step, its
metrics and every checkpoint that it holds must be, byte for byte, those of a run that nobody
touched; no process may be left, and the newest checkpoint may never have gone back.

    random_faults.py PROGRAM [--count 1000 | --minutes 30] [--mean 20] [--shim FILE] [--seed S]
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
MODEL = SOURCE / "tests/oracles/llama_tiny"
RESTARTABLE = {75, 76, 85}  # the machine failed, three ends alike, stopped by a signal; above 128: killed
SILENCE_S = 120  # without a step, a lap hangs

# What --shim adds: a rule of fault_shim.cpp holds from the moment at which its file is made, once.
RULES = {
    "disk_full": "call=write,path=shard-0000,do=errno:ENOSPC",
    "disk_error": "call=fsync,path=shard-0000,do=errno:EIO",
    "disk_hangs": "call=fsync,path=step-,do=hang",
    "rank_spins": "rank=1,call=MPI_Isend,do=spin",
    "clock_ahead": "call=fsync,path=step-,do=clock:4000",
    "clock_back": "call=MPI_Isend,do=clock:-7000",
}
SIGNALS = ["rank_stops", "mpirun_stops", "terminate", "save"]
KILLS = ["rank", "rank", "rank", "both_ranks", "watcher", "mpirun", "launcher"]


def processes(word):
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if any(word in w for w in words):
            found[int(entry.name)] = words
    return found


def digest(path):
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


class Run:
    """A job in a folder of its own."""

    def __init__(self, options, num_ranks, folder):
        self.o, self.num_ranks, self.dump = options, num_ranks, Path(folder) / "dump"
        self.marks = Path(folder) / "marks"
        self.marks.mkdir(parents=True)
        self.log = open(Path(folder) / "log", "ab")
        self.process, self.starts, self.newest = None, 0, 0

    def start(self, keep=2):
        environment = dict(os.environ)
        if self.o.shim:
            rules = [
                f"{rule},times=0,after={self.marks}/{name},once={self.marks}/{name}.met"
                for name, rule in RULES.items()
            ]
            environment |= {"LD_PRELOAD": self.o.shim, "TOK_FAULT": ";".join(rules)}
        words = [self.o.program, "launch", "-n", str(self.num_ranks), "--max-restarts", "100000"]
        words += (["--keep-last-step"] if self.o.keep_last_step else []) + ["--"]
        words += ["train", "--model.flavor=hf", f"--model.hf_assets_path={MODEL}"]
        words += [f"--job.dump_folder={self.dump}", "--training.dataset=synthetic"]
        words += ["--training.mixed_precision_param=float32", "--training.threads=1"]
        words += ["--training.local_batch_size=1", "--training.global_batch_size=2"]
        words += ["--training.seq_len=16", f"--training.steps={self.o.steps}", "--metrics.log_freq=1"]
        words += ["--checkpoint.enable", "--checkpoint.interval=20", f"--checkpoint.keep_latest_k={keep}"]
        words += ["--checkpoint.async_mode=async", "--checkpoint.last_save_model_only=false"]
        words += ["--checkpoint.retry_seconds=0.2", "--checkpoint.timeout_seconds=4"]
        words += ["--comm.train_timeout_seconds=8", "--comm.init_timeout_seconds=30"]
        self.process = subprocess.Popen(words, stdout=self.log, stderr=self.log, env=environment)
        self.starts += 1

    def steps(self):
        try:
            return (self.dump / "metrics.jsonl").read_bytes().count(b"\n")
        except OSError:
            return 0

    def look(self):
        """The newest checkpoint may only go forward."""
        newest = max(self.checkpoints(), default=0)
        if newest < self.newest:
            raise AssertionError(f"the newest checkpoint went back from step {self.newest} to {newest}")
        self.newest = newest

    def checkpoints(self):
        found = {}
        for manifest in (self.dump / "checkpoint").glob("step-*/manifest.json"):
            if manifest.parent.name[5:].isdigit():
                found[int(manifest.parent.name[5:])] = manifest.parent
        return found

    def metrics(self):
        keys = ("step", "loss", "grad_norm", "lr", "tokens_seen")
        lines = (self.dump / "metrics.jsonl").read_text().splitlines()
        return [tuple(json.loads(line)[key] for key in keys) for line in lines]

    def digests(self):
        return {
            step: {f.name: digest(f) for f in sorted(folder.glob("*.safetensors"))}
            for step, folder in self.checkpoints().items()
        }

    def wait_for_no_process(self, seconds=15):
        end = time.monotonic() + seconds
        while left := processes(str(self.dump)):
            if time.monotonic() > end:
                raise AssertionError(f"processes are left: {left}")
            time.sleep(0.02)

    def strike(self, draw, kind):
        """Returns whether there was something to strike."""
        if kind in RULES:
            (self.marks / f"{kind}.met").unlink(missing_ok=True)
            (self.marks / kind).touch()
            return True
        if kind in ("terminate", "save"):
            self.process.send_signal(signal.SIGTERM if kind == "terminate" else signal.SIGUSR1)
            return True
        if kind == "launcher":
            self.process.kill()
            return True
        roles = {"rank": "train", "watcher": "launch-rank", "mpirun": "mpirun"}
        wanted = {"both_ranks": "rank", "rank_stops": "rank", "mpirun_stops": "mpirun"}.get(kind, kind)
        victims = []
        for pid, words in processes(str(self.dump)).items():
            role = words[1] if Path(words[0]).name == "tokamak" else Path(words[0]).name
            if role == roles[wanted]:
                victims.append(pid)
        if not victims:
            return False
        for pid in victims if kind == "both_ranks" else [draw.choice(victims)]:
            try:
                os.kill(pid, signal.SIGSTOP if "stops" in kind else signal.SIGKILL)
            except ProcessLookupError:
                return False
        return True


def moment(draw, options, run):
    """Waits for the next fault: some time after the job has got further, or in its restart."""
    if options.mean:
        return time.monotonic() + draw.expovariate(1 / options.mean)
    if draw.random() < 0.3:
        return time.monotonic() + draw.uniform(0, 2)
    steps, end = run.steps(), time.monotonic() + 20
    while run.steps() == steps and run.process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    return time.monotonic() + draw.expovariate(1 / 0.3)


def lap(options, draw, clean, is_enough, tally):
    num_ranks = draw.choice([1, 2, 2, 2])
    folder = tempfile.mkdtemp(prefix="tokamak-faults-")
    run = Run(options, num_ranks, folder)
    run.start()
    kinds = KILLS + ((SIGNALS + list(RULES)) * 2 if options.shim else [])
    steps, last_step = 0, time.monotonic()
    at = moment(draw, options, run)
    while True:
        code = run.process.poll()
        if code == 0:
            break
        run.look()
        if code is not None:
            if code not in RESTARTABLE and code not in (-signal.SIGKILL, -signal.SIGTERM) and code < 128:
                raise AssertionError(f"{folder}: the launcher ended with code {code}")
            run.wait_for_no_process()
            run.start()
        if run.steps() != steps:
            steps, last_step = run.steps(), time.monotonic()
        if time.monotonic() - last_step > SILENCE_S:
            raise AssertionError(f"{folder}: no step for {SILENCE_S} s")
        if not is_enough() and time.monotonic() >= at:
            kind = draw.choice(kinds)
            if run.strike(draw, kind):
                tally[kind] = tally.get(kind, 0) + 1
            at = moment(draw, options, run)
        time.sleep(0.01)
    run.wait_for_no_process()
    metrics, digests = clean[num_ranks]
    if run.metrics() != metrics:
        raise AssertionError(f"{folder}: the metrics differ")
    for step, files in run.digests().items():
        # A save out of turn is of a step that the clean run has not saved.
        if step in digests and files != digests[step]:
            raise AssertionError(f"{folder}: step-{step} differs")
    if options.steps not in run.digests() or list((run.dump / "checkpoint").glob("*.tmp-*")):
        raise AssertionError(f"{folder}: the last checkpoint is not there, or half a one is")
    shutil.rmtree(folder)
    return run.starts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--count", type=int, default=10, help="faults")
    parser.add_argument("--minutes", type=float, help="how long, in place of --count")
    parser.add_argument("--mean", type=float, help="seconds between faults; none: as soon as it goes on")
    parser.add_argument("--shim", help="libtokamak_fault_shim.so, for faults other than kills")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--keep-last-step", action="store_true", help="restarts go on from memory")
    parser.add_argument("--steps", type=int, default=1500, help="of a lap")
    options = parser.parse_args()
    options.program = str(Path(options.program).resolve())
    options.shim = options.shim and str(Path(options.shim).resolve())
    draw, tally, laps, begun = random.Random(options.seed), {}, 0, time.monotonic()
    clean = {}
    for num_ranks in (1, 2):
        with tempfile.TemporaryDirectory(prefix="tokamak-faults-") as folder:
            run = Run(options, num_ranks, folder)
            run.start(keep=0)
            if run.process.wait() != 0:
                sys.exit(f"the run without faults failed: {Path(folder, 'log').read_text()}")
            clean[num_ranks] = (run.metrics(), run.digests())

    def is_enough():
        if options.minutes:
            return time.monotonic() - begun > options.minutes * 60
        return sum(tally.values()) >= options.count

    while not is_enough():
        starts = lap(options, draw, clean, is_enough, tally)
        laps += 1
        print(
            f"lap {laps}: {sum(tally.values())} faults after {time.monotonic() - begun:.0f} s, "
            f"the launcher was started {starts} times",
            flush=True,
        )
    print(f"seed {options.seed}: {sum(tally.values())} faults in {laps} laps, no difference: {tally}")


if __name__ == "__main__":
    main()
