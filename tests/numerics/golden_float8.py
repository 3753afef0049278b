"""Float8 training beside torchtitan 0.2.2's own (torchao, emulated), live, from the same weights and text: tensorwise and rowwise, FSDP 2 and TP 2.

Layers compute in fp32, so that the two differ by the order of sums alone, until one falls beside a boundary between two of eight bits and
an operand's number is read as its neighbour. Scales are those of torchao's tensor ranks here (scales_over). What float8 itself changes must
be far more than what the two differ by: it is in both runs, and the same.
"""

import argparse
import random
import tempfile
from pathlib import Path

import numpy
from peer_runs import Peer, compare_steps, first_gradients, run_peer, run_titan
from rank_runs import Report, relative_rms

RECIPES, MESHES = ("tensorwise", "rowwise"), {"FSDP 2": {}, "TP 2": {"parallelism.tensor_parallel_degree": 2}}
STEPS = {"training.steps": 3}
FLOAT8 = {**STEPS, "model.converters": "quantize.linear.float8", "quantize.linear.float8.filter_fqns": "output",
          "quantize.linear.float8.emulate": True}
TITAN = {"training.dataloader.order": "per_rank"}
# Relative. Of losses, of norms (torchtitan's are inexact on CPUs), of the first step's gradients as one vector.
LOSS_LIMIT, NORM_LIMIT, GRADIENTS_LIMIT = 2e-4, 2e-3, 5e-3
EFFECT = 5  # Float8's own, over that limit.


def distance(gradients, others):
    """Of all gradients as one vector, relative."""
    names = sorted(gradients)
    return relative_rms(*(numpy.concatenate([numpy.float64(of[name]).ravel() for name in names]) for of in (gradients, others)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    options = parser.parse_args()
    print("seed", options.seed, flush=True)
    report = Report()
    with tempfile.TemporaryDirectory(prefix="titan-float8-") as temporary:
        folder, weights = Path(temporary), Path(temporary) / "weights"
        wide = {}
        for mesh, split in MESHES.items():
            for recipe in RECIPES:
                flags = {**FLOAT8, **({"quantize.linear.float8.recipe_name": recipe} if recipe != "tensorwise" else {})}
                place = folder / f"{mesh} {recipe}".replace(" ", "-")
                run_peer(place / "peer", weights, options.seed, 2, {**flags, **split})
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
                report.below(f"{name}: first step's gradients", distance(gradients, theirs), GRADIENTS_LIMIT)
                report.above(f"{name}: what float8 changes in them", distance(gradients, wide[mesh]), EFFECT * GRADIENTS_LIMIT)
    report.finish()


main()
