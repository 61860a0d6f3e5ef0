"""The peer of `tokamak bench model`: the same Llama in PyTorch, AdamW, random tokens.

    python3 bench/model_peer.py --dtype bfloat16 --steps 5
    python3 bench/model_peer.py --device cuda --compile --layers 16 --dim 2048 --heads 32 --kv-heads 8 \
        --mlp 8192 --vocab 128256 --batch 4 --seq-len 8192 --dtype bfloat16

bfloat16 runs under autocast over fp32 weights, as Tokamak keeps fp32 masters.
"""

import argparse
import os
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight


class Block(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = o.heads, o.kv_heads, o.dim // o.heads
        self.norm1, self.norm2 = Norm(o.dim), Norm(o.dim)
        self.q, self.o = nn.Linear(o.dim, o.dim, bias=False), nn.Linear(o.dim, o.dim, bias=False)
        self.k, self.v = (nn.Linear(o.dim, self.kv_heads * self.head_dim, bias=False) for _ in range(2))
        self.gate, self.up = nn.Linear(o.dim, o.mlp, bias=False), nn.Linear(o.dim, o.mlp, bias=False)
        self.down = nn.Linear(o.mlp, o.dim, bias=False)

    def attention(self, q, k, v, mask):
        if hasattr(F, "scaled_dot_product_attention"):
            grouped = {"enable_gqa": True} if self.heads != self.kv_heads else {}
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, **grouped)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        scores = q @ k.transpose(-1, -2) / self.head_dim**0.5
        return torch.softmax(scores.masked_fill(mask, float("-inf")), -1) @ v

    def forward(self, x, cos, sin, mask):
        batch, seq, dim = x.shape
        h = self.norm1(x)
        q, k, v = (p(h).view(batch, seq, -1, self.head_dim).transpose(1, 2) for p in (self.q, self.k, self.v))
        o = self.attention(rotate(q, cos, sin), rotate(k, cos, sin), v, mask)
        x = x + self.o(o.transpose(1, 2).reshape(batch, seq, dim))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.compute = getattr(torch, o.dtype)
        self.embed = nn.Embedding(o.vocab, o.dim)
        self.blocks = nn.ModuleList(Block(o) for _ in range(o.layers))
        self.norm = Norm(o.dim)
        self.head = nn.Linear(o.dim, o.vocab, bias=False)
        size = o.dim // o.heads
        angles = torch.outer(torch.arange(o.seq_len).float(), 10000.0 ** (-torch.arange(0, size, 2) / size))
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.mask = None
        if not hasattr(F, "scaled_dot_product_attention"):
            self.mask = torch.ones(o.seq_len, o.seq_len, dtype=torch.bool).triu(1)

    def forward(self, tokens):
        x = self.embed(tokens).to(self.compute)
        for block in self.blocks:
            x = block(x, self.cos.to(x.dtype), self.sin.to(x.dtype), self.mask)
        return self.head(self.norm(x))


def parse():
    p = argparse.ArgumentParser()
    for name, value in [("layers", 12), ("dim", 768), ("heads", 12), ("kv-heads", 0), ("mlp", 2048), ("vocab", 16384),
                        ("batch", 4), ("seq-len", 512), ("steps", 5), ("warmup", 1)]:
        p.add_argument(f"--{name}", type=int, default=value)
    p.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    p.add_argument("--device", default="cpu")
    p.add_argument("--compile", action="store_true")
    o = p.parse_args()
    o.kv_heads = o.kv_heads or o.heads
    return o


def main():
    o = parse()
    on_gpu = o.device == "cuda"
    torch.set_num_threads(os.cpu_count())
    torch.manual_seed(0)
    with torch.device(o.device):
        model = Llama(o)
        tokens = torch.randint(0, o.vocab, (o.batch, o.seq_len + 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, **({"fused": True} if on_gpu else {}))

    def loss_of(inputs, labels):
        with torch.autocast(o.device, dtype=torch.bfloat16, enabled=o.dtype == "bfloat16"):
            logits = model(inputs)
        return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())

    if o.compile:
        loss_of = torch.compile(loss_of)
    seconds = []
    for _ in range(o.warmup + o.steps):
        start = time.perf_counter()
        loss_of(tokens[:, :-1], tokens[:, 1:]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[o.warmup:])
    memory = f", {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if on_gpu else ""
    where = torch.cuda.get_device_name() if on_gpu else f"{torch.get_num_threads()} threads"
    print(f"torch {torch.__version__} {o.dtype} {where}{' compiled' if o.compile else ''}: "
          f"{median:.3f} s, {o.batch * o.seq_len / median:.1f} tok/s{memory}")


main()
