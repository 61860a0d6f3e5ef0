"""Train small models of many shapes with PyTorch and with tokamak and compare: ten AdamW steps in fp32, the export as
transformers loads it (weights, and logits against those of PyTorch's own model), and from that export the log-likelihood
of a text and greedy tokens of both programs.

usage: compare_with_pytorch.py PROGRAM [--mesh fsdp|tp|pp|tp_pp] [--also PYTHONPATH] [CASE ...]   (needs torch, transformers, numpy)

With --mesh tokamak trains on two or four ranks, four rows at a time, the cases that have a head and a layer for each.
With --also the transformers of that PYTHONPATH, another version, loads each export too and must find the same logits.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from compare_exports import TOLERANCE, Reader, difference
from transformers import (AutoModelForCausalLM, AutoModelForImageTextToText, Gemma2Config, Gemma3Config, Gemma3TextConfig, GemmaConfig,
                          GPT2Config, LlamaConfig, Mistral3Config, MistralConfig, PixtralVisionConfig, Qwen2Config, Qwen3Config,
                          SiglipVisionConfig)
from transformers import __version__ as version

STEPS = 10
ROPE = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)


PROMPT = "To be, or not"
NEW_TOKENS = 20
TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness."
EVAL_LEN = 32  # below the lengths from which some rotary scalings change
BYTES_EOS = 257


def llama(kind=LlamaConfig, **fields):
    base = dict(vocab_size=263, hidden_size=36, intermediate_size=50, num_hidden_layers=2, num_attention_heads=6,
                num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-5, tie_word_embeddings=False)
    return kind(**{**base, **fields})


def gpt2(**fields):
    base = dict(vocab_size=269, n_embd=30, n_layer=2, n_head=3, n_positions=80, embd_pdrop=0.0, attn_pdrop=0.0,
                resid_pdrop=0.0, bos_token_id=100, eos_token_id=100)
    return GPT2Config(**{**base, **fields})


def gemma(kind, **fields):
    """Without a padding token, whose embedding PyTorch gives no gradient."""
    return llama(kind, **{"head_dim": 14, "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "pad_token_id": None, **fields})


VISION = dict(hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)


def gemma3_vision(**fields):
    """A model for images and text, as Gemma 3 is published from 4B on."""
    return Gemma3Config(text_config=gemma(Gemma3TextConfig, **fields), vision_config=SiglipVisionConfig(**VISION),
                        mm_tokens_per_image=4, tie_word_embeddings=fields.get("tie_word_embeddings", True))


def mistral3_vision(**fields):
    return Mistral3Config(text_config=llama(MistralConfig, **fields), vision_config=PixtralVisionConfig(**VISION),
                          tie_word_embeddings=fields.get("tie_word_embeddings", False))


CASES = {  # name: config, batch, sequence length
    "grouped": (llama(), 3, 37),
    "odd_heads": (llama(num_attention_heads=9, num_key_value_heads=3, hidden_size=54, head_dim=6), 2, 33),
    "narrow_heads": (llama(num_attention_heads=5, num_key_value_heads=5, hidden_size=30, head_dim=14), 2, 21),
    "wide_heads": (llama(num_attention_heads=2, num_key_value_heads=1, hidden_size=24, head_dim=40), 1, 65),
    "one_kv_head": (llama(num_attention_heads=7, num_key_value_heads=1, hidden_size=28, head_dim=4), 5, 17),
    "tied_biased": (llama(tie_word_embeddings=True, attention_bias=True), 2, 19),
    "mlp_bias": (llama(mlp_bias=True, attention_bias=True), 2, 29),
    "llama3_rope": (llama(rope_scaling=ROPE, rope_theta=30000.0), 2, 61),
    "prime_vocab": (llama(vocab_size=1031), 2, 100),
    "smallest": (llama(num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, hidden_size=2, head_dim=2,
                       intermediate_size=3), 1, 5),
    "linear_rope": (llama(rope_scaling=dict(rope_type="linear", factor=2.5)), 2, 40),
    "dynamic_rope": (llama(rope_scaling=dict(rope_type="dynamic", factor=2.0), max_position_embeddings=50), 2, 70),
    "yarn_rope": (llama(rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32,
                                          beta_fast=16, mscale=1.2, mscale_all_dim=0.7)), 2, 61),
    "longrope": (llama(original_max_position_embeddings=48,  # where both versions look for it
                       rope_scaling=dict(rope_type="longrope", factor=128 / 48, short_factor=[1.0, 1.1, 1.2],
                                         long_factor=[1.0, 2.0, 5.0])), 2, 61),
    "mistral": (llama(MistralConfig, sliding_window=None, head_dim=10), 2, 40),
    "mistral_window": (llama(MistralConfig, sliding_window=11, head_dim=8), 2, 90),
    "window_of_one": (llama(MistralConfig, sliding_window=1), 2, 20),
    "qwen2": (llama(Qwen2Config, tie_word_embeddings=True), 3, 37),
    "qwen2_window": (llama(Qwen2Config, use_sliding_window=True, sliding_window=13, max_window_layers=1), 2, 70),
    "qwen3": (llama(Qwen3Config, head_dim=14, num_key_value_heads=1), 2, 41),
    "qwen3_window": (llama(Qwen3Config, head_dim=16, attention_bias=True, use_sliding_window=True, sliding_window=70,
                           layer_types=["sliding_attention", "full_attention"], max_position_embeddings=256), 1, 200),
    "gpt2": (gpt2(), 3, 37),
    "gelu_inner": (gpt2(activation_function="gelu", n_inner=77), 2, 45),
    "gelu_tanh": (gpt2(activation_function="gelu_pytorch_tanh", n_inner=31, n_head=5, n_embd=35), 2, 80),
    "relu": (gpt2(activation_function="relu", scale_attn_by_inverse_layer_idx=True), 2, 33),
    "quick_gelu": (gpt2(activation_function="quick_gelu", scale_attn_weights=False), 2, 33),
    "tanh": (gpt2(activation_function="tanh", reorder_and_upcast_attn=True), 2, 33),
    "silu": (gpt2(activation_function="silu"), 2, 33),
    "untied": (gpt2(tie_word_embeddings=False, n_head=1), 2, 9),
    "two_heads": (gpt2(n_head=2, n_inner=78), 2, 41),
    "gemma": (gemma(GemmaConfig, num_key_value_heads=1), 3, 37),
    "gemma_untied": (gemma(GemmaConfig, tie_word_embeddings=False, attention_bias=True, hidden_size=30, head_dim=6), 2, 29),
    "gemma2": (gemma(Gemma2Config, query_pre_attn_scalar=14, sliding_window=11, attn_logit_softcapping=3.0,
                     final_logit_softcapping=2.0, num_hidden_layers=3), 2, 41),
    "gemma2_layers": (gemma(Gemma2Config, query_pre_attn_scalar=9, sliding_window=70, layer_types=["full_attention", "sliding_attention"],
                            head_dim=16, num_key_value_heads=1, attention_bias=True, attn_logit_softcapping=20.0,
                            tie_word_embeddings=False), 1, 150),
    "gemma2_uncapped": (gemma(Gemma2Config, query_pre_attn_scalar=31, sliding_window=5, attn_logit_softcapping=None,
                              final_logit_softcapping=None), 2, 33),
    "gemma3": (gemma(Gemma3TextConfig, query_pre_attn_scalar=14, sliding_window=64), 2, 41),
    "gemma3_window": (gemma(Gemma3TextConfig, query_pre_attn_scalar=31, sliding_window=11, num_hidden_layers=3,
                            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                            rope_theta=3e4, rope_local_base_freq=700.0, rope_scaling=dict(rope_type="linear", factor=8.0)), 2, 90),
    "gemma3_layers": (gemma(Gemma3TextConfig, query_pre_attn_scalar=256, sliding_window=7, num_hidden_layers=8,
                            hidden_size=24, num_attention_heads=4, num_key_value_heads=4, head_dim=8, attention_bias=True), 2, 33),
    "gemma3_vision": (gemma3_vision(query_pre_attn_scalar=21, sliding_window=9, num_hidden_layers=7,
                                    rope_scaling=dict(rope_type="linear", factor=8.0)), 2, 43),
    "gemma3_vision_untied": (gemma3_vision(query_pre_attn_scalar=14, sliding_window=70, tie_word_embeddings=False,
                                           num_key_value_heads=6, hidden_size=30), 2, 29),
    "mistral3_vision": (mistral3_vision(sliding_window=None, head_dim=10, rope_theta=1e5), 2, 37),
}


MESH_CASES = [name for name in CASES if name not in ("smallest", "untied")]
MESH_BATCH = 4
MESHES = {"fsdp": ["data_parallel_shard"], "tp": ["tensor_parallel"], "pp": ["pipeline_parallel"],
          "tp_pp": ["tensor_parallel", "pipeline_parallel"]}


def text_model(model):
    """The text model inside, of the same parameters; a model of text alone is its own."""
    if not hasattr(model.config, "text_config"):
        return model
    text = AutoModelForCausalLM.from_config(model.config.text_config, attn_implementation="eager")
    text.model = model.model.language_model
    text.lm_head = model.lm_head
    ids = torch.arange(9)[None]
    with torch.no_grad():
        assert torch.equal(text.eval()(ids).logits, model.eval()(ids).logits)
    return text


def save_model(config, folder):
    torch.manual_seed(7)
    kind = AutoModelForImageTextToText if hasattr(config, "text_config") else AutoModelForCausalLM
    model = kind.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p + 0.1 * torch.randn_like(p) if p.dim() == 1 else 3 * p)
    model.save_pretrained(folder)
    return text_model(model)


def train_pytorch(model, tokens):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    steps = []
    for batch in torch.tensor(tokens.astype(np.int64)):
        logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        steps.append((loss.item(), norm.item()))
    return steps


def train_tokamak(program, folder, batch, seq_len, mesh):
    words = [f"--model.hf_assets_path={folder}/hf", f"--job.dump_folder={folder}/out", "--model.flavor=hf",
             "--checkpoint.enable", f"--checkpoint.initial_load_path={folder}/hf", "--checkpoint.initial_load_in_hf",
             "--checkpoint.last_save_in_hf", "--training.dataset=tokens", f"--training.dataset_path={folder}/t.u32",
             "--training.mixed_precision_param=float32", f"--training.steps={STEPS}", "--lr_scheduler.warmup_steps=0",
             "--lr_scheduler.min_lr_factor=1.0", "--optimizer.lr=1e-3", "--metrics.log_freq=1",
             f"--training.global_batch_size={batch}", f"--training.local_batch_size={2 if mesh else batch}",
             f"--training.seq_len={seq_len}"]
    start = []
    if mesh:
        words += [f"--parallelism.{axis}_degree=2" for axis in MESHES[mesh]]
        words += ["--parallelism.pipeline_parallel_microbatch_size=1"] if "pp" in mesh else []
        start = ["launch", "-n", str(2 ** len(MESHES[mesh])), "--"]
    subprocess.run([program, *start, "train", *words], check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (folder / "out/metrics.jsonl").read_text().splitlines()]
    return [(line["loss"], line["grad_norm"]) for line in lines]


def weight_errors(model, other):
    """Worst relative error of a tensor; the key part of GPT-2's c_attn.bias apart: its gradient is zero but for rounding."""
    worst = 0.0
    mine, theirs = model.state_dict(), other.state_dict()
    for name, want in mine.items():
        diff = theirs[name] - want
        if name.endswith("c_attn.bias"):
            diff[len(want) // 3:2 * len(want) // 3] = 0
        worst = max(worst, (diff.norm() / want.norm().clamp_min(1e-30)).item())
    return worst


def greedy_tokens(program, model, folder):
    """What transformers, from the whole text each time, and tokamak append to the bytes of a prompt, up to its EOS."""
    ids = torch.tensor([list(PROMPT.encode())])
    start = ids.shape[1]
    with torch.no_grad():
        while ids.shape[1] < start + NEW_TOKENS and ids[0, -1] != BYTES_EOS:
            ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1:].argmax(-1)], dim=1)
    want = [i for i in ids[0, start:].tolist() if i != BYTES_EOS]
    words = ["generate", folder, "--tokenizer", "bytes", "--no-bos", "--ids", "-t", "0", "-n", str(NEW_TOKENS), "-p", PROMPT,
             "--device", "cpu"]
    done = subprocess.run([program, *words], check=True, capture_output=True, text=True)
    return want, [int(line) for line in done.stdout.split()]


