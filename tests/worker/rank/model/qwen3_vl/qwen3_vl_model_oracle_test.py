"""Compares the whole Qwen3-VL, dense and with experts, with transformers' Qwen3VLForConditionalGeneration from its own config.json
and weights: positions, logits, loss and all gradients. Then transformers opens what Titan exports. Positions of many random rows are
those of get_rope_index, token for token.

transformers computes norms, rotations, softmax and routing in fp32 whatever the type, so for fp64 these are the same formulas in fp64."""

import contextlib
import json
import logging
import os
import random
import subprocess
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

import torch
from safetensors.torch import load_file, save_file

logging.disable(logging.CRITICAL)
from transformers.utils import logging as transformers_logging  # noqa: E402

transformers_logging.disable_progress_bar()
from transformers.models.qwen3_vl import modeling_qwen3_vl as dense  # noqa: E402
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLConfig  # noqa: E402
from transformers.models.qwen3_vl_moe import modeling_qwen3_vl_moe as experts  # noqa: E402
from transformers.models.qwen3_vl_moe.configuration_qwen3_vl_moe import Qwen3VLMoeConfig  # noqa: E402

PROGRAM = Path(os.environ["TITAN_BIN"]).parent / "tests" / "run_qwen3_vl"
torch.set_num_threads(1)
BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-5}  # Relative to the largest number of a tensor.
IMAGE, VIDEO, START, END, VOCABULARY = 60, 61, 62, 63, 64


def configuration(moe, tied, deepstack, dtype):
    text = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "tie_word_embeddings": tied,
            "rope_scaling": {"rope_type": "default", "mrope_section": [3, 3, 2], "mrope_interleaved": True}}
    if moe:
        text |= {"moe_intermediate_size": 12, "num_experts": 5, "num_experts_per_tok": 2}
    vision = {"depth": 3, "hidden_size": 24, "intermediate_size": 20, "num_heads": 2, "patch_size": 3, "out_hidden_size": 32,
              "num_position_embeddings": 25, "deepstack_visual_indexes": deepstack}
    kind = Qwen3VLMoeConfig if moe else Qwen3VLConfig
    config = kind(text_config=text, vision_config=vision, image_token_id=IMAGE, video_token_id=VIDEO, vision_start_token_id=START,
                  vision_end_token_id=END, tie_word_embeddings=tied)
    config._attn_implementation = "eager"
    return config


