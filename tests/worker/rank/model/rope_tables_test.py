"""Tests that the RoPE tables equal torchtitan's bit for bit: a difference in the last bit would change every logit."""

import logging
import os
import pathlib
import subprocess
import sys

import torch

logging.disable(logging.CRITICAL)
from torchtitan.models.deepseek_v3 import deepseekv3_args  # noqa: E402
from torchtitan.models.deepseek_v3.model import model as deepseek  # noqa: E402
from torchtitan.models.gpt_oss import gptoss_configs  # noqa: E402
from torchtitan.models.gpt_oss.model import model as gpt_oss  # noqa: E402
from torchtitan.models.llama3 import llama3_args  # noqa: E402
from torchtitan.models.llama3.model import model as llama3  # noqa: E402
from torchtitan.models.llama4 import llama4_args  # noqa: E402
from torchtitan.models.llama4.model import model as llama4  # noqa: E402
from torchtitan.models.qwen3 import qwen3_args  # noqa: E402
from torchtitan.models.qwen3.model import model as qwen3  # noqa: E402

PROGRAM = pathlib.Path(os.environ["TITAN_BIN"]).parent / "tests" / "dump_rope_tables"


def llama(module, args, seq_len):
    return torch.view_as_real(module.precompute_freqs_cis(args.dim // args.n_heads, seq_len, args.rope_theta,
                                                          args.rope_scaling_args))


def deepseek_table(args, seq_len):
    args.max_seq_len = seq_len
    return torch.view_as_real(deepseek.precompute_freqs_cis(args))


def halves(cache):
    """torchtitan's rows are cos, cos, sin, sin; Titan's are cos, sin."""
    cos, sin = cache.chunk(2, dim=1)
    return torch.cat([cos[:, :cos.shape[1] // 2], sin[:, :sin.shape[1] // 2]], dim=1)


def gpt_oss_table(args, seq_len):
    return halves(gpt_oss.precompute_rope_cache(args.head_dim, seq_len, args.rope_theta, args.rope_factor,
                                                args.ntk_alpha, args.ntk_beta, args.original_seq_len))


def cases():
    for flavor in ("debugmodel", "8B"):
        yield "llama3", flavor, 8192, lambda n, a=llama3_args[flavor]: llama(llama3, a, n)
    for flavor in ("debugmodel", "17bx16e", "17bx128e"):
        yield "llama4", flavor, 16384, lambda n, a=llama4_args[flavor]: llama(llama4, a, n)
    for seq_len in (4096, 4097, 16384):
        yield "deepseek_v3", "16B", seq_len, lambda n: deepseek_table(deepseekv3_args["16B"], n)
    for flavor in ("0.6B", "235B-A22B"):
        yield "qwen3", flavor, 4096, lambda n, a=qwen3_args[flavor]: halves(
            qwen3.precompute_rope_cache(a.head_dim, n, a.rope_theta))
    for seq_len in (2048, 8192):
        yield "gpt_oss", "20b", seq_len, lambda n: gpt_oss_table(gptoss_configs["20b"], n)


def main():
    for family, flavor, seq_len, theirs in cases():
        raw = subprocess.run([PROGRAM, family, flavor, str(seq_len)], check=True, capture_output=True).stdout
        ours = torch.frombuffer(bytearray(raw), dtype=torch.float32)
        want = theirs(seq_len).contiguous().flatten()
        if ours.shape != want.shape or not torch.equal(ours, want):
            sys.exit(f"{family} {flavor} at {seq_len}: differs, {ours.shape} and {want.shape}, by "
                     f"{(ours - want).abs().max().item() if ours.shape == want.shape else 'shape'}")
        print(f"{family} {flavor} at {seq_len}: {want.numel()} numbers equal")


main()
