"""Runs debug forms of torchtitan's three recipes of Flux: their keys with a small model, small encoders, small pictures and few steps. Each trains,
validates, and saves; its pictures of a validation and those of [inference] have their places.

    flux_recipes_test.py [RECIPE...]      debug_model, flux_dev_model, flux_schnell_model; default: the first
"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "keys"))
from jobs import committed_steps, losses, metric_lines
from paths import BIN, SOURCE
from PIL import Image
from torchtitan_recipes_test import RECIPES, words_of

NAMES = sys.argv[1:] or ["debug_model"]
ASSETS = Path(os.environ["TITAN_DEPS"]) / "assets"
# Beyond what the table of recipes has: the rates and lengths of the recipes' files, with fewer steps.
RATES = {"optimizer.lr": 1e-4, "optimizer.eps": 1e-8, "lr_scheduler.warmup_steps": 1, "lr_scheduler.decay_ratio": 0.0, "training.max_norm": 1.0}
SMALL = {"model.flavor": "flux-tiny", "training.img_size": 64, "training.local_batch_size": 2, "training.steps": 2, "metrics.log_freq": 1,
         "training.dataset_path": ASSETS / "shapes", "validation.dataset_path": ASSETS / "shapes_validation",
         "encoder.t5_encoder": "titan/t5-tiny", "encoder.clip_encoder": "titan/clip-tiny", "encoder.autoencoder_path": "titan/autoencoder-tiny",
         "encoder.max_t5_encoding_len": 32, "validation.enable": True, "validation.local_batch_size": 2, "validation.freq": 2, "validation.steps": 2,
         "validation.denoising_steps": 2, "validation.save_img_count": 2, "checkpoint.enable": True, "checkpoint.interval": 2,
         "checkpoint.last_save_model_only": False, "training.mixed_precision_param": "float32",
         "resources.threads_per_rank": 1}  # fmt: skip


def flags_of(recipe, dump, prompts):
    flags = {**RECIPES[f"flux/{recipe}"][1], **RATES, **SMALL, "job.dump_folder": dump, "inference.prompts_path": prompts}
    return words_of({key: value if isinstance(value, bool) else str(value) for key, value in flags.items()})


class FluxRecipes(unittest.TestCase):
    def test_debug_forms(self):
        for recipe in NAMES:
            with self.subTest(recipe), tempfile.TemporaryDirectory() as folder:
                self.run_recipe(recipe, Path(folder))

    def run_recipe(self, recipe, folder):
        dump, prompts = folder / "dump", folder / "prompts.txt"
        prompts.write_text("a red circle on a white background\na blue square, small\n")
        (folder / "recipe.toml").write_text(f'[job]\ndescription = "{recipe} in small"\n')
        done = subprocess.run([BIN / "titanctl", "run", folder / "recipe.toml", *flags_of(recipe, dump, prompts), "--nproc", "2"],
                              capture_output=True, text=True)
        self.assertEqual(0, done.returncode, done.stderr + done.stdout)
        found = losses(dump)
        self.assertEqual([1, 2], sorted(found))
        # At first the model predicts zero: the loss is the mean square of noise minus latents, both about 1.
        self.assertTrue(1.5 < found[1] < 2.5, found)
        self.assertTrue(any("validation_metrics/loss" in line for line in metric_lines(dump)))
        self.assertEqual([2], committed_steps(dump))
        for name in ("step-2-000.png", "step-2-001.png"):
            with Image.open(dump / "img" / name) as picture:
                self.assertEqual((64, 64), picture.size)
        subprocess.run([BIN / "titan-generate", "--checkpoint", dump / "checkpoint"], check=True, capture_output=True)
        painted = sorted(path.name for path in (dump / "inference_results").glob("*.png"))
        self.assertEqual(["image_prompt0.png", "image_prompt1.png"], painted)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