def random_texts(vocab):
    return np.random.default_rng(5).integers(0, vocab, (3, EVAL_LEN))


def logits_of(model, ids):
    with torch.no_grad():
        return model(torch.tensor(ids)).logits.numpy()


def likelihood_error(program, model, folder):
    """Relative difference of -ln p of a text, as transformers and `tokamak eval` have it from the same export."""
    (folder / "text.txt").write_text(TEXT)
    words = ["eval", folder, folder / "text.txt", "--tokenizer", "bytes", "--json", "--device", "cpu", "--seq-len", EVAL_LEN]
    done = subprocess.run([program, *map(str, words)], check=True, capture_output=True, text=True)
    got = json.loads(done.stdout)
    ids, nats, done = [BYTES_EOS - 1, *TEXT.encode()], 0.0, 0
    while done < len(ids) - 1:
        end = min(done + EVAL_LEN, len(ids) - 1)
        begin = max(0, end - EVAL_LEN)
        with torch.no_grad():
            log_p = model(torch.tensor([ids[begin:end]])).logits[0].double().log_softmax(-1)
        nats -= sum(log_p[i - begin, ids[i + 1]].item() for i in range(done, end))
        done = end
    assert got["tokens"] == len(ids) - 1
    return abs(got["loss"] * got["tokens"] - nats) / nats


