"""Compares the debug model with torchtitan's Llama3Siglip2Transformer on one batch: the loss and the gradients of all parameters.

Two of torchtitan's defects are repaired on its side: its encoder's patches do not see later ones, and positions of padding are
memory that was never written. FlexAttention has no CPU form in eager mode, so SDPA computes its masks."""

import dataclasses
import logging
import os
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[5] / "tests/peer"))
import torchtitan_cpu  # noqa: E402, F401: before torchtitan.

logging.disable(logging.CRITICAL)
from torch.nn.attention.flex_attention import create_block_mask, create_mask  # noqa: E402
from torchtitan.experiments.vlm import Llama3Siglip2Transformer, llama3_siglip2_args  # noqa: E402
from torchtitan.models.attention import FlexAttentionWrapper  # noqa: E402

PROGRAM = Path(os.environ["TITAN_BIN"]).parent / "tests" / "run_vlm"
IMAGE, EOS, IGNORED = 1, 2, -100
LONG = "--long" in sys.argv  # Also runs in fp32.
torch.set_num_threads(1)


def attend(self, query, key, value, *, block_mask, scale=None, **_):
    mask = create_mask(block_mask.mask_mod, query.shape[0], 1, query.shape[2], key.shape[2], device="cpu")
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)


def mask_of(modification, rows, length):
    return create_block_mask(modification, rows, None, length, length, device="cpu")


def by_document(documents):
    return mask_of(lambda b, h, q, k: (q >= k) & (documents[b, q] == documents[b, k]), *documents.shape)


def among_patches(valid):
    return mask_of(lambda b, h, q, k: valid[b, q] == valid[b, k], *valid.shape)


def draw_batch(rows, length, grids_of_rows):
    """Returns tokens, labels and documents [rows, length]: each row is images with texts in between, and two documents."""
    tokens = torch.randint(3, 2048, (rows, length))
    for row, grids in enumerate(grids_of_rows):
        place = 1
        for height, width in grids:
            tokens[row, place : place + height * width] = IMAGE
            place += height * width + 2
    tokens[:, length - 7] = EOS
    ends = (tokens == EOS).long()
    labels = tokens.roll(-1, 1)
    labels[(labels == IMAGE) | (torch.rand(rows, length) < 0.2)] = IGNORED
    labels[:, -1] = IGNORED
    return tokens, labels, ends.cumsum(1) - ends


def padded(images, length, fill):
    return torch.stack([torch.cat([one, one.new_full((length - len(one), one.shape[1]), fill)]) for one in images])


class VlmOracleTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def model(self, length, dtype):
        arguments = dataclasses.replace(llama3_siglip2_args["debugmodel"], max_seq_len=length)
        model = Llama3Siglip2Transformer(arguments)
        with torch.no_grad():
            model.init_weights()
            for name, parameter in model.named_parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.08 + (1 if "norm" in name and "weight" in name else 0))
        if dtype == torch.float64:
            model.double()
            with mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
                model.freqs_cis = model._precompute_freqs_cis()
        return model

    def compare(self, rows, length, grids_of_rows, dtype, bound):
        model = self.model(length, dtype)
        tokens, labels, documents = draw_batch(rows, length, grids_of_rows)
        grids = [grid for row in grids_of_rows for grid in row]
        pixels = [torch.randn(height * width, 768) for height, width in grids]
        places = [torch.cartesian_prod(torch.arange(1), torch.arange(height), torch.arange(width)) for height, width in grids]
        longest = max(len(one) for one in pixels) + 2
        wide = torch.Tensor.double if dtype == torch.float64 else torch.Tensor.float  # torchtitan rotates in fp32.
        with (mock.patch.object(FlexAttentionWrapper, "forward", attend), mock.patch("torch.empty", torch.zeros),
              mock.patch.object(torch.Tensor, "float", wide)):
            thw = padded(places, longest, -1)
            masks = {"llama3_masks": by_document(documents), "encoder_masks": among_patches(thw[:, :, 1] != -1)}
            logits = model(tokens, padded(pixels, longest, 0).to(dtype), thw, types.SimpleNamespace(img_id=IMAGE), masks)
            loss = F.cross_entropy(logits.flatten(0, 1).to(torch.promote_types(dtype, torch.float32)), labels.flatten(), reduction="sum", ignore_index=IGNORED)
            loss.backward()

        most_patches = max(sum(height * width for height, width in row) for row in grids_of_rows)
        most_images = max(map(len, grids_of_rows))
        of_rows, sides, first = torch.zeros(rows, most_patches, 768), torch.zeros(rows, most_images, 2, dtype=torch.long), 0
        for row, some in enumerate(grids_of_rows):
            if some:
                together = torch.cat(pixels[first : first + len(some)])
                of_rows[row, : len(together)] = together
                sides[row, : len(some)] = torch.tensor(some)
            first += len(some)
        save_file({"tokens": tokens, "labels": labels, "documents": documents, "patches": of_rows, "grids": sides}, self.folder / "inputs.safetensors")
        save_file({name: value.detach().contiguous() for name, value in model.named_parameters()}, self.folder / "weights.safetensors")
        subprocess.run([PROGRAM, "debugmodel", self.folder], check=True)

        def ours(name, like):
            return torch.from_file(str(self.folder / f"{name}.bin"), size=like.numel(), dtype=like.dtype).view(like.shape)

        self.assertLess(abs(ours("loss", torch.zeros((), dtype=torch.float64)).item() / loss.item() - 1), bound)
        worst = {}
        for name, parameter in model.named_parameters():
            # The keys' biases do not change the softmax: their gradients are rounding errors of zero.
            scale = 1.0 if name.endswith("k_proj.bias") else parameter.grad.abs().max().item()
            worst[name] = (ours(name, parameter.grad) - parameter.grad).abs().max().item() / scale
        name = max(worst, key=worst.get)
        self.assertLess(worst[name], bound, name)
        return f"{len(worst)} gradients, at most {worst[name]:.1e} ({name})"

    def test_loss_and_gradients(self):
        torch.manual_seed(1)
        images = [[(3, 4), (2, 2)], [], [(5, 3)]]
        print("fp64:", self.compare(3, 48, images, torch.float64, 1e-10))
        if LONG:
            print("fp32:", self.compare(3, 48, images, torch.float32, 1e-5))


if __name__ == "__main__":
    unittest.main(argv=[word for word in sys.argv if word != "--long"])
