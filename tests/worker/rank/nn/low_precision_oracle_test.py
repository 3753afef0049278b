"""Compares eight-bit layers with torchao's own: results, gradients and five steps of training on random shapes.

Dense layers are compared with Float8Linear (emulated) and mx_mm (emulated), experts' rows with torchao's grouped MXFP8 (emulated)
and, for float8, with plain products of operands that torchao's functions quantize (its own products of experts are Triton's). In
fp32 the two differ only by the order of sums, which shows that both multiply the same eight-bit numbers: a single other bit would
change a result by a hundredth. In bf16 results differ by one rounding.
"""

import dataclasses
import logging
import os
import pathlib
import random
import subprocess
import sys
import warnings

import torch

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
from torchao.float8.config import Float8LinearConfig  # noqa: E402
from torchao.float8.float8_linear import matmul_with_hp_or_float8_args  # noqa: E402
from torchao.float8.float8_training_tensor import LinearMMConfig, ScaledMMConfig  # noqa: E402
from torchao.float8.config import ScalingGranularity  # noqa: E402
from torchao.float8.float8_utils import tensor_to_scale, to_fp8_saturated  # noqa: E402
from torchao.prototype.moe_training.utils import torch_to_float8_per_group_colwise  # noqa: E402
from torchao.prototype.mx_formats.config import (  # noqa: E402
    MXFP8Dim0CastKernelChoice, MXFP8Dim1CastKernelChoice, ScaleCalculationMode)
from torchao.prototype.mx_formats.mx_linear import mx_mm  # noqa: E402
from torchao.quantization.quantize_.common.kernel_preference import KernelPreference  # noqa: E402

PROGRAM = pathlib.Path(os.environ["TITAN_BIN"]).parent / "tests" / "low_precision_layer"
STEPS, RATE = 5, 2e-4
E4M3 = torch.float8_e4m3fn
EMULATED = LinearMMConfig(*[ScaledMMConfig(emulate=True)] * 3)
# Relative to the largest number: bounds of results and gradients; and of the weights' movement over the steps, where a
# number between two eight-bit values may round to the other one.
BOUNDS = {torch.float32: (2e-6, 2e-3), torch.bfloat16: (1 / 256, 3e-2)}


def float8_layer(recipe):
    config = Float8LinearConfig.from_recipe_name(recipe)
    config = dataclasses.replace(config, emulate=True)
    return lambda x, w, rows: matmul_with_hp_or_float8_args.apply(x, w.t(), EMULATED, config)


def mx_layer(rounding):
    return lambda x, w, rows: mx_mm.apply(x, w, E4M3, E4M3, E4M3, 32, KernelPreference.EMULATED,
                                          MXFP8Dim0CastKernelChoice.TORCH, MXFP8Dim1CastKernelChoice.TORCH,
                                          ScaleCalculationMode(rounding), False)


def along(x, dim):
    """Returns x in fp32 as torchao quantizes it, with a power of two for each row or column."""
    scale = tensor_to_scale(x, E4M3, scaling_granularity=ScalingGranularity.AXISWISE, axiswise_dim=dim,
                            round_scales_to_power_of_2=True)
    return to_fp8_saturated(x.float() * scale, E4M3).float() / scale


def group_columns(x, rows):
    values, scales = torch_to_float8_per_group_colwise(x, torch.tensor(rows).cumsum(0), E4M3, True)
    scales = scales.view(len(rows), -1).repeat_interleave(torch.tensor(rows), 0)
    return values.float() / scales


class Float8Experts(torch.autograd.Function):
    """Computes plain products, one expert after the other, of operands that torchao's functions quantize."""

    @staticmethod
    def forward(ctx, x, w, rows):
        ctx.save_for_backward(x, w)
        ctx.rows = rows
        parts = zip(along(x, -1).split(rows), along(w, -1))
        return torch.cat([part @ matrix.t() for part, matrix in parts]).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        dx = torch.cat([part @ matrix for part, matrix in zip(along(dy, -1).split(ctx.rows), along(w, -2))])
        pairs = zip(group_columns(dy, ctx.rows).split(ctx.rows), group_columns(x, ctx.rows).split(ctx.rows))
        return dx.to(x.dtype), torch.stack([left.t() @ right for left, right in pairs]).to(x.dtype), None


