#!/usr/bin/env python3
"""Trains a Llama in plain PyTorch like a Titan rank, to compare the two (gpu_beside.py).

Weights and optimizer are in fp32, sharded by FSDP2 over one rank; it computes in bf16, reduces gradients in fp32, clips them and uses
fused AdamW. With --compile each block and the loss are compiled with torch.compile, as in torchtitan. Tokens are random. Prints one
line of JSON: parameters, milliseconds per step of each interval, peak memory, loss.
"""

import argparse
import json
import resource
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def rotation(head_size, tokens, theta=500000.0):
    """Returns cos and sin, each [tokens, head_size / 2]."""
    angles = torch.outer(torch.arange(tokens), theta ** (-torch.arange(0, head_size, 2) / head_size))
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):  # x: [B, T, H, D]; rotates pairs of neighbours.
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).type_as(x)


class Block(nn.Module):
    def __init__(self, dim, heads, kv_heads, hidden):
        super().__init__()
        self.head_size = dim // heads
        self.attention_norm = nn.RMSNorm(dim, 1e-5)
        self.wq = nn.Linear(dim, heads * self.head_size, bias=False)
        self.wk = nn.Linear(dim, kv_heads * self.head_size, bias=False)
        self.wv = nn.Linear(dim, kv_heads * self.head_size, bias=False)
        self.wo = nn.Linear(heads * self.head_size, dim, bias=False)
        self.ffn_norm = nn.RMSNorm(dim, 1e-5)
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x, cos, sin):
        normed = self.attention_norm(x)
        q, k, v = (weight(normed).unflatten(-1, (-1, self.head_size)) for weight in (self.wq, self.wk, self.wv))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.size(1) != k.size(1))
        x = x + self.wo(seen.transpose(1, 2).flatten(2))
        normed = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(normed)) * self.w3(normed))


class Llama(nn.Module):
    def __init__(self, shape, tokens):
        super().__init__()
        dim, layers, heads, kv_heads, hidden, vocabulary, tied = shape
        self.tok_embeddings = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(Block(dim, heads, kv_heads, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(dim, 1e-5)
        self.output = nn.Linear(dim, vocabulary, bias=False)
        if tied:
            self.output.weight = self.tok_embeddings.weight
        for cos_or_sin, table in zip(("cos", "sin"), rotation(dim // heads, tokens)):
            self.register_buffer(cos_or_sin, table, persistent=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.output(self.norm(x))


def loss_of(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def build(options, device):
    torch.manual_seed(42)
    model = Llama(options.shape, options.seq).to(device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for index, layer in enumerate(model.layers):
        if options.compile:
            layer = torch.compile(layer, fullgraph=True, backend=options.backend)
            model.layers[index] = layer
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model, parameters


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", type=lambda text: [int(word) for word in text.split(",")], required=True,
                        help="dim,layers,heads,kv_heads,hidden,vocabulary,tied")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--intervals", type=int, default=6)
    parser.add_argument("--interval", type=int, default=5, help="steps")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--backend", default="inductor", help="of --compile; \"eager\" compiles nothing, to try this program")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--trace", help="also records the last interval here")
    options = parser.parse_args()
    device = torch.device(options.device, 0) if options.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    model, parameters = build(options, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    measure = torch.compile(loss_of, backend=options.backend) if options.compile else loss_of
    rows = torch.randint(options.shape[5], (options.batch, options.seq + 1)).to(device)

    def step():
        loss = measure(model(rows[:, :-1]), rows[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def run_interval():
        began = time.perf_counter()
        for _ in range(options.interval):
            loss = step()
        last = loss.item()  # Waits for the device.
        return (time.perf_counter() - began) * 1e3 / options.interval, last

    milliseconds = []
    for index in range(options.intervals):
        if options.trace and index + 1 == options.intervals:
            with torch.profiler.profile(acc_events=True) as profiler:
                took, last = run_interval()
            profiler.export_chrome_trace(options.trace)
        else:
            took, last = run_interval()
        milliseconds.append(took)
    if device.type == "cuda":
        active = torch.cuda.memory_stats()["active_bytes.all.peak"] / 2**30
        reserved = torch.cuda.max_memory_reserved() / 2**30
    else:
        active = reserved = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    dist.destroy_process_group()
    print(json.dumps({"parameters": parameters, "step_ms": milliseconds, "active_gib": active, "reserved_gib": reserved, "loss": last}))


if __name__ == "__main__":
    main()
