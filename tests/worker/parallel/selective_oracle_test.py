"""Which products torchtitan's own selective checkpointing ("op") computes again, by their FLOPs: what activation_checkpoint_test holds ours to."""

import torch
from torch.utils.flop_counter import FlopCounterMode
from torchtitan.config.job_config import ActivationCheckpoint
from torchtitan.distributed.activation_checkpoint import apply_ac
from torchtitan.models.llama3.infra.parallelize import _op_sac_save_list
from torchtitan.models.llama3.model.args import TransformerModelArgs
from torchtitan.models.llama3.model.model import Transformer

ROWS, TOKENS = 2, 16


def product_flops(counter):
    by_operation = counter.get_flop_counts()["Global"]
    return sum(flops for name, flops in by_operation.items() if "attention" not in str(name))


def recomputed(fqns):
    args = TransformerModelArgs(dim=64, n_layers=3, n_heads=4, n_kv_heads=2, vocab_size=32, multiple_of=16, max_seq_len=TOKENS)
    model = Transformer(args)
    with torch.no_grad():
        model.init_weights()
    config = ActivationCheckpoint(mode="selective", selective_ac_option="op", per_op_sac_force_recompute_mm_shapes_by_fqns=fqns)
    apply_ac(model, config, op_sac_save_list=_op_sac_save_list)
    tokens = torch.randint(0, 32, (ROWS, TOKENS))
    with FlopCounterMode(display=False) as forward:
        loss = model(tokens).float().sum()
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    layer = model.layers["0"]
    hidden = layer.feed_forward.w1.weight.shape[0]
    per_token = (product_flops(backward) - 2 * product_flops(forward)) / (2 * ROWS * TOKENS * args.n_layers)
    return per_token, args.dim, args.n_kv_heads * args.dim // args.n_heads, hidden


if __name__ == "__main__":
    again, dim, kv, hidden = recomputed(["moe.router.gate"])
    assert again == dim * (kv + dim + hidden), (again, dim, kv, hidden)  # wk, wo, w3
    again, dim, kv, hidden = recomputed(["feed_forward.w1"])
    assert again == dim * (kv + dim + 2 * hidden), (again, dim, kv, hidden)  # wk, wo, w1, w3
    print("torchtitan computes wk, wo and w3 again, and listed shapes")
