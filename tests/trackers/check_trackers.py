#!/usr/bin/env python3
"""Trains with metrics.tracker on real trackers, kills what sends to them at random, and compares what they have with
metrics.jsonl: check_trackers.py PROGRAM [mlflow|aim|wandb|trackio]...

Runs in a Python that has the packages; MLflow and Aim are servers of their own on this host, W&B writes offline runs,
which are read back by its own reader. The run itself is killed once too, and resumed.
"""
import json
import os
import pathlib
import random
import re
import signal
import socket
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


def listens(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


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


def from_aim(repo, folder):
    import aim
    runs = list(aim.Repo(str(repo)).iter_runs())
    assert len(runs) == 1, f"{len(runs)} runs"
    assert runs[0]["config"]["training.steps"] == STEPS
    series = runs[0].get_metric("loss", aim.sdk.context.Context({"subset": "train"}) if hasattr(aim, "sdk") else None)
    steps, values = series.values.sparse_numpy()
    return dict(zip(map(int, steps), map(float, values)))


def from_wandb(_, folder):
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore
    found = {}
    ids = set()
    for path in folder.glob("wandb/offline-run-*/run-*.wandb"):
        ids.add(re.search(r"run-(\w+)\.wandb", path.name)[1])
        store = DataStore()
        store.open_for_scan(str(path))
        while True:
            try:
                data = store.scan_data()
            except AssertionError:  # the end of what a killed sender wrote
                break
            if data is None:
                break
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            if "train/loss" in row:
                found[row["step"]] = row["train/loss"]
    assert len(ids) == 1, f"runs {ids}"
    return found


def check(program, tracker, draw):
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        folder = scratch / "run"
        environment = os.environ | {"PYTHONPATH": str(ROOT / "python"), "HOME": str(scratch), "WANDB_MODE": "offline",
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
                where = scratch / "aim"
                where.mkdir()
                aim = [str(pathlib.Path(sys.executable).parent / "aim")]
                subprocess.run(aim + ["init", "--repo", str(where)], check=True, env=environment, stdout=subprocess.DEVNULL)
                server = subprocess.Popen(aim + ["server", "--repo", str(where), "--host", "127.0.0.1", "--port", str(port)],
                                          env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                          start_new_session=True)
                wait_for(lambda: listens(port))
                environment["AIM_REPO"] = f"aim://127.0.0.1:{port}"
            start = time.monotonic()
            kills = train(program, folder, tracker, environment, draw)
            lines = lines_of(folder)
            if tracker == "aim":
                os.killpg(server.pid, signal.SIGTERM)
                server.wait()
            found = {"mlflow": from_mlflow, "aim": from_aim, "wandb": from_wandb}[tracker](where, folder)
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
    results = [check(sys.argv[1], tracker, draw) for tracker in sys.argv[2:] or ["mlflow", "aim", "wandb"]]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
