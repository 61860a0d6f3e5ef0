"""Change one member of config.json after the other and compare the loss of `tokamak eval` with that of transformers.

usage: compare_config_members.py PROGRAM [FAMILY ...]   (needs torch, transformers, numpy)
       compare_config_members.py --write FILE           (the members that the installed transformers knows, into FILE)

The members of a family are all that its configuration class and PretrainedConfig have or take, members with which other
families compute, and some that nobody knows. Each is set to null and to values unlike its default, in a tiny model whose
weights stay. A change must give transformers' loss (1e-5) or be refused; where transformers itself fails, anything goes. Run it
with transformers 5 and 4.57: where they differ in rotations, 5 counts.
"""
import inspect
import json
import logging
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM

LENGTH = 48
VOCAB = 67
GATED = dict(vocab_size=VOCAB, hidden_size=24, intermediate_size=28, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8, max_position_embeddings=64)
GEMMA = {**GATED, "pad_token_id": None}
FAMILIES = {  # model_type: configuration class, architecture, config.json
    "llama": ("LlamaConfig", "LlamaForCausalLM", GATED),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**GATED, "sliding_window": 7}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {**GATED, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {**GATED, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", GEMMA),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", {**GEMMA, "sliding_window": 7}),
    "gemma3_text": ("Gemma3TextConfig", "Gemma3ForCausalLM", {**GEMMA, "sliding_window": 7}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", dict(vocab_size=VOCAB, n_embd=24, n_layer=3, n_head=4, n_positions=64,
                                                   bos_token_id=1, eos_token_id=2)),
}
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)
LINEAR = dict(rope_type="linear", factor=3.0)
LONG = dict(rope_type="longrope", factor=4.0, original_max_position_embeddings=16, short_factor=[1, 1, 1, 1], long_factor=[1, 2, 3, 4])
SLIDES, FULL = "sliding_attention", "full_attention"
LAYERS = [[SLIDES, FULL, FULL], [FULL] * 3, [SLIDES] * 3, [FULL, SLIDES]]
FOREIGN = {  # members of other families, and of nobody
    "logit_scale": [0.25, 1.0], "logits_scaling": [8.0, 1.0], "embedding_multiplier": [12.0], "residual_multiplier": [0.22],
    "attention_multiplier": [0.0078], "scale_emb": [12], "scale_depth": [1.4], "dim_model_base": [256], "num_local_experts": [8, 0],
    "num_experts_per_tok": [2], "n_routed_experts": [4], "qk_layernorm": [True, False], "use_qk_norm": [True, False],
    "clip_qkv": [0.5, None], "alibi": [True, False], "use_parallel_residual": [True], "rotary_pct": [0.25], "no_rope_layers": [[0, 1, 1]],
    "attention_chunk_size": [4], "query_pre_attn_scalar": [3.0], "attn_logit_softcapping": [1.0, None],
    "final_logit_softcapping": [1.0, None], "sliding_window": [5, None], "use_sliding_window": [True, False], "max_window_layers": [2, 0],
    "layer_types": LAYERS, "sliding_window_pattern": [2], "_sliding_window_pattern": [2], "hidden_act": ["gelu", "gelu_pytorch_tanh", "relu"],
    "hidden_activation": ["gelu", "gelu_pytorch_tanh", "silu"], "activation_function": ["relu"], "attention_bias": [True], "mlp_bias": [True],
    "partial_rotary_factor": [0.5, 1.0], "original_max_position_embeddings": [16], "rope_theta": [300.0], "rope_local_base_freq": [30.0],
    "use_mrope": [True, False], "is_causal": [True, False], "use_bidirectional_attention": [True, False], "is_decoder": [True],
    "per_layer_config": [{"1": {"sliding_window": 3}}, {"1": {"rms_norm_eps": 0.5}}, {}], "pruned_heads": [{"1": [0, 2]}, {}],
    "quantization_config": [{"quant_method": "fp8"}, {"quant_method": "bitsandbytes", "load_in_8bit": True}],
    "auto_map": [{"AutoConfig": "configuration_x.XConfig"}], "_name_or_path": ["a/b"], "unsloth_version": ["2025.1"], "foo": [3, "x", {"a": [1]}],
    "hidden_size": [24, 32], "num_attention_heads": [4, 2], "num_hidden_layers": [3, 2], "max_position_embeddings": [64, 40], "n_embd": [32],
    "torch_dtype": ["float32"], "dtype": ["float32"], "attn_implementation": ["eager"], "layer_norm_epsilon": [0.5], "rms_norm_eps": [0.5],
}
ROPES = [dict(rope_scaling={}), dict(rope_scaling=LINEAR), dict(rope_scaling=YARN), dict(rope_scaling=LONG),
         dict(rope_scaling=dict(type="linear", factor=3.0)), dict(rope_scaling=dict(type="yarn", **LINEAR)),
         dict(rope_scaling=dict(type="linear", **LINEAR)), dict(rope_scaling=dict(factor=3.0)),
         dict(rope_scaling=dict(rope_theta=300.0, **LINEAR)), dict(rope_theta=300.0, rope_scaling=dict(rope_theta=300.0, **LINEAR)),
         dict(rope_theta=500.0, rope_scaling=dict(rope_theta=300.0, **LINEAR)),
         dict(rope_scaling=dict(rope_type="default", factor=4.0)), dict(rope_scaling=dict(finetuned=True, **YARN)),
         dict(rope_scaling=dict(original_max_position_embeddings=16, **LINEAR)),
         dict(rope_scaling=dict(rope_type="dynamic", factor=3.0), max_position_embeddings=24),
         dict(rope_scaling=dict(rope_type="dynamic", factor=3.0, original_max_position_embeddings=16)),
         dict(rope_scaling=dict(rope_type="dynamic", factor=3.0, original_max_position_embeddings=16), max_position_embeddings=24),
         dict(rope_scaling=dict(rope_type="yarn", factor=4.0), original_max_position_embeddings=16),
         dict(rope_scaling=dict(rope_type="yarn", original_max_position_embeddings=16)),
         dict(rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, attention_factor=0.7)),
         dict(rope_scaling=dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0)),
         dict(rope_scaling=dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0), original_max_position_embeddings=8),
         dict(rope_scaling=dict(partial_rotary_factor=0.5, **LINEAR)),
         dict(rope_parameters={}), dict(rope_parameters={}, rope_scaling=YARN), dict(rope_parameters=None, rope_scaling=YARN),
         dict(rope_parameters=dict(rope_type="default", rope_theta=300.0)),
         dict(rope_parameters=dict(rope_type="default", rope_theta=300.0), rope_theta=300.0),
         dict(rope_parameters=dict(rope_type="default", rope_theta=300.0), rope_theta=500.0),
         dict(rope_parameters=dict(rope_type="default"), rope_theta=500.0),
         dict(rope_parameters=dict(rope_theta=300.0)), dict(rope_parameters=dict(rope_theta=300.0, **YARN)),
         dict(rope_parameters=dict(rope_type="default", rope_theta=300.0), rope_scaling=YARN, rope_theta=300.0),
         dict(rope_parameters=dict(rope_type="default", rope_theta=300.0), rope_scaling=YARN, rope_theta=500.0),
         dict(rope_parameters=dict(rope_type="default", rope_theta=300.0), rope_scaling=YARN),
         dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0), rope_scaling=YARN),
         dict(rope_parameters=dict(rope_theta=300.0, **YARN), rope_scaling=YARN, rope_theta=300.0),
         dict(rope_parameters=dict(rope_theta=300.0, **YARN), rope_scaling=dict(rope_theta=300.0, **YARN), rope_theta=300.0),
         dict(rope_parameters=dict(rope_theta=300.0, **LINEAR), rope_scaling=YARN, rope_theta=300.0),
         dict(rope_parameters={FULL: dict(rope_theta=300.0, **YARN), SLIDES: dict(rope_type="default", rope_theta=30.0)}),
         dict(rope_parameters={FULL: dict(rope_theta=300.0, **YARN), SLIDES: dict(rope_type="default", rope_theta=30.0)}, rope_theta=300.0,
              rope_local_base_freq=30.0, rope_scaling=YARN),
         dict(rope_parameters={FULL: dict(rope_theta=300.0, rope_type="default"), SLIDES: dict(rope_type="default", rope_theta=30.0)},
              rope_theta=300.0, rope_local_base_freq=30.0, rope_scaling=YARN),
         dict(rope_parameters={FULL: dict(rope_theta=300.0, rope_type="default"), SLIDES: dict(rope_type="default", rope_theta=30.0)}, rope_theta=500.0),
         dict(rope_parameters={FULL: dict(rope_theta=300.0, rope_type="default"), SLIDES: dict(rope_type="default", rope_theta=30.0)},
              rope_local_base_freq=50.0),
         dict(rope_parameters={FULL: dict(rope_theta=300.0, rope_type="default"), SLIDES: None}),
         dict(rope_parameters={FULL: dict(rope_theta=300.0, rope_type="default")}),
         dict(rope_parameters={FULL: dict(rope_theta=300.0, **YARN), SLIDES: dict(rope_theta=30.0, **LINEAR)}),
         dict(rope_theta=300.0, rope_local_base_freq=30.0, rope_scaling=LINEAR)]