def compare(program, name, mesh, also):
    config, batch, seq_len = CASES[name]
    batch = MESH_BATCH if mesh else batch
    with tempfile.TemporaryDirectory() as root:
        folder = pathlib.Path(root)
        model = save_model(config, folder / "hf")
        shape = (STEPS, batch, seq_len + 1)
        tokens = np.random.default_rng(3).integers(0, model.config.vocab_size, shape).astype(np.uint32)
        tokens.tofile(folder / "t.u32")
        want = train_pytorch(model, tokens)
        got = train_tokamak(program, folder, batch, seq_len, mesh)
        loss = max(abs(g[0] - w[0]) for g, w in zip(got, want, strict=True))
        norm = max(abs(g[1] - w[1]) / w[1] for g, w in zip(got, want, strict=True))
        export = folder / f"out/checkpoint/step-{STEPS}"
        loaded = AutoModelForCausalLM.from_pretrained(export, attn_implementation="eager")
        weights = weight_errors(model, loaded)
        loaded.eval()
        ids = random_texts(model.config.vocab_size)
        found = logits_of(loaded, ids)
        logits = difference(found, logits_of(model.eval(), ids))
        apart = difference(also.read(export, ids.tolist())[0], found) if also else 0.0
        likelihood = likelihood_error(program, loaded, export)
        theirs, ours = greedy_tokens(program, loaded, export)
    good = loss < 2e-5 and norm < 1e-4 and weights < 1e-4 and logits < 1e-4 and apart < TOLERANCE and likelihood < 2e-6 and theirs == ours
    other = f"of {also.version} {apart:.1e}  " if also else ""
    print(f"{'ok ' if good else 'BAD'} {name:20} loss {loss:.1e}  norm {norm:.1e}  weights {weights:.1e}  "
          f"logits {logits:.1e}  {other}likelihood {likelihood:.1e}  greedy {sum(a == b for a, b in zip(theirs, ours))} of {len(theirs)}", flush=True)
    return good


def main():
    torch.set_num_threads(1)
    words = sys.argv[1:]
    options = {"--mesh": "", "--also": ""}
    for option in options:
        if option in words:
            at = words.index(option)
            options[option] = words[at + 1]
            del words[at:at + 2]
    mesh = options["--mesh"]
    also = Reader(options["--also"]) if options["--also"] else None
    print("transformers", version)
    program = str(pathlib.Path(words[0]).resolve())
    results = [compare(program, name, mesh, also) for name in words[1:] or (MESH_CASES if mesh else CASES)]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
