#!/usr/bin/env python3
"""Trains with metrics.tracker on real trackers, kills what sends to them at random, and compares what they have with
metrics.jsonl: check_trackers.py PROGRAM [mlflow|wandb|aim|trackio]...

Runs in a Python that has the packages; MLflow is a server of its own on this host, W&B writes offline runs, whose
files are read back, Aim and Trackio keep local files, which their own readers give. The run itself is killed once too, and resumed.
"""
import json
import os
import pathlib
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

STEPS = 600
ROOT = pathlib.Path(__file__).resolve().parents[2]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(what, seconds=90):
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            sys.exit("check_trackers: a server did not start")
        time.sleep(0.2)


def answers(url):
    try:
        return urllib.request.urlopen(url, timeout=2).status == 200
    except OSError:
        return False


def senders():
    """The processes that send to trackers."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"tokamak.track" in words and b"--check" not in words and words[0].endswith(b"python3"):
                found.append(int(entry.name))
    return found


def train(program, folder, tracker, environment, draw):
    words = [program, "train", "--training.dataset=synthetic", f"--training.steps={STEPS}", "--training.seq_len=512",
             "--training.local_batch_size=4", "--model.layers=2", "--model.dim=64", "--model.heads=2",
             "--model.vocab=512", "--training.threads=1", "--job.device=cpu", "--metrics.log_freq=1", "--checkpoint.enable",
             "--checkpoint.interval=50", "--job.save_config_file=config.json", f"--job.dump_folder={folder}",
             f"--metrics.tracker={tracker}"]
    kills = 0
    for attempt in range(2):
        run = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        while run.poll() is None and kills < 4 * (attempt + 1):
            time.sleep(draw.uniform(0.5, 2.5))
            for pid in senders():
                os.kill(pid, signal.SIGKILL)
                kills += 1
            if attempt == 0 and kills >= 2:
                run.kill()
        output = run.communicate()[0]
    if run.returncode != 0:
        sys.exit(f"check_trackers: the run failed:\n{output[-2000:]}")
    wait_for(lambda: not senders())
    return kills


def lines_of(folder):
    return {found["step"]: found for found in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())}


def from_mlflow(uri, folder):
    import mlflow
    client = mlflow.MlflowClient(uri)
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
    assert len(runs) == 1, f"{len(runs)} runs"
    assert runs[0].data.params["training.steps"] == str(STEPS)
    return {m.step: m.value for m in client.get_metric_history(runs[0].info.run_id, "train/loss")}


def records_of(path):
    """The records of a file of W&B, which is a log of LevelDB after 7 bytes. A record that a kill has torn ends it."""
    data = path.read_bytes()
    at, record = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        if kind == 0 or at + 7 + size > len(data):
            return
        record = (record if kind in (3, 4) else b"") + data[at + 7:at + 7 + size]
        if kind in (1, 4):
            yield record
        at += 7 + size


def from_wandb(_, folder):
    from wandb.proto import wandb_internal_pb2
    found = {}
    ids = set()
    for path in folder.glob("wandb/offline-run-*/run-*.wandb"):
        ids.add(re.search(r"run-(\w+)\.wandb", path.name)[1])
        for data in records_of(path):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            if "train/loss" in row:
                found[row["step"]] = row["train/loss"]
    assert len(ids) == 1, f"runs {ids}"
    return found


def from_aim(_, folder):
    subprocess.run([pathlib.Path(sys.executable).parent / "aim", "storage", "--repo", folder.parent, "reindex"],
                   input="y", text=True, check=True, capture_output=True)
    import aim
    # A sender that is killed while Aim makes the run leaves one without values.
    runs = [run for run in aim.Repo(str(folder.parent)).iter_runs() if list(run.metrics())]
    assert len(runs) == 1, f"{len(runs)} runs"
    losses = next(metric for metric in runs[0].metrics() if metric.name == "train/loss")
    steps, (values, *_) = losses.data.items_list()
    return dict(zip(steps, values))


def from_trackio(_, folder):
    reader = ("import json; from trackio.sqlite_storage import SQLiteStorage as S; (run,) = set(S.get_runs('tokamak')); "
              "print(json.dumps([[row['step'], row['train/loss']] for row in S.get_logs('tokamak', run) "
              "if 'train/loss' in row]))")
    rows = subprocess.run([sys.executable, "-c", reader], env=os.environ | {"TRACKIO_DIR": str(folder.parent / "trackio")},
                          check=True, stdout=subprocess.PIPE, text=True).stdout
    return dict(json.loads(rows.splitlines()[-1]))


def check(program, tracker, draw):
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        folder = scratch / "run"
        environment = os.environ | {"PYTHONPATH": str(ROOT / "python"), "HOME": str(scratch), "WANDB_MODE": "offline",
                                    "AIM_REPO": str(scratch), "TRACKIO_DIR": str(scratch / "trackio"),
                                    "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
        server = None
        port = free_port()
        where = None
        try:
            if tracker == "mlflow":
                where = f"http://127.0.0.1:{port}"
                server = subprocess.Popen([sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1",
                                           "--backend-store-uri", f"sqlite:///{scratch}/mlflow.db",
                                           "--default-artifact-root", str(scratch / "artifacts")],
                                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
                wait_for(lambda: answers(f"{where}/health"))
                environment["MLFLOW_TRACKING_URI"] = where
            if tracker == "aim":
                subprocess.run([pathlib.Path(sys.executable).parent / "aim", "init", "--repo", scratch], check=True,
                               capture_output=True)
            start = time.monotonic()
            kills = train(program, folder, tracker, environment, draw)
            lines = lines_of(folder)
            found = {"mlflow": from_mlflow, "wandb": from_wandb, "aim": from_aim, "trackio": from_trackio}[tracker](where, folder)
        finally:
            if server and server.poll() is None:
                os.killpg(server.pid, signal.SIGKILL)
        missing = sorted(step for step in lines if step not in found)
        wrong = sorted(s for s in lines if s in found and abs(found[s] - lines[s]["loss"]) > 1e-6 * abs(lines[s]["loss"]))
        print(f"{tracker}: {len(lines)} lines, {kills} kills of the sender, {len(missing)} missing, {len(wrong)} wrong, "
              f"{time.monotonic() - start:.0f} s", flush=True)
        if missing or wrong:
            print(f"  missing {missing[:10]}, wrong {wrong[:10]}\n" + (folder / "metrics_command.log").read_text()[-1500:])
        return len(lines) == STEPS and not missing and not wrong


def main():
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    draw = random.Random(seed)
    results = [check(sys.argv[1], tracker, draw) for tracker in sys.argv[2:] or ["mlflow", "wandb", "aim", "trackio"]]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
