"""torchtitan and Tokamak on the same cards, in turns: Llama 3 shapes, bf16 or fp8, random tokens, torch.compile of model and loss.

    python3 bench/torchtitan_peer.py --torchtitan ../torchtitan --tokamak build/cuda/bin/tokamak 1B 3B 1B-fp8 3B-fp8
    python3 bench/torchtitan_peer.py --torchtitan ../torchtitan --tokamak build/cuda/bin/tokamak 8B-fsdp 8B-tp 8B-tp-async

--torchtitan may be given again for another checkout; each case is started as its run_train.sh would. One row a run: the median
of the tokens/s a GPU logged after step 8, the peak memory logged, seconds from the start of the process to the line of the
first step. What is out of memory without recompute is repeated with torchtitan's selective recompute. Cases in fp8 are
tensorwise with the head in bf16 and need torchao; they run at v0.2.2.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
LINE = re.compile(r"step:\s*(\d+) .*memory:\s*([\d.]+)GiB.*tps:\s*([\d,]+)")
TP2 = {"parallelism.tensor_parallel_degree": 2, "parallelism.data_parallel_shard_degree": 1}
FP8 = {"model.converters": "quantize.linear.float8", "quantize.linear.float8.filter_fqns": "output"}
# GPUs, flavor, batch, keys of both, keys of torchtitan alone
CASES = {
    "debug": (1, "debugmodel", 8, {}, {}),
    "1B": (1, "1B", 4, {}, {}),
    "3B": (1, "3B", 2, {}, {}),
    "1B-fp8": (1, "1B", 4, {}, FP8),
    "3B-fp8": (1, "3B", 2, {}, FP8),
    "8B-fsdp": (2, "8B", 2, {"parallelism.data_parallel_shard_degree": 2}, {}),
    "8B-fsdp-1": (2, "8B", 1, {"parallelism.data_parallel_shard_degree": 2}, {}),
    "8B-tp": (2, "8B", 2, TP2, {}),
    "8B-tp-async": (2, "8B", 2, TP2, {"parallelism.enable_async_tensor_parallel": True}),
}
SHAPES = {
    "debugmodel": "--layers 6 --dim 256 --heads 16 --mlp 768 --vocab 2048",
    "1B": "--layers 16 --dim 2048 --heads 32 --kv-heads 8 --mlp 8192 --vocab 128256",
    "3B": "--layers 28 --dim 3072 --heads 24 --kv-heads 8 --mlp 8192 --vocab 128256",
}


def flags(keys):
    for key, value in keys.items():
        section, _, name = key.rpartition(".")
        if isinstance(value, bool):
            yield f"--{section}.{'' if value else 'no-'}{name}"
        else:
            yield f"--{key}={value}"


def torchtitan_command(o, checkout, case, recompute):
    gpus, flavor, batch, both, alone = CASES[case]
    keys = {"training.steps": o.steps, "training.seq_len": o.seq_len, "training.local_batch_size": batch,
            "compile.enable": True, "activation_checkpoint.mode": recompute, "metrics.log_freq": 2,
            "metrics.disable_color_printing": True, **both, **alone}
    if os.path.exists(os.path.join(checkout, "torchtitan", "trainer.py")):
        recipe = ["--module=torchtitan_random", f"--config=llama3_{flavor.lower()}"]
    else:
        recipe = ["--job.config_file=torchtitan/models/llama3/train_configs/llama3_8b.toml"]
        keys |= {"experimental.custom_import": "torchtitan_random", "model.flavor": flavor,
                 "model.hf_assets_path": "tests/assets/tokenizer", "profiling.enable_profiling": False,
                 "metrics.enable_tensorboard": False}
        if "parallelism.tensor_parallel_degree" in both:
            keys["training.dtype"] = "bfloat16"  # this generation has mixed precision with FSDP alone
    return [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={gpus}", "--rdzv_backend=c10d",
            "--rdzv_endpoint=localhost:0", "--local-ranks-filter=0", "--role=rank", "--tee=3", "-m", "torchtitan.train",
            *recipe, *flags(keys)]


def tokamak_command(o, case):
    gpus, flavor, batch, both, _ = CASES[case]
    if flavor in SHAPES:
        return [o.tokamak, "bench", "model", "--dtype", "bfloat16", "--device", "cuda", *SHAPES[flavor].split(),
                "--batch", str(batch), "--seq-len", str(o.seq_len), "--warmup", "8", "--steps", str(o.steps - 8),
                *(["--float8", "tensorwise"] if case.endswith("-fp8") else [])]
    keys = {"model.name": "llama3", "model.flavor": flavor, "training.dataset": "synthetic", "training.steps": o.steps,
            "training.seq_len": o.seq_len, "training.local_batch_size": batch, "training.mixed_precision_param": "bfloat16",
            "activation_checkpoint.mode": "none", "metrics.log_freq": 2,
            "metrics.disable_color_printing": "true", **both}
    return [o.tokamak, "launch", "-n", str(gpus), "--", "train", *flags(keys)]


class Run:
    def __init__(self, o, command, folder, environment):
        self.steps, self.memory, self.start, self.speed = [], 0.0, None, None
        self.text = []
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as scratch:
            process = subprocess.Popen(["timeout", "-k", "5", str(o.limit), *command], cwd=folder or scratch, text=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **environment})
            for line in process.stdout:
                self.text.append(line)
                self.read(line, time.perf_counter() - begin)
            self.code = process.wait()
        self.seconds = time.perf_counter() - begin
        logged = [tps for step, tps in self.steps if step > 8]
        self.speed = self.speed or (statistics.median(logged) if logged else None)

    def read(self, line, now):
        if m := LINE.search(line):
            self.start = self.start or now
            self.memory = max(self.memory, float(m[2]))
            self.steps.append((int(m[1]), float(m[3].replace(",", ""))))
        elif m := re.search(r"([\d.]+) GiB planned", line):
            self.memory = float(m[1])
        elif m := re.search(r"^step .*, ([\d.]+) tok/s", line):
            self.speed = float(m[1])

    def out_of_memory(self):
        return any("OutOfMemoryError" in line for line in self.text)

    def row(self, case, who, how):
        if self.speed is None:
            errors = [t.strip() for t in self.text if "Error" in t] or self.text[-1:] or [""]
            return f"| {case} | {who} | {how} | no figure: exit {self.code}, {errors[0].strip()[-160:]} | | | |"
        start = f"{self.start:.1f}" if self.start else ""
        return f"| {case} | {who} | {how} | {self.speed:,.0f} | {self.memory:.1f} | {start} | {self.seconds:.0f} |"


def version(checkout):
    command = ["git", "-C", checkout, "describe", "--tags", "--always"]
    name = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return f"torchtitan {name or os.path.basename(os.path.abspath(checkout))}"


def keep(o, run, name):
    if o.logs:
        with open(os.path.join(o.logs, re.sub(r"[^\w.-]", "_", name) + ".log"), "w") as f:
            f.writelines(run.text)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("cases", nargs="*", default=["1B", "3B"], metavar="CASE", help=", ".join(CASES))
    p.add_argument("--torchtitan", action="append", default=[], metavar="CHECKOUT")
    p.add_argument("--tokamak", metavar="PROGRAM")
    p.add_argument("--recompute", choices=["none", "selective"], default="none")
    p.add_argument("--recipe-loss", action="store_true",
                   help="torchtitan's loss by chunks, which fails with FSDP2 of PyTorch 2.11")
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--seq-len", type=int, default=8192)
    p.add_argument("--limit", type=int, default=600, help="seconds a run may take")
    p.add_argument("--logs", metavar="FOLDER", help="keep every run's output there")
    o = p.parse_args()
    o.tokamak = o.tokamak and os.path.abspath(o.tokamak)
    if unknown := [c for c in o.cases if c not in CASES]:
        p.error(f"no such case: {unknown[0]}; there are {', '.join(CASES)}")
    print("| case | program | recompute | tok/s a GPU | GiB | first step, s | whole run, s |")
    print("|---|---|---|--:|--:|--:|--:|", flush=True)
    for case in o.cases:
        for checkout in o.torchtitan:
            paths = [os.path.abspath(checkout), HERE, os.environ.get("PYTHONPATH", "")]
            environment = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTHONUNBUFFERED": "1",
                           "PYTHONPATH": os.pathsep.join(paths)}
            if o.recipe_loss:
                environment["TORCHTITAN_RECIPE_LOSS"] = "1"
            for recompute in dict.fromkeys([o.recompute, "selective"]):
                command = torchtitan_command(o, checkout, case, recompute)
                run = Run(o, command, checkout, environment)
                keep(o, run, f"{case}-{version(checkout)}-{recompute}")
                print(run.row(case, version(checkout), recompute), flush=True)
                if not run.out_of_memory():
                    break
        if o.tokamak and case != "8B-tp-async":
            run = Run(o, tokamak_command(o, case), None, {})
            keep(o, run, f"{case}-tokamak")
            print(run.row(case, "Tokamak", "none"), flush=True)


main()
