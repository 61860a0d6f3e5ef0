"""Make the oracles of tests/oracles with PyTorch on the CPU: ten AdamW steps in fp32, logits and greedy tokens.

usage: make_oracles.py [--bf16] [NAME ...]   (needs torch, transformers, numpy, safetensors)

Each oracle is a folder: what save_pretrained writes; oracle.json with the losses and gradient norms of ten steps and
the tokens that greedy generation appends to a prompt; oracle.safetensors with the tokens, the logits of the first
tokens of two texts, the first step's gradients and the parameters after the last one, by Hugging Face's names.
Generation and logits stay below the lengths from which some rotary scalings change, training goes beyond them. Of a
model for images and text the facts are those of its text model, whose own configuration is in the folder exported.

--bf16 adds to the oracle.json of folders that are there how far PyTorch's own bf16 runs stray from the fp32 steps:
the root mean square, over runs from slightly different weights and over their steps, of the relative difference.
"""
import copy
import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file
from transformers import (AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, Gemma2Config, Gemma3Config, Gemma3TextConfig,
                          GemmaConfig, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, SiglipVisionConfig)

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests/oracles"
STEPS = 10
LR = 1e-3
LOGIT_ROWS = 2
LOGIT_TOKENS = 24
PROMPT = 9
NEW_TOKENS = 14
BF16_RUNS = 64
NUDGE = 2.0 ** -13  # of each weight: far below bf16's rounding, so that only the roundings differ from run to run

BASE = dict(vocab_size=131, hidden_size=32, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, max_position_embeddings=96, rms_norm_eps=1e-5,
            tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)



def rope_llama(max_position_embeddings=96, **rope):
    return LlamaConfig(**{**BASE, "num_attention_heads": 2, "num_hidden_layers": 1, "num_key_value_heads": 1,
                          "max_position_embeddings": max_position_embeddings},
                       rope_parameters=dict(rope_theta=10000.0, **rope))


def gpt2(**fields):
    base = dict(vocab_size=131, n_embd=30, n_layer=2, n_head=3, n_positions=64, embd_pdrop=0.0, attn_pdrop=0.0,
                resid_pdrop=0.0, bos_token_id=1, eos_token_id=2)
    return GPT2Config(**{**base, **fields})


# Gemma's token 0 is padding, whose embedding PyTorch gives no gradient.
GEMMA = {**BASE, "hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1, "rms_norm_eps": 1e-6,
         "tie_word_embeddings": True, "pad_token_id": None}


