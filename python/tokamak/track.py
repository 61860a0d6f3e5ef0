"""Sends a run's lines from standard input to an experiment tracker, by the tracker's own package.

    python3 -m tokamak.track wandb|mlflow|aim|trackio     what metrics.tracker starts
    python3 -m tokamak.track --check wandb                says whether the package is there

The program sends metrics.jsonl, validation.jsonl and events.jsonl from their first line each time it starts this
module. Steps that the tracker has already are skipped, so a restart adds nothing twice. Where to send is the tracker's
own setting: WANDB_PROJECT and WANDB_MODE, MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME, AIM_REPO, TRACKIO_PROJECT,
TRACKIO_DIR and TRACKIO_SPACE_ID. TOKAMAK_DUMP_FOLDER names the run.
"""
import hashlib
import importlib.util
import json
import os
import pathlib
import sys
import time


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class Run:
    """A tracker's run: `has` says whether a step of a kind of line is there; `log` adds one."""

    def __init__(self, folder):
        self.folder = folder
        self.name = folder.name
        self.state = folder / f"tracker_{type(self).__name__.lower()}.json"
        self.saved = json.loads(self.state.read_text()) if self.state.is_file() else {}
        # events.jsonl is never cut, so another first line means another run in the same folder. The program may be
        # about to write it.
        events = folder / "events.jsonl"
        born = ""
        for _ in range(100):
            born = events.open().readline() if events.is_file() else ""
            if born.endswith("\n"):
                break
            time.sleep(0.1)
        if self.saved.get("born") != born:
            self.saved = {"born": born}
        # Known before the tracker has the run: a sender that is killed while it makes it makes no second one.
        self.id = hashlib.sha256(f"{folder} {born}".encode()).hexdigest()[:16]

    def remember(self, **values):
        self.saved.update(values)
        aside = self.state.with_suffix(".tmp")
        aside.write_text(json.dumps(self.saved))
        aside.replace(self.state)

    def config(self):
        """The resolved configuration, flat, if the run wrote it (job.save_config_file)."""
        values = {}
        for path in sorted(self.folder.glob("*.json")):
            if path.name.startswith("tracker_"):
                continue
            try:
                found = json.loads(path.read_text())
            except ValueError:
                continue
            if isinstance(found, dict) and "job" in found:
                for table, keys in found.items():
                    if isinstance(keys, dict):
                        values.update({f"{table}.{key}": value for key, value in keys.items() if value is not None})
        return values


class Wandb(Run):
    def __init__(self, folder):
        super().__init__(folder)
        import wandb
        self.run = wandb.init(name=self.name, id=self.id, resume="allow", config=self.config(), dir=str(folder),
                              project=os.environ.get("WANDB_PROJECT", "tokamak"))
        for kind in ("train", "validation"):
            self.run.define_metric(f"{kind}/*", step_metric="step")

    def log(self, kind, step, values):
        self.run.log({"step": step, **{f"{kind}/{name}": value for name, value in values.items()}})

    def say(self, level, text):
        if level == "WARNING":
            self.run.alert(title="tokamak", text=text)

    def finish(self):
        self.run.finish()


class Mlflow(Run):
    def __init__(self, folder):
        super().__init__(folder)
        import mlflow
        self.mlflow = mlflow
        known = mlflow.search_runs(filter_string=f"tags.`tokamak.run` = '{self.id}'", output_format="list")
        if known:
            self.run = mlflow.start_run(run_id=known[0].info.run_id)
        else:
            self.run = mlflow.start_run(run_name=self.name, tags={"tokamak.run": self.id})
        if "configured" not in self.saved:
            config = list(self.config().items())
            for at in range(0, len(config), 100):
                mlflow.log_params({name: str(value)[:500] for name, value in config[at:at + 100]})
            self.remember(configured=True)

    def log(self, kind, step, values):
        self.mlflow.log_metrics({f"{kind}/{name}": value for name, value in values.items()}, step=step)

    def say(self, level, text):
        self.mlflow.set_tag(f"last {level.lower()}", text[:500])

    def finish(self):
        self.mlflow.end_run()


