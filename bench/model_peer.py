"""The peer of `tokamak bench model`: the same Llama in eager PyTorch on the CPU, AdamW, random tokens.

    python3 bench/model_peer.py [float32|bfloat16] [steps]

bfloat16 runs under autocast over fp32 weights, as Tokamak keeps fp32 masters.
"""

import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

LAYERS, DIM, HEADS, MLP, VOCAB, BATCH, SEQ = 12, 768, 12, 2048, 16384, 4, 512


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(DIM))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = Norm(), Norm()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(DIM, MLP, bias=False), nn.Linear(DIM, MLP, bias=False)
        self.down = nn.Linear(MLP, DIM, bias=False)

    def attention(self, q, k, v, mask):
        if hasattr(F, "scaled_dot_product_attention"):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = q @ k.transpose(-1, -2) / (DIM // HEADS) ** 0.5
        return torch.softmax(scores.masked_fill(mask, float("-inf")), -1) @ v

    def forward(self, x, cos, sin, mask):
        h = self.norm1(x)
        q, k, v = (p(h).view(BATCH, SEQ, HEADS, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        o = self.attention(rotate(q, cos, sin), rotate(k, cos, sin), v, mask)
        x = x + self.o(o.transpose(1, 2).reshape(BATCH, SEQ, DIM))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = Norm()
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        angles = torch.outer(torch.arange(SEQ).float(), 10000.0 ** (-torch.arange(0, DIM // HEADS, 2) / (DIM // HEADS)))
        angles = torch.cat((angles, angles), -1)
        self.cos, self.sin = angles.cos(), angles.sin()
        self.mask = torch.ones(SEQ, SEQ, dtype=torch.bool).triu(1)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos.to(x.dtype), self.sin.to(x.dtype), self.mask)
        return self.head(self.norm(x))


def main():
    dtype = getattr(torch, sys.argv[1] if len(sys.argv) > 1 else "float32")
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    torch.set_num_threads(os.cpu_count())
    torch.manual_seed(0)
    model = Llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)
    tokens = torch.randint(0, VOCAB, (BATCH, SEQ + 1))
    seconds = []
    for _ in range(steps + 1):
        start = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[1:])
    print(f"torch {torch.__version__} {dtype} {torch.get_num_threads()} threads: {median:.3f} s, {BATCH * SEQ / median:.1f} tok/s")


main()