def members(family):
    """All names that the installed transformers has or takes for a family, with its defaults."""
    kind = getattr(transformers, FAMILIES[family][0])
    found = dict(kind().to_dict())
    for cls in kind.__mro__[:-1]:
        for method in ("__init__", "__post_init__", "convert_rope_params_to_dict"):
            function = vars(cls).get(method)
            if function is None or not cls.__module__.startswith("transformers"):
                continue
            function = inspect.unwrap(function)
            for name, parameter in inspect.signature(function).parameters.items():
                if parameter.kind == parameter.KEYWORD_ONLY or parameter.default is not parameter.empty:
                    found.setdefault(name, None if parameter.default is parameter.empty else parameter.default)
            source = inspect.getsource(function) if pathlib.Path(function.__code__.co_filename).exists() else ""
            for name in re.findall(r'kwargs\.(?:pop|get)\(\s*"(\w+)"', source):
                found.setdefault(name, None)
        for name in getattr(cls, "attribute_map", {}):
            found.setdefault(name, None)
    if family == "gpt2":  # PretrainedConfig names them for others
        found = {name: value for name, value in found.items() if "rope" not in name and "rotary" not in name}
    generation = transformers.GenerationConfig().to_dict()
    found.update({name: generation[name] for name in generation if name not in found and name[0] != "_"})
    return found


