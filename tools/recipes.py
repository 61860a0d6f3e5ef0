"""Price the recipes, try their proxies, and keep the table of recipes/README.md true.

recipes.py PROGRAM            fails if the table is not what the program prices now
recipes.py PROGRAM --write    writes the table
recipes.py PROGRAM --try      also checks each recipe by --dry-run and trains three steps of its proxy
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "recipes"
PRICED_ON = re.compile(r"^# priced on: --cluster (\S+) --gpus (\d+)$", re.M)
BEGIN, END = "<!-- recipes.py writes this table -->\n", "<!-- end of the table -->\n"
DOLLARS_PER_GPU_HOUR = 2.5
SHARES = (0.1, 0.3, 1.0)
# What a machine that holds none of the data, weights and GPUs may lack.
MAY_NEED = re.compile(r"^needs: (training\.dataset_path|validation\.dataset_path|model\.hf_assets_path|"
                      r"checkpoint\.initial_load_path|parallelism\.\w+ = \S+ \d+ ranks)")


def loss(parameters, tokens):
    """Loss by the law of Hoffmann et al. as Besiroglu et al. (arXiv 2404.10102) fitted it."""
    return 1.8172 + 482.01 / parameters**0.3478 + 2085.43 / tokens**0.3658


def run(program, *words):
    nowhere = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9"}  # no check depends on a hub
    return subprocess.run([program, *map(str, words)], capture_output=True, text=True, env=nowhere)


def keys_of(recipe):
    """The recipe's keys, with those of the files it includes."""
    own = tomllib.loads(recipe.read_text())
    included = own.pop("include", [])
    keys = {}
    for name in [included] if isinstance(included, str) else included:
        merge(keys, keys_of(recipe.parent / name))
    merge(keys, own)
    return keys


def merge(keys, more):
    for name, value in more.items():
        if isinstance(value, dict):
            merge(keys.setdefault(name, {}), value)
        else:
            keys[name] = value


def number(text):
    return float(text[:-1]) * {"k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}[text[-1]]


def row(program, recipe):
    cluster, gpus = PRICED_ON.search(recipe.read_text()).groups()
    reply = run(program, "price", recipe, "--cluster", cluster, "--gpus", gpus, "--json")
    if reply.returncode:
        sys.exit(f"{recipe.name}: {reply.stderr}")
    price = json.loads(reply.stdout)
    keys = keys_of(recipe)
    tokens = number(keys["training"]["tokens"])
    hours = tokens / price["tokens_per_s"] / 3600
    time = f"{hours / 24:,.1f} days" if hours >= 48 else f"{hours:.1f} h"
    memory = price["memory"]
    if not memory["fits"]:
        sys.exit(f"{recipe.name}: does not fit: {memory['peak_bytes']} of {memory['limit_bytes']} bytes")
    dollars = float(f"{hours * int(gpus) * DOLLARS_PER_GPU_HOUR:.2g}")
    begins = "initial_load_path" not in keys["checkpoint"]
    parameters = int(re.search(r"(\d+) parameters", run(program, "train", recipe, "--dry-run").stdout)[1])
    curve = [f"{loss(parameters, share * tokens):.2f}" if begins else "" for share in SHARES]
    return [f"[{recipe.stem}]({recipe.name})", keys["job"]["description"], f"{gpus} {cluster}",
            f"{price['tokens_per_s_per_gpu']:,.0f}", f"{memory['peak_bytes'] / 2**30:.0f} GiB", time, f"${dollars:,.0f}", *curve]


def table(program, recipes):
    head = ["recipe", "run", "GPUs", "tokens/s/GPU", "memory", "time", "cost",
            *(f"loss at {share:.0%}" for share in SHARES)]
    rows = [head, ["---"] * 3 + ["--:"] * (len(head) - 3), *(row(program, recipe) for recipe in recipes)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def try_recipe(program, recipe):
    """Returns what is wrong with the recipe, or ""."""
    dry = run(program, "train", recipe, "--dry-run")
    wrong = [line for line in dry.stdout.splitlines() if line.startswith("needs:") and not MAY_NEED.match(line)]
    if dry.returncode not in (0, 2) or wrong or "parameters" not in dry.stdout:
        return "\n".join(wrong) or dry.stderr
    with tempfile.TemporaryDirectory() as folder:
        proxy = run(program, "train", recipe, "--proxy=8", "--training.steps=3", f"--job.dump_folder={folder}")
        if proxy.returncode:
            return proxy.stdout[-2000:] + proxy.stderr
        metrics = pathlib.Path(folder, "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in metrics]
    return "" if len(losses) >= 2 and all(0 < value < 20 for value in losses) else f"losses {losses}"


def main():
    program, *options = sys.argv[1:]
    recipes = sorted(FOLDER.glob("*.toml"))
    readme = FOLDER / "README.md"
    text = readme.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    now = before + BEGIN + table(program, recipes) + END + after
    if "--write" in options:
        readme.write_text(now)
    elif now != text:
        sys.exit("recipes/README.md: its table is not what the program prices now; tools/recipes.py PROGRAM --write")
    if "--try" in options:
        wrong = {recipe.name: what for recipe in recipes if (what := try_recipe(program, recipe))}
        for name, what in wrong.items():
            print(f"{name}: {what}")
        print(f"{len(recipes) - len(wrong)} of {len(recipes)} recipes tried without a fault")
        return bool(wrong)
    return False


if __name__ == "__main__":
    sys.exit(main())