def mx_experts(rounding):
    layer = mx_layer(rounding)  # Groups of whole blocks: each expert is a separate layer.

    def run(x, w, rows):
        return torch.cat([layer(part, matrix, None) for part, matrix in zip(x.split(rows), w)])

    return run


def theirs(layer, x, w, t, rows):
    first = None
    for _ in range(STEPS):
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        y = layer(x, w, rows)
        dx, dw = torch.autograd.grad(y, (x, w), y.detach() - t)
        first = first or (y.detach(), dx, dw)
        w = w.detach() - RATE * dw
    return [*first, w]


def ours(recipe, rounding, x, w, t, rows):
    kind = {torch.float32: "fp32", torch.bfloat16: "bf16"}[x.dtype]
    count = ",".join(map(str, rows)) if rows else str(x.shape[0])
    arguments = [recipe, rounding, kind, count, x.shape[1], w.shape[-2], STEPS, RATE]
    raw = b"".join(part.contiguous().view(torch.uint8).numpy().tobytes() for part in (x, w, t))
    out = subprocess.run([PROGRAM, *map(str, arguments)], input=raw, check=True, capture_output=True).stdout
    flat = torch.frombuffer(bytearray(out), dtype=x.dtype)
    shapes = [t.shape, x.shape, w.shape, w.shape]
    return [part.view(shape) for part, shape in zip(flat.split([s.numel() for s in shapes]), shapes)]


def relative(found, want, against):
    return ((found.double() - want.double()).abs().max() / against.double().abs().max()).item()


def check(name, recipe, rounding, layer, dtype, shape, rows):
    m, k, n = shape
    x, t = torch.randn(m, k).to(dtype), torch.randn(m, n).to(dtype)
    w = (torch.randn(*([len(rows)] if rows else []), n, k) / k**0.5).to(dtype)
    found, want = ours(recipe, rounding, x, w, t, rows), theirs(layer, x, w, t, rows)
    first, last = BOUNDS[dtype]
    errors = [relative(a, b, b) for a, b in zip(found[:3], want[:3])]
    drift = ((found[3].double() - want[3].double()).norm() / (want[3].double() - w.double()).norm()).item()
    line = f"{name:28} {str(dtype)[6:]:9} {str(shape):16} y {errors[0]:.1e} dx {errors[1]:.1e} dw {errors[2]:.1e} steps {drift:.1e}"
    print(line)
    return [] if max(errors) <= first and drift <= last else [line]


def cases():
    for recipe in ("tensorwise", "rowwise", "rowwise_with_gw_hp"):
        yield recipe, recipe, "floor", float8_layer(recipe), 16, None
    for rounding in ("floor", "rceil", "ceil", "even"):
        yield f"mxfp8 {rounding}", "mxfp8", rounding, mx_layer(rounding), 32, None
    yield "experts rowwise", "rowwise", "floor", lambda x, w, rows: Float8Experts.apply(x, w, rows), 16, [48, 16, 80]
    yield "experts mxfp8 rceil", "mxfp8", "rceil", mx_experts("rceil"), 32, [32, 64, 96]


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else random.SystemRandom().randrange(1 << 31)
    print("seed", seed, flush=True)
    torch.manual_seed(seed)
    draw = random.Random(seed)
    bad = []
    for name, recipe, rounding, layer, multiple, rows in cases():
        for dtype in BOUNDS:
            size = lambda: multiple * draw.randint(1, 6)  # noqa: E731
            shape = (sum(rows) if rows else size(), size(), size())
            bad += check(name, recipe, rounding, layer, dtype, shape, rows)
    if bad:
        sys.exit("\n".join(["beyond the bounds:", *bad]))


main()