CASES = {  # name: config, batch, sequence length
    "mistral_tiny": (MistralConfig(**BASE, sliding_window=None), 4, 37),
    "qwen2_tiny": (Qwen2Config(**{**BASE, "num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 36,
                                  "head_dim": 6, "tie_word_embeddings": True}), 2, 41),
    "qwen3_tiny": (Qwen3Config(**{**BASE, "num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 36,
                                  "head_dim": 16, "tie_word_embeddings": True}), 8, 33),
    "qwen3_biased": (Qwen3Config(**{**BASE, "num_key_value_heads": 4, "head_dim": 8}, attention_bias=True), 2, 29),
    "mistral_window": (MistralConfig(**BASE, sliding_window=7), 2, 45),
    "qwen2_window": (Qwen2Config(**{**BASE, "hidden_size": 36, "head_dim": 12, "num_attention_heads": 3,
                                    "num_key_value_heads": 1}, use_sliding_window=True, sliding_window=5,
                                 max_window_layers=1), 2, 40),
    "qwen3_window": (Qwen3Config(**{**BASE, "num_hidden_layers": 3, "intermediate_size": 36, "head_dim": 8},
                                 use_sliding_window=True, sliding_window=6,
                                 layer_types=["sliding_attention", "full_attention", "sliding_attention"]), 2, 30),
    "llama_linear": (rope_llama(rope_type="linear", factor=3.0), 2, 40),
    "llama_dynamic": (rope_llama(rope_type="dynamic", factor=2.0, max_position_embeddings=24), 2, 40),
    "llama_yarn": (rope_llama(rope_type="yarn", factor=4.0, original_max_position_embeddings=24), 2, 40),
    "llama_longrope": (rope_llama(rope_type="longrope", original_max_position_embeddings=32, factor=3.0,
                                  short_factor=[1.0 + 0.1 * i for i in range(8)],
                                  long_factor=[1.0 + 0.7 * i for i in range(8)]), 2, 40),
    "gpt2_scaled": (gpt2(scale_attn_by_inverse_layer_idx=True, activation_function="relu", n_inner=60), 2, 37),
    "gpt2_unscaled": (gpt2(scale_attn_weights=False, reorder_and_upcast_attn=True, activation_function="silu",
                           tie_word_embeddings=False, vocab_size=133), 2, 29),
    "llama_biased": (LlamaConfig(**{**BASE, "num_key_value_heads": 1, "hidden_size": 36, "head_dim": 10},
                                 attention_bias=True, mlp_bias=True), 2, 31),
    "gemma_tiny": (GemmaConfig(**GEMMA), 2, 37),
    "gemma2_tiny": (Gemma2Config(**{**GEMMA, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
                                    "head_dim": 8}, query_pre_attn_scalar=11, sliding_window=7,
                                 attn_logit_softcapping=4.0, final_logit_softcapping=3.0), 2, 40),
    "gemma3_tiny": (Gemma3TextConfig(**{**GEMMA, "num_hidden_layers": 3, "num_attention_heads": 4,
                                        "num_key_value_heads": 2, "head_dim": 10}, query_pre_attn_scalar=23,
                                     sliding_window=6,
                                     layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                                     rope_parameters={"full_attention": dict(rope_type="linear", factor=8.0,
                                                                             rope_theta=3e4),
                                                      "sliding_attention": dict(rope_type="default",
                                                                                rope_theta=500.0)}), 2, 40),
    "gemma3_pattern": (Gemma3TextConfig(**{**GEMMA, "num_hidden_layers": 7, "hidden_size": 24, "intermediate_size": 20,
                                           "head_dim": 8, "vocab_size": 71, "tie_word_embeddings": False},
                                        query_pre_attn_scalar=8, sliding_window=9, attention_bias=True), 2, 29),
    "gemma3_vision": (Gemma3Config(text_config=Gemma3TextConfig(
        **{**GEMMA, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
           "hidden_size": 24, "intermediate_size": 28, "vocab_size": 61}, query_pre_attn_scalar=17, sliding_window=8,
        rope_parameters={"full_attention": dict(rope_type="linear", factor=8.0, rope_theta=1e6),
                         "sliding_attention": dict(rope_type="default", rope_theta=1e4)}),
        vision_config=SiglipVisionConfig(hidden_size=8, intermediate_size=12, num_hidden_layers=1,
                                         num_attention_heads=2, image_size=28, patch_size=14),
        mm_tokens_per_image=4, eos_token_id=[2, 5]), 2, 33),
}


def is_for_images(config):
    return hasattr(config, "text_config")


def kind_of(config):
    return AutoModelForImageTextToText if is_for_images(config) else AutoModelForCausalLM


def text_model(model):
    """The text model in a model for images and text, with the same parameters."""
    if not is_for_images(model.config):
        return model
    text = AutoModelForCausalLM.from_config(model.config.text_config, attn_implementation="eager")
    text.model, text.lm_head = model.model.language_model, model.lm_head
    text.config.eos_token_id = text.generation_config.eos_token_id = model.config.eos_token_id
    return text


def save_model(config, folder):
    torch.manual_seed(7)
    model = kind_of(config).from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p + 0.1 * torch.randn_like(p) if p.dim() == 1 else 3 * p)
            if is_for_images(config):  # as published
                p.copy_(p.bfloat16())
    if is_for_images(config):
        copy.deepcopy(model).bfloat16().save_pretrained(folder)
        with tempfile.TemporaryDirectory() as scratch:
            text_model(model).save_pretrained(scratch)
            (folder / "exported").mkdir(exist_ok=True)
            shutil.copy(pathlib.Path(scratch) / "config.json", folder / "exported")
    else:
        model.save_pretrained(folder)
    return text_model(model).train()


def parameters(model):
    """The tensors that save_pretrained writes: a tied head is not among them."""
    return dict(model.named_parameters())


def train(model, tokens, forward=None):
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    steps, facts = [], {}
    for step, batch in enumerate(torch.tensor(tokens.astype(np.int64))):
        logits = forward(batch[:, :-1]) if forward else model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if step == 0:
            for name, p in parameters(model).items():
                # As they were before clipping, which divides by the norm plus 1e-6.
                clip = min(1.0, 1.0 / (norm.item() + 1e-6))
                facts[f"grad.step0.{name}"] = p.grad / clip
        optimizer.step()
        steps.append({"step": step + 1, "loss": loss.item(), "grad_norm": norm.item()})
    for name, p in parameters(model).items():
        facts[f"param.final.{name}"] = p.detach()
    return steps, {name: t.contiguous().numpy() for name, t in facts.items()}