def draw(model):
    """Fills all parameters so that every part has a visible effect."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = torch.randn(parameter.shape)
            if "norm" in name and name.endswith("weight"):
                value = 1 + 0.3 * value
            elif "experts" in name:
                value = value / parameter.shape[1] ** 0.5
            elif parameter.dim() > 1 and "pos_embed" not in name and "embed_tokens" not in name:
                value = value / parameter[0].numel() ** 0.5
            else:
                value = 0.3 * value
            parameter.copy_(value)


def random_row(pick, length, images, merge=2):
    """Returns a row of tokens with that many images, and their grids. Some images follow each other without a text."""
    row, grids = [], []
    for _ in range(images):
        row += [pick.randrange(IMAGE) for _ in range(pick.choice([0, 1, 3]))]
        grid = pick.randint(1, 3), pick.randint(1, 4)
        row += [START] + [IMAGE] * (grid[0] * grid[1]) + [END]
        grids.append([side * merge for side in grid])
    assert len(row) <= length
    return row + [pick.randrange(IMAGE) for _ in range(length - len(row))], grids


def random_rows(pick, images_of_row, length):
    rows, grids = [], []
    for images in images_of_row:
        row, of_row = random_row(pick, length, images)
        rows.append(row)
        grids += of_row
    return {"tokens": torch.tensor(rows), "grids": torch.tensor(grids, dtype=torch.long).view(-1, 2),
            "images_of_row": torch.tensor(images_of_row)}


def thw(grids):
    return torch.cat([torch.ones(len(grids), 1, dtype=torch.long), grids], 1) if len(grids) else None


def exact_attention(module, query, key, value, attention_mask=None, scaling=1.0, dropout=0.0, **kwargs):
    groups = getattr(module, "num_key_value_groups", 1)
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(-1, -2) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask[..., :key.shape[-2]]
    weights = torch.softmax(scores, -1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def exact_norm(self, x):
    return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


def exact_routing(self, x):
    logits = self.gate(x.view(-1, self.hidden_size))
    weights, chosen = torch.topk(torch.softmax(logits, -1), self.top_k, -1)
    weights = torch.zeros_like(logits).scatter_(1, chosen, weights / weights.sum(-1, keepdim=True))
    return self.experts(x, weights, chosen), logits


def widened(function):
    """The same function, in which Tensor.float() gives fp64."""
    def wrapped(*args, **named):
        with mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
            return function(*args, **named)
    return wrapped


@contextlib.contextmanager
def in_fp64(module, prefix):
    with contextlib.ExitStack() as stack:
        rotary = getattr(module, f"{prefix}TextRotaryEmbedding")
        for owner, name, exact in ((module, "eager_attention_forward", exact_attention),
                                   (module, "apply_rotary_pos_emb_vision", widened(module.apply_rotary_pos_emb_vision)),
                                   (getattr(module, f"{prefix}TextRMSNorm"), "forward", exact_norm),
                                   (rotary, "forward", widened(rotary.forward))):
            stack.enter_context(mock.patch.object(owner, name, exact))
        if module is experts:
            stack.enter_context(mock.patch.object(module.Qwen3VLMoeTextSparseMoeBlock, "forward", exact_routing))
        torch.set_default_dtype(torch.float64)  # Where the vision tower's positions lie in its table.
        stack.callback(torch.set_default_dtype, torch.float32)
        yield


def widen(model, config):
    model.double()
    half = config.vision_config.hidden_size // config.vision_config.num_heads // 2
    model.model.visual.rotary_pos_emb.inv_freq = 10000 ** (-torch.arange(0, half, 2, dtype=torch.float64) / half)
    text = config.text_config
    model.model.language_model.rotary_emb.inv_freq = \
        text.rope_theta ** (-torch.arange(0, text.head_dim, 2, dtype=torch.float64) / text.head_dim)


class Case:
    def __init__(self, root, name, dtype, moe=False, tied=False, deepstack=(0, 2), images_of_row=(2, 0, 1)):
        self.folder, self.name, self.dtype, self.moe = root / name, name, dtype, moe
        self.config = configuration(moe, tied, list(deepstack), dtype)
        self.kind = experts.Qwen3VLMoeForConditionalGeneration if moe else dense.Qwen3VLForConditionalGeneration
        self.model = self.kind(self.config)
        draw(self.model)
        self.model.save_pretrained(self.folder)
        self.inputs = random_rows(random.Random(name), list(images_of_row), 46)
        labels = self.inputs["tokens"].roll(-1, 1)
        self.inputs["labels"] = labels.where(torch.rand(labels.shape) > 0.3, -100)
        patches = int(self.inputs["grids"].prod(1).sum())
        values = 6 * self.config.vision_config.patch_size ** 2
        self.inputs["patches"] = torch.randn(patches, values, dtype=dtype)
        (self.folder / "data").mkdir()
        save_file(self.inputs, self.folder / "data" / "inputs.safetensors")
        (self.folder / "job.json").write_text(json.dumps({"float64": dtype == torch.float64}))

    def expected(self):
        """Returns positions, logits, loss and gradients of transformers."""
        exact = in_fp64(experts if self.moe else dense, "Qwen3VLMoe" if self.moe else "Qwen3VL")
        with exact if self.dtype == torch.float64 else contextlib.nullcontext():
            if self.dtype == torch.float64:
                widen(self.model, self.config)
            grids, some = thw(self.inputs["grids"]), len(self.inputs["grids"]) > 0
            positions, _ = self.model.model.get_rope_index(self.inputs["tokens"], grids)
            logits = self.model(input_ids=self.inputs["tokens"], image_grid_thw=grids,
                                pixel_values=self.inputs["patches"] if some else None).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), self.inputs["labels"].flatten(), reduction="sum")
            loss.backward()
        results = {"positions": positions, "logits": logits.detach(), "loss": loss.detach().view(1)}
        for name, parameter in self.model.named_parameters():
            results[f"grad.{name}"] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        return results

    def got(self):
        results = load_file(self.folder / "data" / "results.safetensors")
        for name in [name for name in results if name.endswith(".0")]:
            results[name[:-2]] = torch.cat([results.pop(name), results.pop(name[:-1] + "1")], -1)
        return results


class WholeModel(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = Path(temporary.name)

    def test_both_passes_and_weights_both_ways(self):
        cases = [Case(self.root, "dense", torch.float64), Case(self.root, "tied", torch.float32, tied=True, deepstack=[1]),
                 Case(self.root, "experts", torch.float64, moe=True), Case(self.root, "experts fp32", torch.float32, moe=True),
                 Case(self.root, "without DeepStack", torch.float64, deepstack=[], images_of_row=[1, 1]),
                 Case(self.root, "without images", torch.float64, tied=True, images_of_row=[0, 0])]
        subprocess.run([PROGRAM, *(case.folder for case in cases)], check=True)
        for case in cases:
            expected, got = case.expected(), case.got()
            self.assertEqual(set(expected), set(got), case.name)
            self.assertTrue(torch.equal(expected["positions"], got["positions"]), case.name)
            worst = 0
            for name, theirs in expected.items():
                self.assertEqual(theirs.shape, got[name].shape, name)
                error = ((got[name] - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30)).item()
                self.assertLess(error, BOUNDS[case.dtype], f"{case.name}: {name}")
                worst = max(worst, error)
            back = case.kind.from_pretrained(case.folder / "exported")
            for name, value in case.model.state_dict().items():
                self.assertTrue(torch.equal(value.float(), back.state_dict()[name]), f"{case.name}: {name}")
            for part in ("text_config", "vision_config"):
                ours, theirs = (getattr(config, part).to_dict() for config in (back.config, case.config))
                changed = {key for key in theirs if ours.get(key) != theirs[key]}
                self.assertLessEqual(changed, {"dtype", "_name_or_path", "attn_implementation", "intermediate_size"}, case.name)
            print(f"{case.name}, {case.dtype}: {len(expected)} tensors differ by at most {worst:.1e}")

    def places(self, rows):
        inputs = {f"{i}.{name}": value for i, row in enumerate(rows) for name, value in row.items()}
        save_file(inputs, self.root / "inputs.safetensors")
        (self.root / "job.json").write_text(json.dumps({"merge": 2, "image_token": IMAGE, "video_token": VIDEO}))
        lines = subprocess.run([PROGRAM, "places", self.root], check=True, capture_output=True, text=True).stdout.splitlines()
        return lines, load_file(self.root / "results.safetensors")

    def test_positions_are_transformers(self):
        pick = random.Random(7)
        rows = [random_rows(pick, [pick.randint(0, 4) for _ in range(pick.randint(1, 3))], 80) for _ in range(40)]
        lines, got = self.places(rows)
        self.assertEqual({"OK"}, set(lines))
        config = types.SimpleNamespace(vision_config=types.SimpleNamespace(spatial_merge_size=2), image_token_id=IMAGE,
                                       video_token_id=VIDEO, vision_start_token_id=START)
        for i, row in enumerate(rows):
            expected, _ = dense.Qwen3VLModel.get_rope_index(types.SimpleNamespace(config=config), row["tokens"], thw(row["grids"]))
            self.assertTrue(torch.equal(expected, got[str(i)]), row)

    def test_wrong_rows_are_named(self):
        def rows(tokens, grids, images_of_row):
            return {"tokens": torch.tensor(tokens), "grids": torch.tensor(grids, dtype=torch.long).view(-1, 2),
                    "images_of_row": torch.tensor(images_of_row)}

        lines, got = self.places([rows([[1, START, IMAGE, IMAGE, END]], [[2, 4]], [1]),
                                  rows([[1, 2, 3], [START, IMAGE, END]], [[2, 4]], [0, 1]),
                                  rows([[START, IMAGE, END]], [[2, 2], [2, 2]], [2]),
                                  rows([[START, IMAGE, IMAGE, END]], [[2, 2]], [1]),
                                  rows([[START, VIDEO, END]], [], [0])])
        self.assertEqual({"0"}, set(got))
        self.assertEqual(["OK",
                          "INVALID_ARGUMENT: row 1 of the batch, token 1: image 0 has 1 x 2 tokens, but only 1 image tokens follow",
                          "INVALID_ARGUMENT: row 0 of the batch, token 3: the row has 2 images, but tokens of 1",
                          "INVALID_ARGUMENT: row 0 of the batch, token 2: more image tokens than those of its 1 images",
                          "UNIMPLEMENTED: row 0 of the batch, token 1: videos (token 61) are not supported"], lines)


if __name__ == "__main__":
    unittest.main()