def unlike(default):
    """Values to try for a member."""
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, int):
        return [default + 1, 0]
    if isinstance(default, float):
        return [0.5 * default + 0.25, 0.0]
    if isinstance(default, str):
        return ["something"]
    if isinstance(default, (list, dict)):
        return [[], {}, {"a": 1}]
    return [True, 3, "something"]


def changes(family):
    known = members(family)
    listed = []
    for name in sorted({*known, *FOREIGN}):
        if name in ("model_type", "architectures"):
            continue
        values = [None, *(unlike(known[name]) if name in known and "dtype" not in name else []), *FOREIGN.get(name, [])]
        listed += [{name: value} for i, value in enumerate(values) if json.dumps(value) not in map(json.dumps, values[:i])]
    return listed + ROPES


def pytorch_loss(folder, tokens):
    try:
        model, report = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", output_loading_info=True)
        if report["missing_keys"] or report["mismatched_keys"] or report["unexpected_keys"]:
            return "other tensors"
        ids = torch.tensor(tokens.astype(np.int64))[None]
        with torch.no_grad():
            logits = model.float().eval()(ids[:, :-1], use_cache=False, return_dict=True).logits
        return torch.nn.functional.cross_entropy(logits[0], ids[0, 1:]).item()
    except Exception as error:  # any failure is a refusal
        return f"{type(error).__name__}: {error}".split("\n")[0][:90]


