"""Reads what a run wrote."""
import json
from pathlib import Path


def read_run(folder, *, as_arrow=False):
    """The logged steps of a run (job.dump_folder), as a pandas DataFrame by step, or as a pyarrow Table.

    Columns are the fields of metrics.jsonl, and validation_loss where the run validated. Raises FileNotFoundError if the
    folder has no metrics.jsonl. A last line that is still being written is left out.
    """
    folder = Path(folder)
    steps = {line["step"]: line for line in _lines(folder / "metrics.jsonl")}
    if (folder / "validation.jsonl").is_file():
        for line in _lines(folder / "validation.jsonl"):
            steps.setdefault(line["step"], {"step": line["step"]})["validation_loss"] = line["loss"]
    names = list(dict.fromkeys(name for line in steps.values() for name in line))
    rows = [{name: steps[step].get(name) for name in names} for step in sorted(steps)]
    if as_arrow:
        import pyarrow
        return pyarrow.Table.from_pylist(rows)
    import pandas
    return pandas.DataFrame(rows, columns=names or ["step"]).set_index("step")


def _lines(path):
    whole = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in whole]
