"""Compares SigLIP 2's vision tower with transformers' Siglip2VisionModel (eager, several padded images of different shapes) and
a projector of torch.nn: the result and the gradients of all parameters.

transformers computes the softmax and the resized positions in fp32 whatever the type, so for fp64 these two are replaced by the
same formulas in fp64."""

import json
import os
import random
import subprocess
import tempfile
import unittest
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import Siglip2Config, Siglip2VisionConfig, Siglip2VisionModel
from transformers.models.siglip2 import modeling_siglip2

PROGRAM = Path(os.environ["TITAN_BIN"]).parent / "tests" / "run_vision_tower"
torch.set_num_threads(1)
BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-5}  # Relative to the largest number of a tensor.


def exact_attention(module, query, key, value, mask, scaling, dropout=0.0, **kwargs):
    weights = torch.softmax(query @ key.transpose(-1, -2) * scaling + mask, -1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def resized(table, height, width):
    """Returns [height * width, dim] for table [side, side, dim]."""
    if width == 1 < height:  # LibTorch 2.11 resizes a single column wrongly on the CPU, but a single row rightly.
        return resized(table.transpose(0, 1), width, height)
    image = F.interpolate(table.permute(2, 0, 1)[None], size=(height, width), mode="bilinear", align_corners=False, antialias=True)
    return image[0].flatten(1).T


def exact_positions(table, shapes, max_length):
    rows = []
    for height, width in shapes.tolist():
        one = resized(table, height, width)
        rows.append(torch.cat([one, one[:1].expand(max_length - len(one), -1)]))
    return torch.stack(rows)


class InFp64:
    """Replaces what transformers rounds to fp32."""

    def __enter__(self):
        embeddings = modeling_siglip2.Siglip2VisionEmbeddings
        self.before = modeling_siglip2.eager_attention_forward, embeddings.resize_positional_embeddings
        modeling_siglip2.eager_attention_forward = exact_attention
        embeddings.resize_positional_embeddings = staticmethod(exact_positions)

    def __exit__(self, *_):
        modeling_siglip2.eager_attention_forward = self.before[0]
        modeling_siglip2.Siglip2VisionEmbeddings.resize_positional_embeddings = staticmethod(self.before[1])


class Tower(torch.nn.Module):
    def __init__(self, config, out_dim):
        super().__init__()
        self.encoder = Siglip2VisionModel(config)
        self.w1 = torch.nn.Linear(config.hidden_size, config.hidden_size)
        self.w2 = torch.nn.Linear(config.hidden_size, out_dim)

    def forward(self, patches, grids):
        """patches: [P, values] of all images. Returns [P, out_dim]."""
        sizes = [height * width for height, width in grids]
        padded = torch.nn.utils.rnn.pad_sequence(patches.split(sizes), batch_first=True, padding_value=3.0)
        mask = torch.arange(max(sizes))[None] < torch.tensor(sizes)[:, None]
        hidden = self.encoder(padded, mask.long(), torch.tensor(grids)).last_hidden_state
        return self.w2(F.silu(self.w1(hidden[mask])))


def titan_name(name):
    """The FQN of a parameter of Tower."""
    if not name.startswith("encoder."):
        return "projector." + name
    name = name.removeprefix("encoder.vision_model.")
    return name if name.startswith("encoder.") else "encoder." + name


class Vision(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def compare(self, config, grids, dtype):
        out_dim = 24
        tower = Tower(config, out_dim)
        with torch.no_grad():
            for parameter in tower.parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.15)
        tower.to(dtype)
        patches = sum(height * width for height, width in grids)
        inputs = {"patches": torch.randn(patches, config.num_channels * config.patch_size**2, dtype=dtype),
                  "grad": torch.randn(patches, out_dim, dtype=dtype)}
        expected = tower(inputs["patches"], grids)
        expected.backward(inputs["grad"])

        config.to_json_file(self.folder / "config.json")
        (self.folder / "job.json").write_text(json.dumps({"grids": grids, "out_dim": out_dim}))
        save_file(inputs, self.folder / "inputs.safetensors")
        weights = {name.removeprefix("encoder.") if name.startswith("encoder.") else "projector." + name: value.detach()
                   for name, value in tower.named_parameters()}
        save_file(weights, self.folder / "weights.safetensors")
        subprocess.run([PROGRAM, "siglip2", self.folder], check=True)

        def ours(name, like):
            return torch.from_file(str(self.folder / f"{name}.bin"), size=like.numel(), dtype=dtype).view(like.shape)

        worst = 0
        for name, theirs in [("output", expected)] + [(titan_name(name), value.grad) for name, value in tower.named_parameters()]:
            # The keys' biases do not change the softmax: their gradients are rounding errors of zero.
            scale = 1.0 if name.endswith("k_proj.bias") else theirs.abs().max().item()
            error = (ours(name, theirs) - theirs).abs().max().item() / scale
            self.assertLess(error, BOUNDS[dtype], name)
            worst = max(worst, error)
        return worst

    def test_both_passes(self):
        torch.manual_seed(1)
        pick = random.Random(1)
        for case in range(6):
            dtype = torch.float64 if case % 2 == 0 else torch.float32
            heads, side = pick.choice([1, 2, 4]), pick.choice([1, 3, 4, 7])
            config = Siglip2VisionConfig(
                hidden_size=heads * pick.choice([8, 12]), intermediate_size=40, num_hidden_layers=pick.choice([1, 3]),
                num_attention_heads=heads, num_channels=pick.choice([1, 3]), patch_size=pick.choice([2, 4]), num_patches=side**2,
                layer_norm_eps=pick.choice([1e-6, 1e-3]), vision_use_head=False, attn_implementation="eager")
            narrowest = 1 if dtype == torch.float64 else 2
            grids = [(pick.randint(1, 9), pick.randint(narrowest, 9)) for _ in range(pick.choice([1, 3, 5]))]
            grids += grids[:1] + [(1, 1), (side, side)] + [(4, 1)] * (narrowest == 1)
            if dtype == torch.float64:
                with InFp64():
                    worst = self.compare(config, grids, dtype)
            else:
                worst = self.compare(config, grids, dtype)
            print(f"{dtype}, {len(grids)} images, positions {side} x {side}: at most {worst:.1e}")

    def test_one_image(self):
        torch.manual_seed(2)
        config = Siglip2VisionConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, patch_size=4,
                                     num_patches=16, vision_use_head=False, attn_implementation="eager")
        print(f"one image: at most {self.compare(config, [(5, 3)], torch.float32):.1e}")

    def test_config_json(self):
        """Keys that config.json leaves out have the class's defaults, alone and inside a Siglip2Config."""
        tower = Siglip2VisionConfig(vision_use_head=False)
        with torch.device("meta"):
            count = sum(parameter.numel() for parameter in Siglip2VisionModel(tower).parameters())
        for config in [tower, Siglip2Config(vision_config={"vision_use_head": False})]:
            config.to_json_file(self.folder / "config.json")  # Only what differs from the defaults.
            printed = subprocess.run([PROGRAM, "count", self.folder], check=True, stdout=subprocess.PIPE, text=True).stdout
            self.assertEqual(count, int(printed))


if __name__ == "__main__":
    unittest.main()