def our_loss(program, folder, file):
    words = ["eval", folder, file, "--seq-len", str(LENGTH), "--json", "--device", "cpu", "--training.threads=1"]
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True)
    said = done.stderr.strip().replace(f"{folder}/", "")
    if done.returncode:
        return said.split("\n")[-1], ""
    return json.loads(done.stdout)["loss"], said


def differs_from_5(change):
    """Whether the installed transformers is older and reads these rotations in another way."""
    scaling = change.get("rope_scaling") or {}
    return transformers.__version__ < "5" and ("rope_parameters" in change or "original_max_position_embeddings" in change or
                                               "rope_theta" in scaling or scaling.get("rope_type") == "longrope")


def verdict(theirs, ours, said, change):
    """Returns whether all is well, and a word for the table."""
    if isinstance(ours, str):
        named = any(f'"{name}"' in ours for name in change) or "rope" in str(change)
        return (named or isinstance(theirs, str)), "refused"
    if isinstance(theirs, str):
        return True, "transformers fails"
    if abs(ours - theirs) > 1e-5:
        return differs_from_5(change), "as transformers 5" if differs_from_5(change) else "ANOTHER LOSS"
    return True, "equal, with a line" if "ignored" in said else "equal"


def compare(program, family):
    kind, architecture, sizes = FAMILIES[family]
    base = {"architectures": [architecture], "model_type": family, **sizes}
    good = True
    with tempfile.TemporaryDirectory() as root:
        folder = pathlib.Path(root)
        torch.manual_seed(7)
        model = AutoModelForCausalLM.from_config(getattr(transformers, kind)(**sizes))
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(p + 0.1 * torch.randn_like(p) if p.dim() == 1 else 6 * p)
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink()
        tokens = np.random.default_rng(3).integers(3, VOCAB, LENGTH + 1).astype(np.uint16)
        tokens.tofile(folder / "tokens.u16")
        start = None
        for change in [{}, *changes(family)]:
            (folder / "config.json").write_text(json.dumps({**base, **change}))
            theirs = pytorch_loss(folder, tokens)
            ours, said = our_loss(program, folder, folder / "tokens.u16")
            start = theirs if start is None else start
            fine, word = verdict(theirs, ours, said, change)
            good &= fine
            moved = "" if isinstance(theirs, str) else "moves" if abs(theirs - start) > 1e-6 else "stays"
            print(f"{'ok ' if fine else 'BAD'} {family:11} {word:18} {moved:5} {json.dumps(change)[:150]}"
                  f"\t{theirs if isinstance(theirs, str) else f'{theirs:.6f}'}"
                  f"\t{ours if isinstance(ours, str) else f'{ours:.6f}'}\t{said}", flush=True)
    return good


def write(file):
    path = pathlib.Path(file)
    table = json.loads(path.read_text()) if path.exists() else {}
    version = transformers.__version__
    for family in FAMILIES:
        defaults = json.loads(json.dumps(members(family), default=str))
        table.setdefault(family, {})[version] = dict(sorted(defaults.items()))
    rows = [f' "{family}": {{\n' + ",\n".join(f'  "{v}": {json.dumps(row)}' for v, row in sorted(of.items())) + "\n }"
            for family, of in sorted(table.items())]
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n")


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    if sys.argv[1] == "--write":
        return write(sys.argv[2])
    results = [compare(str(pathlib.Path(sys.argv[1]).resolve()), family) for family in sys.argv[2:] or FAMILIES]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
