"""Compares Qwen3-VL's vision tower with transformers' Qwen3VLVisionModel (eager): the merged patches, the results for DeepStack,
and the gradients of all parameters.

transformers computes rotation and softmax in fp32 whatever the type, so for fp64 these are replaced by the same formulas in fp64."""

import json
import os
import random
import subprocess
import tempfile
import unittest
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers.models.qwen3_vl import modeling_qwen3_vl
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig

PROGRAM = Path(os.environ["TITAN_BIN"]).parent / "tests" / "run_vision_tower"
torch.set_num_threads(1)
BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-5}  # Relative to the largest number of a tensor.


def exact_attention(module, query, key, value, attention_mask=None, scaling=1.0, dropout=0.0, **kwargs):
    weights = torch.softmax(query @ key.transpose(-1, -2) * scaling, -1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def exact_rotation(q, k, cos, sin):
    def turned(x):
        return x * cos[:, None] + modeling_qwen3_vl.rotate_half(x) * sin[:, None]

    return turned(q), turned(k)


class InFp64:
    """Replaces what transformers rounds to fp32."""

    names = {"eager_attention_forward": exact_attention, "apply_rotary_pos_emb_vision": exact_rotation}

    def __enter__(self):
        self.before = {name: getattr(modeling_qwen3_vl, name) for name in self.names}
        for name, exact in self.names.items():
            setattr(modeling_qwen3_vl, name, exact)
        torch.set_default_dtype(torch.float64)  # The places between the table's positions.

    def __exit__(self, *_):
        for name, before in self.before.items():
            setattr(modeling_qwen3_vl, name, before)
        torch.set_default_dtype(torch.float32)


def make_exact(tower, head_dim):
    tower.rotary_pos_emb.inv_freq = 10000 ** (-torch.arange(0, head_dim // 2, 2, dtype=torch.float64) / (head_dim // 2))


class Qwen3VL(unittest.TestCase):
    def compare(self, job, dtype):
        config = Qwen3VLVisionConfig(
            depth=job["n_layers"], hidden_size=job["dim"], intermediate_size=job["ffn_hidden"], num_heads=job["n_heads"],
            in_channels=job["channels"], patch_size=job["patch_size"], spatial_merge_size=job["merge"],
            temporal_patch_size=job["temporal_patch_size"], out_hidden_size=job["out_dim"],
            num_position_embeddings=job["position_side"]**2, deepstack_visual_indexes=job["deepstack_layers"],
            attn_implementation="eager")
        tower = modeling_qwen3_vl.Qwen3VLVisionModel(config)
        with torch.no_grad():
            for parameter in tower.parameters():
                parameter.copy_(torch.randn(parameter.shape) * 0.15)
        tower.to(dtype)
        if dtype == torch.float64:
            make_exact(tower, job["dim"] // job["n_heads"])
        patches = sum(height * width for height, width in job["grids"])
        values = job["channels"] * job["temporal_patch_size"] * job["patch_size"]**2
        inputs = {"patches": torch.randn(patches, values, dtype=dtype)}
        merged, deepstack = tower(inputs["patches"], grid_thw=torch.tensor([(1, *grid) for grid in job["grids"]]))
        expected = torch.cat([merged, *deepstack], 1)
        inputs["grad"] = torch.randn_like(expected)
        expected.backward(inputs["grad"])

        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "job.json").write_text(json.dumps({**job, "float64": dtype == torch.float64}))
            save_file(inputs, folder / "inputs.safetensors")
            flat = {f"visual.{name}": value.detach() for name, value in tower.named_parameters()}
            flat["visual.patch_embed.proj.weight"] = flat["visual.patch_embed.proj.weight"].flatten(1)
            save_file(flat, folder / "weights.safetensors")
            subprocess.run([PROGRAM, "qwen3_vl", folder], check=True)
            worst = 0
            for name, theirs in [("output", expected)] + [(f"visual.{name}", value.grad) for name, value in tower.named_parameters()]:
                ours = torch.from_file(str(folder / f"{name}.bin"), size=theirs.numel(), dtype=dtype).view(theirs.shape)
                error = ((ours - theirs).abs().max() / theirs.abs().max()).item()
                self.assertLess(error, BOUNDS[dtype], name)
                worst = max(worst, error)
        return worst

    def test_both_passes(self):
        torch.manual_seed(1)
        pick = random.Random(1)
        for case in range(6):
            dtype = torch.float64 if case % 2 == 0 else torch.float32
            merge, heads, layers = pick.choice([1, 2, 3]), pick.choice([1, 3]), pick.choice([2, 3])
            job = {"dim": heads * pick.choice([8, 12]), "ffn_hidden": 20, "n_layers": layers, "n_heads": heads,
                   "channels": pick.choice([1, 3]), "patch_size": pick.choice([2, 3]), "temporal_patch_size": pick.choice([1, 2]),
                   "merge": merge, "position_side": pick.choice([2, 5, 8]), "out_dim": merge**2 * pick.choice([1, 4]),
                   "deepstack_layers": pick.choice([[], [1], list(range(layers))]),
                   "grids": [(merge * pick.randint(1, 4), merge * pick.randint(1, 4)) for _ in range(pick.choice([1, 3]))]}
            if dtype == torch.float64:
                with InFp64():
                    worst = self.compare(job, dtype)
            else:
                worst = self.compare(job, dtype)
            print(f"{dtype}, merge {merge}, DeepStack {job['deepstack_layers']}, {len(job['grids'])} images: at most {worst:.1e}")


if __name__ == "__main__":
    unittest.main()
