"""Tests that every recipe in configs/ is valid with the tests' assets, gives a reason for each key's value, and fits its devices,
by dry runs of its first and last rank."""

import json
import os
import re
import subprocess
import sys
import tomllib
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from paths import BIN, SOURCE

ASSETS = Path(os.environ["TITAN_DEPS"]) / "assets"
RECIPES = sorted((SOURCE / "configs").glob("*.toml"))
DEVICE_BYTES = 80e9 - 4 * 2**30  # Device memory less the part of kernels, NCCL and the CUDA context (docs/howto/dry-run.md).


def degree(config, *axes):
    product = 1
    for axis in axes:
        product *= config.get("parallelism", {}).get(axis + "_degree", 1)
    return product


class Recipes(unittest.TestCase):
    def each(self, check):
        self.assertGreaterEqual(len(RECIPES), 20)
        for recipe in RECIPES:
            with self.subTest(recipe=recipe.name):
                check(recipe, tomllib.loads(recipe.read_text()))

    def test_valid_without_a_warning(self):
        def check(recipe, config):
            texts = ["--model.hf_assets_path", ASSETS / "tokenizer", "--training.dataset_path", ASSETS / "c4_test"]
            words = [] if config["model"]["name"] == "flux" else texts
            done = subprocess.run([BIN / "titanctl", "validate", recipe, *words], capture_output=True, text=True)
            printed = (done.stdout + done.stderr).strip()
            self.assertEqual(0, done.returncode, printed)
            answer, *peak = printed.splitlines()  # Further lines would be warnings.
            self.assertIn("is valid", answer)
            self.assertEqual(len(peak), 1, printed)
            self.assertTrue(all(line.startswith("the fullest rank takes about ") for line in peak), printed)

        self.each(check)

    def test_every_key_has_its_reason(self):
        def check(recipe, _):
            keys = [line for line in recipe.read_text().splitlines() if re.match(r"\w+ = ", line)]
            self.assertEqual([], [line for line in keys if not re.search(r"  # .{5,}\.?$", line)])
            self.assertTrue(recipe.read_text().startswith("# "), "what the recipe is for")

        self.each(check)

    # Figures in the comments follow the keys.
    def test_batch_in_the_comment(self):
        def check(recipe, config):
            ranks = config["resources"]["ranks"] // degree(config, "pipeline_parallel", "tensor_parallel", "context_parallel")
            rows = ranks * config["training"]["local_batch_size"]
            if config["model"]["name"] == "flux":
                self.assertIn(f"in total {rows} a step", recipe.read_text())
                return self.assertIn(f"  # {config['training']['steps'] * rows:,} pictures.", recipe.read_text())
            tokens = rows * config["training"]["seq_len"]
            self.assertIn("%d rows and %s tokens a step" % (rows, f"{tokens:,}"), recipe.read_text())
            total = config["training"]["steps"] * tokens
            self.assertIn("  # %s tokens." % (f"{total:,}" if total < 1e7 else "%.3g billion" % (total / 1e9)), recipe.read_text())

        self.each(check)

    # A copy of the state through ordinary memory stalls a GPU for seconds.
    def test_gpu_recipes_save_with_pinned_memory(self):
        def check(_, config):
            saves = config.get("checkpoint", {}).get("enable") and config["checkpoint"].get("async_mode", "disabled") != "disabled"
            if saves and config["resources"].get("device") == "cuda":
                self.assertEqual("async_with_pinned_mem", config["checkpoint"]["async_mode"])

        self.each(check)

    def test_first_and_last_rank_fit(self):
        def check(recipe, config):
            world = config["resources"]["ranks"]
            for rank in sorted({0, world - 1}):
                done = subprocess.run([BIN / "titan-rank", "--config", recipe, "--comm.mode", "fake_backend", "--resources.ranks",
                                       str(world), "--rank", str(rank), "--json"], capture_output=True, text=True, timeout=120)
                self.assertEqual(0, done.returncode, done.stderr + done.stdout)
                result = json.loads(done.stdout)
                peak = result["bytes"]["peak"]
                print("%-24s rank %3d of %3d: %6.1f GiB at most" % (recipe.stem, rank, world, peak / 2**30))
                if config["resources"].get("device") == "cuda":
                    self.assertLess(peak, DEVICE_BYTES)
                share = result["parameters"]["shard"] * world / result["parameters"]["model"]
                self.assertTrue(0.09 < share < 2, share)  # Unequal where layers, experts or heads do not divide evenly.
                self.assertGreaterEqual(result["bytes"]["standing"], 16 * result["parameters"]["shard"])

        self.each(check)


if __name__ == "__main__":
    unittest.main()