class Aim(Run):
    """Aim lists a new run once `aim up` or `aim storage reindex` has indexed its repository. A step that is sent twice
    is kept once. A sender that is killed while it makes the run leaves an empty one behind."""

    def __init__(self, folder):
        super().__init__(folder)
        import aim
        self.aim = aim
        options = {"repo": os.environ.get("AIM_REPO"), "experiment": "tokamak", "system_tracking_interval": None, "capture_terminal_logs": False}
        known = self.saved.get("aim")
        self.run = aim.Run(run_hash=known, force_resume=known is not None, **options)
        if not known:
            self.remember(aim=self.run.hash)
            self.run.name = self.name
            self.run["config"] = self.config()

    def log(self, kind, step, values):
        self.run.track({f"{kind}/{name}": value for name, value in values.items()}, step=step)

    def say(self, level, text):
        getattr(self.run, "log_warning" if level == "WARNING" else "log_info")(text)

    def finish(self):
        self.run.close()


class Trackio(Run):
    def __init__(self, folder):
        super().__init__(folder)
        import trackio
        from trackio.sqlite_storage import SQLiteStorage
        self.trackio = trackio
        project = os.environ.get("TRACKIO_PROJECT", "tokamak")
        name = f"{self.name}-{self.id}"
        trackio.init(project=project, name=name, resume="allow", config=self.config(), embed=False, auto_log_cpu=False,
                     auto_log_gpu=False)
        # Its own thread writes what it was given, so what it has is known from it alone.
        rows = SQLiteStorage.get_logs(project, name)
        self.saved["last"] = self.saved.get("last", {}) | {
            kind: max((row["step"] for row in rows if any(key.startswith(kind) for key in row)), default=0)
            for kind in ("train", "validation")}

    def log(self, kind, step, values):
        self.trackio.log({f"{kind}/{name}": value for name, value in values.items()}, step=step)

    def say(self, level, text):
        if level == "WARNING":
            self.trackio.alert(title="tokamak", text=text)

    def finish(self):
        self.trackio.finish()


TRACKERS = {"wandb": Wandb, "mlflow": Mlflow, "aim": Aim, "trackio": Trackio}


def send(lines, run):
    """Sends lines that the tracker does not have. Progress is kept in the run's folder every 1,000 lines and at the
    end, so what was sent just before a kill may be sent again, with the same steps."""
    last = {"train": 0, "validation": 0, "events": 0, **run.saved.get("last", {})}
    events = 0
    unsaved = 0
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if "text" in found:
            events += 1
            if events > last["events"]:
                run.say(found.get("level", "INFO"), found["text"])
                last["events"] = events
            continue
        step = found.pop("step", None)
        kind = "train" if "grad_norm" in found else "validation"
        if not is_number(step) or step <= last[kind]:
            continue
        run.log(kind, step, {name: value for name, value in found.items() if is_number(value)})
        last[kind] = step
        unsaved += 1
        if unsaved == 1000:
            run.remember(last=last)
            unsaved = 0
    run.remember(last=last)


def main():
    words = sys.argv[1:]
    checks = words[:1] == ["--check"]
    name = words[-1] if words else ""
    if name not in TRACKERS:
        sys.exit(f"tokamak.track: wanted one of {', '.join(TRACKERS)}, got '{name}'")
    if importlib.util.find_spec(name) is None:
        sys.exit(f"there is no Python package {name}; pip install {name}")
    if checks:
        return
    run = TRACKERS[name](pathlib.Path(os.environ.get("TOKAMAK_DUMP_FOLDER", ".")))
    try:
        send(sys.stdin, run)
    finally:
        run.finish()


if __name__ == "__main__":
    main()
