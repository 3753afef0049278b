"""Tests a tiny Flux with random encoders on pictures in a tar archive: the losses are equal on every mesh, a job resumes on another mesh with
the same rows and draws, validation has the same loss everywhere, and a picture that cannot be used is skipped and named."""

import io
import json
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

from PIL import Image

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3].parent / "testing"))
from paths import BIN, SOURCE

sys.path.insert(0, str(SOURCE / "tests/worker/rank/runtime"))
from titan_rank_test import Ranks, losses  # noqa: E402

T5 = {"architectures": ["T5EncoderModel"], "model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2,
      "vocab_size": 2100, "feed_forward_proj": "gated-gelu", "relative_attention_num_buckets": 32,
      "relative_attention_max_distance": 128, "layer_norm_epsilon": 1e-6}  # fmt: skip
CLIP = {"architectures": ["CLIPTextModel"], "model_type": "clip_text_model", "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 2100, "max_position_embeddings": 77,
        "hidden_act": "quick_gelu", "eos_token_id": 2, "layer_norm_eps": 1e-5}  # fmt: skip
AUTOENCODER = {"_class_name": "AutoencoderKL", "block_out_channels": [32, 32, 32, 32], "layers_per_block": 1, "latent_channels": 16,
               "norm_num_groups": 32, "in_channels": 3, "out_channels": 3, "scaling_factor": 0.3611, "shift_factor": 0.1159, "act_fn": "silu",
               "down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4, "use_quant_conv": False,
               "use_post_quant_conv": False, "mid_block_add_attention": True}  # fmt: skip


def add(archive, name, data):
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def write_archive(path, samples):
    """Writes pictures of random noise. One is too small, and one is damaged."""
    with tarfile.open(path, "w") as archive:
        for i in range(samples):
            size = (16, 40) if i == 3 else (40 + i, 36)
            file = io.BytesIO()
            Image.effect_noise(size, 64 + i).convert("RGB").save(file, "PNG")
            data = file.getvalue()
            add(archive, f"{i:06d}.png", data[:100] if i == 9 else data)
            add(archive, f"{i:06d}.txt", f"picture number {i}".encode())


class FluxTrainingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.folder = pathlib.Path(cls.scratch.name)
        for name, config in {"t5": T5, "clip": CLIP, "autoencoder": AUTOENCODER}.items():
            (cls.folder / name).mkdir()
            (cls.folder / name / "config.json").write_text(json.dumps(config))
        (cls.folder / "pictures").mkdir()
        write_archive(cls.folder / "pictures/shard-000.tar", 24)

    def train(self, name, world, extra=()):
        """Returns the losses by step, and the ranks."""
        words = {"model.name": "flux", "model.flavor": "flux-tiny-debug", "training.dtype": "float64", "training.steps": 4,
                 "training.dataset": "cc12m-test", "training.dataset_path": self.folder / "pictures", "training.img_size": 32,
                 "training.local_batch_size": 2, "training.global_batch_size": 4, "training.classifier_free_guidance_prob": 0.447,
                 "encoder.t5_encoder": self.folder / "t5", "encoder.clip_encoder": self.folder / "clip",
                 "encoder.autoencoder_path": self.folder / "autoencoder", "encoder.max_t5_encoding_len": 12, "debug.seed": 5,
                 "optimizer.lr": 1e-2, "lr_scheduler.warmup_steps": 1, "validation.dataset": "cc12m-test",
                 "validation.dataset_path": self.folder / "pictures", "validation.local_batch_size": 2, "validation.save_img_count": 0}  # fmt: skip
        flags = ["--training.test_mode"]
        for key, value in words.items():
            flags += [f"--{key}", str(value)]
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
        shutil.rmtree(self.folder / "one/checkpoint/step-4")
        resumed, _ = self.train("one", 2, ["--checkpoint.interval", "2", "--parallelism.context_parallel_degree", "2"])
        self.assertAlmostEqual(resumed[4], one[4], delta=1e-10)

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
