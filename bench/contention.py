#!/usr/bin/env python3
"""Measures what two busy processes on the same cores cost `generate` and `train` on a CPU, and what waiting without
spinning costs them where nothing else runs.

usage: contention.py PROGRAM [ROUNDS]

Every round runs each job alone, alone with OpenMP threads that spin (OMP_WAIT_POLICY=active), and beside two processes
that are always busy, for half a minute or so in all. A column is the median of the rounds, so what else runs on the
machine hits all columns alike; for absolute figures it must be idle. On n cores with n threads a fair share beside two
busy processes is n / (n + 2). All processes stay on the cores that the script may use: `taskset -c 0,1 python3
bench/contention.py PROGRAM` measures on two.
"""
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile

SHAPE = ["--model.name=llama3", "--model.flavor=debugmodel", "--training.dataset=shakespeare", "--training.seq_len=128",
         "--training.local_batch_size=8", "--metrics.log_freq=1", "--metrics.enable_color_printing=false",
         "--job.device=cpu"]
STEPS = 41
ANSWERS = 5  # of `generate` in a round: one takes a tenth of a second
SETTINGS = {"alone": ({}, False), "spinning": ({"OMP_WAIT_POLICY": "active"}, False), "busy": ({}, True)}


def run(words, more_environment):
    own = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, errors="replace",
                          env={**own, **more_environment})
    if done.returncode != 0:
        sys.exit(f"{words}: exit {done.returncode}: {done.stderr}")
    return done


def generate(program, folder, environment):
    """Seconds of a token."""
    tokens = seconds = 0
    for _ in range(ANSWERS):
        done = run([program, "generate", folder / "model/checkpoint/step-2", "-p", "# Tokamak", "-n", 300, "-t", 1,
                    "--seq-len", 330, "--device", "cpu"], environment)
        answer = re.search(r"(\d+) new tokens in ([0-9.]+) s", done.stderr)
        tokens += int(answer[1])
        seconds += float(answer[2])
    return seconds / tokens


def train(program, folder, environment):
    """Seconds of a step, from the second on."""
    with tempfile.TemporaryDirectory(dir=folder) as out:
        run([program, "train", *SHAPE, f"--training.steps={STEPS}", f"--job.dump_folder={out}"], environment)
        lines = (pathlib.Path(out) / "metrics.jsonl").read_text().splitlines()
    return statistics.mean(json.loads(line)["step_time_s"] for line in lines[1:])


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the busy processes too
    program = str(pathlib.Path(sys.argv[1]).resolve())
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 9
    jobs = {"generate, ms per token": generate, "train, ms per step": train}
    times = {(job, setting): [] for job in jobs for setting in SETTINGS}
    with tempfile.TemporaryDirectory() as root:
        folder = pathlib.Path(root)
        run([program, "train", *SHAPE, "--training.steps=2", "--checkpoint.enable",
             f"--job.dump_folder={folder}/model"], {})
        for _ in range(rounds):
            for setting, (environment, is_busy) in SETTINGS.items():
                busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(2 if is_busy else 0)]
                try:
                    for job, measure in jobs.items():
                        times[job, setting].append(1e3 * measure(program, folder, environment))
                finally:
                    for process in busy:
                        process.kill()
                        process.wait()
    print(f"{len(os.sched_getaffinity(0))} cores, medians of {rounds} rounds (lowest to highest)")
    print("| job | alone | spinning, alone | beside two busy processes | busy / alone | alone / spinning |")
    print("|---|--:|--:|--:|--:|--:|")
    for job in jobs:
        cells = []
        middle = {}
        for setting in SETTINGS:
            all_times = times[job, setting]
            middle[setting] = statistics.median(all_times)
            cells.append(f"{middle[setting]:.2f} ({min(all_times):.2f} to {max(all_times):.2f})")
        print(f"| {job} | {' | '.join(cells)} | {middle['busy'] / middle['alone']:.2f} | "
              f"{middle['alone'] / middle['spinning']:.3f} |", flush=True)


if __name__ == "__main__":
    main()
