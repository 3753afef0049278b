"""Compares float8 training with torchtitan 0.2.2's own (torchao, emulated), live, from the same weights and text: tensorwise and
rowwise, FSDP 2 and TP 2.

Layers compute in fp32, so the two differ only by the order of sums, until a number is near the boundary of two eight-bit values.
Then an operand rounds to the other value, the token's next numbers differ by a few per mille, and more of them round
differently. So losses have a limit, and gradients may differ by a fraction of the change that float8 itself makes; a single
operand that is quantized in another way exceeds that fraction. (With powers of two as scales, on FSDP, no sum differs, and the
results are equal.) Weights have plain initial values: a gain would multiply such differences. Scales are those of torchao's
tensor ranks (scales_over).

--itself (not in CI) also runs torchao with its products summed in float64, from weights with a gain of 5, and prints the
distances of the first step's losses: docs/benchmarks/low-precision.md has the figures.
"""

import argparse
import random
import tempfile
from pathlib import Path

import numpy
from peer_runs import LOSS, Peer, compare_steps, first_gradients, run_peer, run_titan
from rank_runs import Report, relative_rms

RECIPES, MESHES = ("tensorwise", "rowwise"), {"FSDP 2": {}, "TP 2": {"parallelism.tensor_parallel_degree": 2}}
STEPS = {"training.steps": 3, "training.seq_len": 128}
FLOAT8 = {**STEPS, "model.converters": "quantize.linear.float8", "quantize.linear.float8.filter_fqns": "output",
          "quantize.linear.float8.emulate": True}
TITAN = {"training.dataloader.order": "per_rank"}
# Relative limits of losses, of norms (torchtitan's are inexact on CPUs) and of the first step's gradients as one vector.
# SHARE_LIMIT: distance of the two, divided by the distance of float8 from fp32, which must be at least EFFECT.
LOSS_LIMIT, NORM_LIMIT, SHARE_LIMIT, EFFECT = 1e-4, 1e-3, 0.25, 5e-3


def distance(gradients, others):
    """Returns the relative distance of all gradients as one vector."""
    names = sorted(gradients)
    return relative_rms(*(numpy.concatenate([numpy.float64(of[name]).ravel() for name in names]) for of in (gradients, others)))


def compare_with_itself(folder, seed):
    """Prints, for the loss of one step, how far torchao with sums in float64, Titan, and float32 layers are from torchao."""
    steps = {**FLOAT8, "training.steps": 1}
    for ranks, mesh in ((1, "1 rank"), (2, "FSDP 2")):
        wide = None
        for recipe in RECIPES:
            flags = {**steps, **({"quantize.linear.float8.recipe_name": recipe} if recipe != "tensorwise" else {})}
            place, losses = folder / f"itself {ranks} {recipe}".replace(" ", "-"), {}
            if wide is None:
                run_peer(place / "wide", folder / "gained", seed, ranks, {**STEPS, "training.steps": 1})
                wide = Peer(place / "wide").steps[1]["loss"]
            for way, words in (("torchao", ()), ("in float64", ("--float8-in-float64",))):
                run_peer(place / way.replace(" ", "-"), folder / "gained", seed, ranks, flags, words=words)
                losses[way] = Peer(place / way.replace(" ", "-")).steps[1]["loss"]
            run = run_titan(place / "titan", folder / "gained", mesh, {**flags, **TITAN, "quantize.linear.float8.scales_over": "tensor_ranks",
                                                                       "model.converters": ["quantize.linear.float8"],
                                                                       "quantize.linear.float8.filter_fqns": ["output"]})  # fmt: skip
            off = lambda loss: abs(loss / losses["torchao"] - 1)  # noqa: E731
            print(f"{mesh}, {recipe}: first loss from torchao's: Titan {off(run.metrics()[1][LOSS]):.2g}, torchao summed in float64 "
                  f"{off(losses['in float64']):.2g}; float32 layers {off(wide):.2g}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--itself", action="store_true")
    options = parser.parse_args()
    print("seed", options.seed, flush=True)
    report = Report()
    with tempfile.TemporaryDirectory(prefix="titan-float8-") as temporary:
        folder, weights = Path(temporary), Path(temporary) / "weights"
        if options.itself:
            return compare_with_itself(folder, options.seed)
        wide = {}
        for mesh, split in MESHES.items():
            for recipe in RECIPES:
                flags = {**FLOAT8, **({"quantize.linear.float8.recipe_name": recipe} if recipe != "tensorwise" else {})}
                place = folder / f"{mesh} {recipe}".replace(" ", "-")
                run_peer(place / "peer", weights, options.seed, 2, {**flags, **split}, gain=1)
                peer = Peer(place / "peer", same_ranks=True)
                if mesh not in wide:
                    run = run_titan(folder / f"wide-{mesh.replace(' ', '-')}", weights, mesh, {**STEPS, **TITAN})
                    wide[mesh] = first_gradients(run, peer)
                run = run_titan(place / "titan", weights, mesh, {**flags, **TITAN, "quantize.linear.float8.scales_over": "tensor_ranks",
                                                                 "model.converters": ["quantize.linear.float8"],
                                                                 "quantize.linear.float8.filter_fqns": ["output"]})
                name = f"{mesh}, {recipe}"
                compare_steps(report, name, run, peer, LOSS_LIMIT, NORM_LIMIT)
                theirs = {fqn: peer.first["grad." + fqn] for fqn in wide[mesh]}
                gradients = first_gradients(run, peer)
                effect = distance(gradients, wide[mesh])
                report.above(f"{name}: what float8 changes in the first step's gradients", effect, EFFECT)
                report.below(f"{name}: their distance from torchtitan's over that", distance(gradients, theirs) / effect, SHARE_LIMIT)
    report.finish()


main()
