"""Time a restart: restart_times.py [-n RANKS] [--after STEP] [--keep-last-step] [--rank R] PROGRAM train WORD...

Starts `launch --max-restarts 2` with these words, kills rank R (2) with -9 after step STEP (5), prints what the log says
of the start, the saves and the restart, with the seconds since the start, and ends the job after two more steps. The
words want checkpoint.enable, metrics.log_freq=1 and a job.dump_folder of their own.
"""
import argparse
import os
import re
import signal
import subprocess
import sys
import time

SHOWN = re.compile(r"Started in|Going on|Load|Saved|restart|tokamak launch|WARNING|step: ")


def ranks_below(parent):
    """Processes `tokamak train`, in the order of their start, that descend from `parent`."""
    parents, found = {}, []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as stat:
                parents[int(entry)] = int(stat.read().rsplit(") ", 1)[1].split()[1])
            with open(f"/proc/{entry}/cmdline", "rb") as words:
                if words.read().split(b"\0")[:2] == [b"tokamak", b"train"]:
                    found.append(int(entry))
        except (OSError, IndexError):
            continue

    def descends(process):
        while process in parents and process != parent:
            process = parents[process]
        return process == parent

    return sorted(filter(descends, found))


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("-n", type=int, default=4)
    words.add_argument("--after", type=int, default=5)
    words.add_argument("--rank", type=int, default=2)
    words.add_argument("--keep-last-step", action="store_true")
    words.add_argument("program")
    words.add_argument("words", nargs=argparse.REMAINDER)
    args = words.parse_args()
    launch = [args.program, "launch", "-n", str(args.n), "--max-restarts", "2"]
    if args.keep_last_step:
        launch.append("--keep-last-step")
    begin = time.monotonic()
    job = subprocess.Popen(launch + ["--"] + args.words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    killed_at, steps_after = None, 0
    for line in job.stdout:
        now = time.monotonic()
        if SHOWN.search(line):
            print(f"{now - begin:8.2f} {line.rstrip()}", flush=True)
        step = re.search(r"step: +([\d,]+)", line)
        if not step:
            continue
        if killed_at is None and int(step[1].replace(",", "")) >= args.after:
            os.kill(ranks_below(job.pid)[args.rank], signal.SIGKILL)
            killed_at = time.monotonic()
            print(f"{killed_at - begin:8.2f} rank {args.rank} is killed", flush=True)
        elif killed_at is not None and now - killed_at > 0.05:
            steps_after += 1
            print(f"{now - begin:8.2f} {now - killed_at:.2f} s after the kill")
            if steps_after == 2:
                job.send_signal(signal.SIGINT)
                job.send_signal(signal.SIGTERM)
    return 0 if steps_after >= 2 and job.wait() >= 0 else 1


if __name__ == "__main__":
    sys.exit(main())
