"""Times LibTorch's own operations at rows_bench.cc's shapes and under its names: milliseconds of one thread's processor time, the
lowest of several rounds (compare with the line "least" of rows_bench.cc).

Run by hand: .deps/venv/bin/python tests/bench/kernels/torch_rows.py
"""

import time

import torch
import torch.nn.functional as F

ROUNDS = 5
torch.set_num_threads(1)
torch.manual_seed(1)


def least(run):
    run()
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return 1e3 * best


def show(name, run):
    print(f"{name:45} {least(run):9.3f} ms", flush=True)


def bf16(*shape, grad=False):
    return torch.randn(*shape).bfloat16().requires_grad_(grad)


def both_passes(name, of, forward, *inputs):
    """Times the passes of forward(*inputs), with one gradient for each input."""
    with torch.no_grad():
        show(f"{name}_forward/{of}", lambda: forward(*inputs))
    y = forward(*inputs)
    dy = torch.randn_like(y)
    show(f"{name}_backward/{of}", lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True))


def norm(rows, dim):
    both_passes("rms_norm", f"{rows}x{dim}", lambda x, w: F.rms_norm(x, (dim,), w, 1e-5), bf16(rows, dim, grad=True), bf16(dim, grad=True))


def rope(batches, tokens, heads, dim, halves):
    x = bf16(batches, tokens, heads, dim)
    angle = torch.randn(1, tokens, 1, dim // 2)

    def neighbours():
        z = torch.view_as_complex(x.float().reshape(batches, tokens, heads, dim // 2, 2))
        return torch.view_as_real(z * turn).flatten(3).bfloat16()

    def turned_halves():
        first, second = x.float().chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).bfloat16()

    turn, cos, sin = torch.polar(torch.ones_like(angle), angle), angle.cos(), angle.sin()
    of = f"rope/{batches}x{tokens}x{heads}x{dim}"
    show(of + ("/halves" if halves else "/neighbours"), turned_halves if halves else neighbours)


def swiglu(rows, width):
    both_passes("swiglu", f"{rows}x{width}", lambda a, b: F.silu(a) * b, bf16(rows, width, grad=True), bf16(rows, width, grad=True))


def clamped(rows, width, limit):
    def forward(x):
        gate, linear = x[:, ::2].clamp(max=limit), x[:, 1::2].clamp(-limit, limit)
        return gate * torch.sigmoid(1.702 * gate) * (linear + 1)

    x = bf16(rows, 2 * width, grad=True)
    with torch.no_grad():
        show(f"swiglu_forward/{rows}x{width}/clamped", lambda: forward(x))
    y = forward(x)
    dy = torch.randn_like(y)
    show(f"swiglu_backward/{rows}x{width}/clamped", lambda: torch.autograd.grad(y, x, dy, retain_graph=True))


def cross_entropy(tokens, vocabulary):
    logits, labels = bf16(tokens, vocabulary, grad=True), torch.randint(vocabulary, (tokens,))

    def run():
        loss = F.cross_entropy(logits.float(), labels, reduction="sum")
        return torch.autograd.grad(loss, logits)

    show(f"cross_entropy/{tokens}x{vocabulary}", run)


def flat(count):
    value = torch.randn(count, requires_grad=True)
    value.grad = torch.randn(count)
    optimizer = torch.optim.AdamW([value], lr=1e-4, weight_decay=0.1, fused=True)
    show(f"adamw/{count}", optimizer.step)
    x, narrow = torch.randn(count), torch.randn(count).bfloat16()
    show(f"squared_norm/{count}", lambda: torch.linalg.vector_norm(x))
    show(f"fp32_to_bf16/{count}", lambda: narrow.copy_(x))
    show(f"bf16_to_fp32/{count}", lambda: x.copy_(narrow))


def experts(tokens, count, top_k, dim):
    logits = torch.randn(tokens, count)

    def route():
        scores = torch.sigmoid(logits)
        chosen = scores.topk(top_k, -1, sorted=False)[1]
        picked = scores.gather(1, chosen)
        flat_choice = chosen.reshape(-1)
        torch.zeros(count, dtype=torch.long).scatter_add_(0, flat_choice, torch.ones_like(flat_choice))
        return picked / (picked.sum(-1, keepdim=True) + 1e-20)

    show(f"router/{tokens}x{count}x{top_k}", route)
    rows, weights, dy = bf16(tokens * top_k, dim), torch.rand(tokens, top_k), bf16(tokens, dim)
    places = torch.randperm(tokens * top_k).view(tokens, top_k)

    def combine():
        total = None
        for choice in range(top_k):
            term = rows.index_select(0, places[:, choice]).float().mul_(weights[:, choice : choice + 1])
            total = term if total is None else total.add_(term)
        return total.bfloat16()

    def combine_backward():
        wide, drows, dweights = dy.float(), torch.empty_like(rows), torch.empty_like(weights)
        for choice in range(top_k):
            place = places[:, choice]
            drows.index_copy_(0, place, (wide * weights[:, choice : choice + 1]).bfloat16())
            dweights[:, choice] = (wide * rows.index_select(0, place)).sum(1)

    show(f"combine/{tokens}x{top_k}x{dim}", combine)
    show(f"combine_backward/{tokens}x{top_k}x{dim}", combine_backward)


def gemm(rows, columns, depth):
    x, w, dy = bf16(rows, depth), bf16(columns, depth), bf16(rows, columns)
    y, dw = bf16(rows, columns), bf16(columns, depth)
    show(f"gemm/{rows}x{columns}x{depth}", lambda: torch.mm(x, w.t(), out=y))
    show(f"weight_gradient/{rows}x{columns}x{depth}", lambda: torch.mm(dy.t(), x, out=dw))


norm(16384, 256)
norm(4096, 1024)
rope(8, 2048, 16, 16, halves=False)
rope(4, 1024, 16, 64, halves=True)
swiglu(16384, 768)
swiglu(4096, 2816)
clamped(4096, 768, 7.0)
cross_entropy(16384, 2048)
cross_entropy(1024, 16032)
flat(24_500_000)
experts(16384, 64, 6, 256)
gemm(4096, 768, 256)
gemm(1024, 2816, 1024)
gemm(32, 768, 256)  # The shape of one expert.
