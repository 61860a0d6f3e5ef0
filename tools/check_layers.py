"""Fail if a file under tokamak/ includes a layer that its own layer may not see."""
import pathlib
import re
import sys

MAY_SEE = {  # layer: layers that it may include; itself is implied
    "core": "",
    "config": "core",
    "hub": "core",
    "tokenizer": "core",
    "data": "core hub tokenizer",
    "checkpoint": "core",
    "comm": "core",
    "graph": "core",
    "ops": "core graph",
    "pipeline": "core graph",
    "plan": "core graph ops pipeline",
    "exec": "core graph ops plan comm pipeline",
    "cpu": "core graph ops plan comm exec",
    "gpu": "core graph ops plan comm exec",
    "models": "core graph ops",
    "parallel": "core graph ops pipeline",
    "float8": "core config checkpoint graph ops pipeline parallel",
    "run": "core config data checkpoint graph ops pipeline plan models parallel",
    "price": "core config graph ops pipeline plan models parallel run",
    "search": "core config graph ops pipeline plan models parallel run price",
    "train": "core config tokenizer data checkpoint comm graph ops pipeline plan exec models parallel float8 run",
    "launch": "core comm graph ops plan exec run train",
}
FOLDERS_MAY_SEE = {  # the same among the folders of a layer
    "launch": {
        "process": "",
        "network": "process",
        "cluster": "",
        "slurm": "process",
        "job": "process network cluster",
    },
}
MAY_SEE = {layer: set(seen.split()) for layer, seen in MAY_SEE.items()}
MAY_SEE["cli"] = set(MAY_SEE)
# Tests, and what only tests link, run what they test.
TEST_STEM = re.compile(r"_test$|_bench$|^test_")
TESTS_MAY_SEE = {"comm", "cpu", "exec", "gpu", "launch", "ops", "pipeline", "plan"}

INCLUDE = re.compile(r'^\s*#\s*include\s+"tokamak/(parallel/(?=float8/))?(\w+)/', re.M)
INCLUDE_OF_FOLDER = re.compile(r'^\s*#\s*include\s+"tokamak/(\w+)/(\w+)/', re.M)


def layer_of(path):
    """The folder's layer; a kernel file belongs to its backend, and passes of fp8 to a layer of its own."""
    if path.parts[1] == "ops" and path.name.endswith(("_cpu.cpp", "_cpu.h")):
        return "cpu"
    if path.parts[1] == "ops" and path.name.endswith(("_gpu.cu", "_gpu.cuh", "_gpu.h", "_gpu.cpp")):
        return "gpu"
    if path.parts[1:3] == ("parallel", "float8"):
        return "float8"
    return path.parts[1]


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    bad = []
    for path in sorted((root / "tokamak").rglob("*")):
        if path.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
            continue
        name = path.relative_to(root)
        here = layer_of(name)
        if here not in MAY_SEE:
            bad.append(f"{name}: unknown layer {here}: add it to tools/check_layers.py")
            continue
        allowed = MAY_SEE[here] | {here}
        if TEST_STEM.search(path.stem):
            allowed |= TESTS_MAY_SEE
        for seen in sorted({layer for _, layer in INCLUDE.findall(path.read_text())} - allowed):
            bad.append(f"{name}: {here} may not include {seen}")
        if here in FOLDERS_MAY_SEE:
            folder = name.parts[2]
            allowed = {*FOLDERS_MAY_SEE[here].get(folder, "").split(), folder}
            for layer, seen in sorted(set(INCLUDE_OF_FOLDER.findall(path.read_text()))):
                if layer == here and seen not in allowed:
                    bad.append(f"{name}: {here}/{folder} may not include {here}/{seen}")
    print("\n".join(bad), end="\n" if bad else "")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