def greedy(model, prompt):
    """The most likely tokens one by one, from the whole text each time, so that no cache is trusted."""
    model.eval()
    ids = torch.tensor(prompt.astype(np.int64))[None]
    with torch.no_grad():
        for _ in range(NEW_TOKENS):
            ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1:].argmax(-1)], dim=1)
    model.train()
    return ids[0].tolist()


def make(name):
    config, batch, seq = CASES[name]
    folder = FOLDER / name
    model = save_model(config, folder)
    tokens = np.random.default_rng(3).integers(0, model.config.vocab_size, (STEPS, batch, seq + 1)).astype(np.int32)
    text = greedy(model, tokens[0, 0, :PROMPT])
    with torch.no_grad():
        logits = model(torch.tensor(tokens[0, :LOGIT_ROWS, :LOGIT_TOKENS].astype(np.int64))).logits
    steps, facts = train(model, tokens)
    facts["logits.step0"] = logits.contiguous().numpy()
    save_file({"tokens": tokens, **facts}, folder / "oracle.safetensors")
    described = {"framework": f"torch {torch.__version__}, transformers {transformers.__version__}",
                 "optimizer": {"name": "AdamW", "lr": LR, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1,
                               "weight_decay_on": "every parameter", "clip_norm": 1.0},
                 "batch": batch, "seq": seq, "labels": "tokens shifted by one", "loss": "mean over tokens",
                 "greedy": {"prompt": text[:PROMPT], "new": text[PROMPT:]}, "steps": steps}
    (folder / "oracle.json").write_text(json.dumps(described, indent=1) + "\n")
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name:16} {size / 1024:5.0f} KiB  loss {steps[0]['loss']:.4f} to {steps[-1]['loss']:.4f}", flush=True)


def stray_of_bf16(name):
    folder = FOLDER / name
    path = folder / "oracle.json"
    facts = json.loads(path.read_text())
    config = AutoConfig.from_pretrained(folder)
    tokens = load_file(folder / "oracle.safetensors")["tokens"]
    strays = {"loss": [], "grad_norm": []}
    for run in range(BF16_RUNS):
        # The computation in bf16 over fp32 parameters, whose gradients and updates are fp32.
        masters, compute = (
            text_model(kind_of(config).from_pretrained(folder, attn_implementation="eager", dtype=dtype)).train()
            for dtype in (torch.float32, torch.bfloat16))
        torch.manual_seed(run)
        with torch.no_grad():
            for p in masters.parameters():
                p.mul_(1 + NUDGE * torch.randn_like(p))

        def forward(ids):
            copies = {key: p.bfloat16() for key, p in masters.named_parameters()}
            return torch.func.functional_call(compute, copies, (ids,)).logits.float()

        steps, _ = train(masters, tokens, forward)
        for got, want in zip(steps, facts["steps"], strict=True):
            for key, list_ in strays.items():
                list_.append(got[key] / want[key] - 1)
    rms = {f"{key}_rms": float(f"{np.sqrt(np.mean(np.square(list_))):.3g}") for key, list_ in strays.items()}
    facts["bf16"] = {"runs": BF16_RUNS, **rms}
    path.write_text(json.dumps(facts, indent=1) + "\n")
    for key, list_ in strays.items():
        ratios = np.abs(list_).reshape(BF16_RUNS, STEPS) / rms[f"{key}_rms"]
        worst_run = np.sqrt(np.square(ratios).mean(1)).max()
        print(f"{name:16} {key:9} strays by {rms[f'{key}_rms']:.2e}, the worst step by {ratios.max():.1f} times that, "
              f"the worst run by {worst_run:.1f} times", flush=True)


def main():
    torch.set_num_threads(1)
    names = sys.argv[1:]
    if "--bf16" in names:
        names.remove("--bf16")
        folders = sorted(f.parent.name for f in FOLDER.glob("*/oracle.json"))
        for name in names or [name for name in folders if "float8" not in name]:
            stray_of_bf16(name)
        return
    for name in names or CASES:
        make(name)


if __name__ == "__main__":
    main()
