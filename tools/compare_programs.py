"""Compare two builds of the program: losses of CPU meshes and prices, to the last digit.

compare_programs.py OLD NEW [meshes] [presets] [rows FILE.csv ...]

Exits with 1 and names what differs, or with 0 and says how much was equal.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

P = "--parallelism."
DEGREES = {
    "pp": P + "pipeline_parallel_degree",
    "replicate": P + "data_parallel_replicate_degree",
    "shard": P + "data_parallel_shard_degree",
    "cp": P + "context_parallel_degree",
    "tp": P + "tensor_parallel_degree",
}
MESHES = [
    {},
    {"shard": 2},
    {"replicate": 2},
    {"tp": 2},
    {"cp": 2},
    {"pp": 2},
    {"replicate": 2, "shard": 2},
    {"shard": 2, "tp": 2},
    {"pp": 2, "shard": 2},
    {"cp": 2, "tp": 2},
    {"pp": 2, "tp": 2},
]
STEPS = 4


def losses(program, mesh):
    """Loss and norm of each step, as they are printed."""
    ranks = 1
    for degree in mesh.values():
        ranks *= degree
    with tempfile.TemporaryDirectory() as folder:
        words = [program, "launch", "-n", str(ranks), "--", "train", "--training.dataset=synthetic",
                 f"--training.steps={STEPS}", "--training.seq_len=128", "--training.local_batch_size=2",
                 "--training.global_batch_size=8", "--job.device=cpu", "--metrics.log_freq=1",
                 f"--job.dump_folder={folder}", P + "data_parallel_shard_degree=1"]
        words += [f"{DEGREES[axis]}={degree}" for axis, degree in mesh.items()]
        subprocess.run(words, check=True, capture_output=True, text=True)
        lines = (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()
    return [(step["loss"], step["grad_norm"]) for step in map(json.loads, lines)]


def output(program, *words):
    return subprocess.run([program, *words], check=False, capture_output=True, text=True).stdout


def main():
    old, new, *wanted = sys.argv[1:]
    different = []
    equal = 0

    def compare(name, before, after):
        nonlocal equal
        if before and before == after:
            equal += 1
        else:
            different.append(name)

    if "meshes" in wanted:
        for mesh in MESHES:
            compare(f"mesh {mesh}", losses(old, mesh), losses(new, mesh))
    if "presets" in wanted:
        listed = output(old, "plan", "--preset", "list").splitlines()
        for name in [line.split()[0] for line in listed if line.strip()]:
            words = ("plan", "--preset", name, "--json")
            before = output(old, *words)
            if before:
                compare(f"preset {name}", before, output(new, *words))
    if "rows" in wanted:
        for file in wanted[wanted.index("rows") + 1:]:
            words = (file, "--json")
            before, after = output(f"{old}_rows", *words).splitlines(), output(f"{new}_rows", *words).splitlines()
            for number, row in enumerate(before):
                compare(f"{file} row {number + 1}", row, after[number] if number < len(after) else "")
    print(f"{equal} equal, {len(different)} different")
    for name in different:
        print("different:", name)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
