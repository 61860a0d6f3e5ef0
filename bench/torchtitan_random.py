"""torchtitan's Llama 3 recipes, untied and on random tokens, for torchtitan_peer.py; its model and parallel code is used as is.

Recipes in Python (run at cb7bf09ab of 2026-05-16): `--module torchtitan_random --config llama3_8b`.
Recipes in TOML (run at v0.2.2): `--experimental.custom_import=torchtitan_random` and a `--model.flavor` of FLAVORS.
"""

import importlib.util
import os
from dataclasses import dataclass

import torch
from torch.utils.data import IterableDataset
from torchtitan.components.dataloader import ParallelAwareDataloader

FLAVORS = ("debugmodel", "1B", "3B", "8B")


class RandomTokens(IterableDataset):
    def __init__(self, vocab, seq_len, seed):
        self.vocab, self.seq_len, self.seed = vocab, seq_len, seed

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            tokens = torch.randint(0, self.vocab, (self.seq_len + 1,), generator=generator)
            yield {"input": tokens[:-1]}, tokens[1:]


def python_recipe(flavor):
    from torchtitan.components.loss import CrossEntropyLoss
    from torchtitan.models.llama3 import model_registry
    from torchtitan.models.llama3.config_registry import llama3_8b

    class RandomLoader(ParallelAwareDataloader):
        @dataclass(kw_only=True, slots=True)
        class Config(ParallelAwareDataloader.Config):
            vocab: int = 0

        def __init__(self, config, *, dp_world_size, dp_rank, seq_len, local_batch_size, **_):
            tokens = RandomTokens(config.vocab, seq_len, dp_rank)
            super().__init__(tokens, dp_rank, dp_world_size, batch_size=local_batch_size)

    config, spec = llama3_8b(), model_registry(flavor)
    if spec.model.enable_weight_tying:
        spec.model.enable_weight_tying = False
        spec.model.tok_embeddings = type(spec.model.tok_embeddings)(
            num_embeddings=spec.model.vocab_size, embedding_dim=spec.model.dim,
            param_init=config.model_spec.model.tok_embeddings.param_init)
    if not os.environ.get("TORCHTITAN_RECIPE_LOSS"):
        config.loss = CrossEntropyLoss.Config()
    config.model_spec = spec
    config.hf_assets_path = "tests/assets/tokenizer"
    config.dataloader = RandomLoader.Config(vocab=spec.model.vocab_size)
    config.profiler.enable_profiling = False
    config.metrics.enable_tensorboard = False
    return config


def toml_recipes():
    from torchtitan.models.llama3 import TransformerModelArgs, get_train_spec
    from torchtitan.protocols.train_spec import register_train_spec

    spec = get_train_spec()
    shape = {"vocab_size": 128256, "multiple_of": 1024, "rope_theta": 500000}
    spec.model_args["1B"] = TransformerModelArgs(
        dim=2048, n_layers=16, n_heads=32, n_kv_heads=8, ffn_dim_multiplier=1.5, **shape)
    spec.model_args["3B"] = TransformerModelArgs(
        dim=3072, n_layers=28, n_heads=24, n_kv_heads=8, ffn_dim_multiplier=1.0, **shape)

    def loader(dp_world_size, dp_rank, tokenizer, job_config):
        training = job_config.training
        tokens = RandomTokens(spec.model_args[job_config.model.flavor].vocab_size, training.seq_len, dp_rank)
        return ParallelAwareDataloader(tokens, dp_rank, dp_world_size, batch_size=training.local_batch_size)

    spec.build_dataloader_fn = loader
    register_train_spec("llama3", spec)


if importlib.util.find_spec("torchtitan.trainer"):
    for name in FLAVORS:
        globals()[f"llama3_{name.lower()}"] = lambda name=name: python_recipe(name)
else:
    toml_recipes()
