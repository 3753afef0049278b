"""Tests a tiny Flux with random encoders on pictures in a tar archive: the losses are equal on every mesh, a job resumes on another mesh with
the same rows and draws, validation has the same loss everywhere, and a picture that cannot be used is skipped and named."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from PIL import Image

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3].parent / "testing"))
from paths import BIN, SOURCE

sys.path.insert(0, str(SOURCE / "tests/worker/rank/runtime"))
from tiny_flux import T5, flags_of, job_keys, write_archive, write_encoders  # noqa: E402
from titan_rank_test import Ranks, losses  # noqa: E402


class FluxTrainingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.folder = pathlib.Path(cls.scratch.name)
        write_encoders(cls.folder)
        write_archive(cls.folder / "pictures/shard-000.tar")

    def train(self, name, world, extra=()):
        """Returns the losses by step, and the ranks."""
        flags = flags_of(job_keys(self.folder, self.folder / "pictures", self.folder / "pictures"))
        ranks = Ranks(str(self.folder / name), world, [*flags, *extra])
        self.assertEqual(ranks.wait(), [0] * world, "\n".join(ranks.outputs))
        return losses(ranks.folder), ranks

    def pictures(self, folder):
        """Returns the bytes of all pictures in a folder by name."""
        return {path.name: Image.open(path).tobytes() for path in sorted(folder.glob("*.png"))}

    def assert_alike(self, mine, theirs, name):
        """Pixels may differ by the rounding of 32 bits."""
        self.assertEqual(sorted(mine), sorted(theirs), name)
        for picture, pixels in mine.items():
            self.assertLessEqual(max(abs(a - b) for a, b in zip(pixels, theirs[picture], strict=True)), 1, f"{name}: {picture}")

    def held_out(self, name):
        lines = [json.loads(line) for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()]
        return [line["validation_metrics/loss"] for line in lines if "validation_metrics/loss" in line]

    def test_losses_are_equal_on_every_mesh(self):
        validation = ["--validation.enable", "--validation.freq", "4", "--validation.steps", "-1"]
        pictures = ["--validation.save_img_count", "3", "--validation.denoising_steps", "3", "--validation.enable_classifier_free_guidance"]
        one, ranks = self.train("one", 1, ["--checkpoint.interval", "2", *validation, *pictures])
        self.assertEqual(sorted(one), [1, 2, 3, 4])
        self.assertTrue(all(value > 0.5 for value in one.values()), one)
        self.assertIn("000003", ranks.outputs[0])  # Too small.
        self.assertIn("000009", ranks.outputs[0])  # Damaged.
        self.assertEqual(len(self.held_out("one")), 2)  # After the first step and the fourth.
        recompute = ["--activation_checkpoint.mode", "full"]
        meshes = {"fsdp": [*validation, *recompute, *pictures], "ddp": ["--parallelism.data_parallel_replicate_degree", "2", "--parallelism.data_parallel_shard_degree", "1"],
                  "cp": ["--parallelism.context_parallel_degree", "2", *validation, *pictures],
                  "tp": ["--parallelism.tensor_parallel_degree", "2", *validation, *pictures],
                  "pp": ["--parallelism.pipeline_parallel_degree", "2"]}  # fmt: skip
        for name, extra in meshes.items():
            split, _ = self.train(name, 2, [*extra, "--checkpoint.no_enable"])
            for step, loss in one.items():
                self.assertAlmostEqual(split[step], loss, delta=1e-10, msg=f"{name}, step {step}")
        for name in ["fsdp", "cp", "tp"]:
            for mine, theirs in zip(self.held_out(name), self.held_out("one"), strict=True):
                self.assertAlmostEqual(mine, theirs, delta=1e-10)
            self.assert_alike(self.pictures(self.folder / name / "img"), self.pictures(self.folder / "one/img"), name)
        self.assertEqual(len(self.pictures(self.folder / "one/img")), 8)  # Two validations of three pictures and their grid.
        self.check_generate()
        self.check_export()
        shutil.rmtree(self.folder / "one/checkpoint/step-4")
        resumed, _ = self.train("one", 2, ["--checkpoint.interval", "2", "--parallelism.context_parallel_degree", "2"])
        self.assertAlmostEqual(resumed[4], one[4], delta=1e-10)

    # The transformer's folder is what diffusers writes: it has no tokenizer, which belongs to the encoders.
    def check_export(self):
        made = self.folder / "exported"
        subprocess.run([BIN / "titan-checkpoint", "export", self.folder / "one/checkpoint/step-4", made], check=True, capture_output=True)
        self.assertEqual(sorted(path.name for path in made.iterdir() if path.suffix != ".safetensors"),
                         ["config.json", "diffusion_pytorch_model.safetensors.index.json", "model.safetensors.index.json"])

    # An id without a row in the encoder's table is an error of the configuration, not a crash in the table.
    def test_a_vocabulary_that_is_too_small_is_named(self):
        small = self.folder / "small-t5"
        small.mkdir()
        (small / "config.json").write_text(json.dumps({**T5, "vocab_size": 133}))
        flags = flags_of(job_keys(self.folder, self.folder / "pictures", self.folder / "pictures"))
        ranks = Ranks(str(self.folder / "small"), 1, [*flags, "--encoder.t5_encoder", str(small)])
        self.assertEqual(ranks.wait(), [11], ranks.outputs)
        self.assertIn("encoder.t5_encoder: its vocabulary is 133, but with training.test_mode the tokenizer of model.hf_assets_path has",
                      ranks.outputs[0])

    def generate(self, *words):
        flags = ["--checkpoint", self.folder / "one/checkpoint", "--steps", "3", "--dtype", "float64", *words]
        return subprocess.run([BIN / "titan-generate", *map(str, flags)], capture_output=True, text=True)

    # Any number of ranks and pictures at a time makes the same pictures, and another seed others.
    def check_generate(self):
        prompts = ["--prompt", "picture number 1", "--prompt", "picture number 2"]
        for name, words in {"one": [], "tp": ["--tensor-parallel", "2", "--batch", "1"], "seed": ["--seed", "9"]}.items():
            (self.folder / "made" / name).mkdir(parents=True)
            done = self.generate("--image", self.folder / "made" / name, *prompts, *words)
            self.assertEqual(done.returncode, 0, done.stderr)
        one, split, seed = (self.pictures(self.folder / "made" / name) for name in ["one", "tp", "seed"])
        self.assertEqual(sorted(one), ["image_prompt0.png", "image_prompt1.png"])
        self.assert_alike(split, one, "titan-generate")
        self.assertNotEqual(seed["image_prompt0.png"], one["image_prompt0.png"])
        for words, says in {("--width", "40", *prompts): "--width 40: not a multiple of 16", (): "no prompt: give --prompt"}.items():
            done = self.generate(*words)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(says, done.stderr)


if __name__ == "__main__":
    unittest.main()
