"""Export small models of every family and load each export with several versions of transformers: they must agree on the
logits, with `tokamak eval` on the likelihood of a text, and on ends of texts, lengths and dtype.

usage: compare_exports.py PROGRAM PYTHONPATH...   (needs numpy; one PYTHONPATH for each version, which leads to PyTorch too)
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness."
EVAL_LEN = 36  # beyond the windows below and the lengths from which rotary scalings change
BYTES_BOS = 256
TOLERANCE = 1e-5

SIZES = "--model.vocab=263 --model.layers=3 --model.dim=48 --model.heads=6 --model.kv_heads=2 --model.mlp_dim=64".split()
FLAVORS = {  # name: model.name, model.flavor, further sizes
    "llama3": ("llama3", "8B"),
    "llama2": ("llama2", "7B", "--model.head_dim=12"),
    "mistral": ("mistral", "7B", "--model.head_dim=10"),
    "mistral_window": ("mistral", "24B", "--model.window=11"),
    "qwen2": ("qwen2", "0.5B"),
    "qwen2_window": ("qwen2", "7B", "--model.window=5"),
    "qwen3": ("qwen3", "8B", "--model.head_dim=14"),
    "qwen3_window": ("qwen3", "0.6B", "--model.window=7"),
    "gemma": ("gemma", "2B"),
    "gemma2": ("gemma2", "27B", "--model.window=9"),
    "gemma3": ("gemma3", "1B", "--model.window=9", "--model.layers=7"),
    "gemma3_scaled": ("gemma3", "27B", "--model.window=9", "--model.layers=7"),
    "gpt2": ("gpt2", "124M", "--model.kv_heads=6"),
}

BASE = dict(vocab_size=263, hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
            max_position_embeddings=128, bos_token_id=BYTES_BOS, initializer_range=0.2)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=4.0, mscale=1.2, mscale_all_dim=0.7)
LONG = dict(rope_type="longrope", factor=8.0, original_max_position_embeddings=16, short_factor=[1.0, 1.1, 1.2, 1.3],
            long_factor=[1.0, 2.0, 5.0, 9.0])
LINEAR = dict(rope_type="linear", factor=8.0)
OLD = {  # config.json as transformers 4 writes it
    "yarn": dict(model_type="llama", rope_theta=3e4, rope_scaling=YARN, torch_dtype="bfloat16", eos_token_id=[7, 9]),
    "dynamic": dict(model_type="llama", rope_theta=3e4, rope_scaling=dict(rope_type="dynamic", factor=2.0), max_position_embeddings=16),
    "no_head_dim": dict(model_type="mistral", rope_theta=1e6, rope_scaling=YARN, sliding_window=None),
    "window_layers": dict(model_type="qwen2", use_sliding_window=True, sliding_window=5, max_window_layers=1, rope_theta=1e6),
    "gelu": dict(model_type="gemma", hidden_act="gelu", head_dim=8, pad_token_id=None),
    "pattern": dict(model_type="gemma3_text", sliding_window_pattern=3, sliding_window=9, head_dim=8, rope_theta=2e5,
                    rope_local_base_freq=300.0, rope_scaling=LINEAR, query_pre_attn_scalar=8, pad_token_id=None),
}
NEW = {  # and as 5 does
    "longrope_of_5": dict(model_type="llama", rope_parameters=dict(rope_theta=3e4, **LONG), dtype="bfloat16", tie_word_embeddings=True),
    "yarn_of_5": dict(model_type="qwen3", head_dim=8, rope_parameters=dict(rope_theta=3e4, **YARN)),
    "no_head_dim_of_5": dict(model_type="mistral", sliding_window=11, rope_parameters=dict(rope_theta=3e4, **YARN)),
    "two_thetas_of_5": dict(model_type="gemma3_text", sliding_window=9, head_dim=8, query_pre_attn_scalar=8, pad_token_id=None,
                            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                            rope_parameters=dict(full_attention=dict(rope_theta=2e5, **LINEAR),
                                                 sliding_attention=dict(rope_theta=300.0, rope_type="default"))),
}


class Reader:
    """A process that loads models with the transformers of one PYTHONPATH."""

    def __init__(self, pythonpath):
        self.process = subprocess.Popen([sys.executable, __file__, "--serve"], env={**os.environ, "PYTHONPATH": pythonpath}, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.version = self.ask({})["version"]

    def ask(self, question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"a reader has died at {question}")
        return json.loads(answer)

    def read(self, folder, ids):
        """The logits of rows of ids, and what the version takes from config.json and generation_config.json."""
        answer = self.ask({"folder": str(folder), "ids": ids})
        return np.array(answer.pop("logits"), np.float64), answer


def serve():
    """Answers a Reader."""
    import torch
    import transformers
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        question = json.loads(line)
        answer = {"version": transformers.__version__}
        if question:
            model = transformers.AutoModelForCausalLM.from_pretrained(question["folder"], dtype=torch.float32, attn_implementation="eager")
            c = transformers.AutoConfig.from_pretrained(question["folder"])
            answer = {"dtype": str(c.dtype), "eos": c.eos_token_id, "bos": c.bos_token_id, "positions": c.max_position_embeddings,
                      "tied": c.tie_word_embeddings, "ends": model.generation_config.eos_token_id}
            with torch.no_grad():
                answer["logits"] = [model.eval()(torch.tensor([row])).logits[0].tolist() for row in question["ids"]]
        print(json.dumps(answer), file=answers, flush=True)


def difference(got, want):
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def chunks():
    """The rows that `tokamak eval` reads of TEXT, with how many of their last tokens it counts in each."""
    ids, done, rows = [BYTES_BOS, *TEXT.encode()], 0, []
    while done < len(ids) - 1:
        end = min(done + EVAL_LEN, len(ids) - 1)
        rows.append((ids[end - EVAL_LEN:end + 1], end - done))
        done = end
    return rows


def nats(rows, logits):
    total = 0.0
    for (ids, counted), row in zip(rows, logits, strict=True):
        peak = row.max(-1, keepdims=True)
        log_p = row - peak - np.log(np.exp(row - peak).sum(-1, keepdims=True))
        total -= sum(log_p[i, ids[i + 1]] for i in range(EVAL_LEN - counted, EVAL_LEN))
    return total


def run(program, *words):
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"tokamak {' '.join(map(str, words))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def export(program, folder, words):
    """Trains two steps and returns the export."""
    run(program, "train", *words, "--training.dataset=synthetic", f"--training.seq_len={EVAL_LEN}", "--training.local_batch_size=1",
        "--training.steps=2", "--optimizer.lr=0.03", "--lr_scheduler.warmup_steps=0", "--job.device=cpu", f"--job.dump_folder={folder}/out",
        "--checkpoint.enable", "--checkpoint.last_save_in_hf")
    return folder / "out/checkpoint/step-2"


def compare(program, readers, name):
    with tempfile.TemporaryDirectory() as root:
        folder = pathlib.Path(root)
        if name in FLAVORS:
            model, flavor, *sizes = FLAVORS[name]
            words = [f"--model.name={model}", f"--model.flavor={flavor}", *SIZES, *sizes]
        else:
            words = ["--model.flavor=hf", f"--model.hf_assets_path={folder}"]
            (folder / "config.json").write_text(json.dumps({**BASE, **(OLD | NEW)[name]}))
        found = export(program, folder, words)
        (folder / "text.txt").write_text(TEXT)
        ours = json.loads(run(program, "eval", found, folder / "text.txt", "--tokenizer", "bytes", "--json", "--device", "cpu",
                              "--seq-len", EVAL_LEN))
        rows = chunks()
        read = [reader.read(found, [ids[:-1] for ids, _ in rows]) for reader in readers]
    apart = max(difference(logits, read[0][0]) for logits, _ in read)
    theirs = nats(rows, read[-1][0])
    likelihood = abs(ours["loss"] * ours["tokens"] - theirs) / theirs
    same = all(said == read[0][1] for _, said in read)
    good = apart < TOLERANCE and likelihood < 2e-6 and same
    print(f"{'ok ' if good else 'BAD'} {name:18} logits {apart:.1e}  likelihood {likelihood:.1e}",
          *([] if same else [said for _, said in read]), flush=True)
    return good


def main():
    if sys.argv[1:] == ["--serve"]:
        return serve()
    program = str(pathlib.Path(sys.argv[1]).resolve())
    readers = [Reader(path) for path in sys.argv[2:]]
    print("transformers", *(reader.version for reader in readers))
    names = [*FLAVORS, *OLD, *NEW]
    bad = [name for name in names if not compare(program, readers, name)]
    print(f"{len(names) - len(bad)} of {len(names)} exports mean the same to all")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
