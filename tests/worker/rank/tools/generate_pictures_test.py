"""Tests titan-generate on whole pipelines of diffusers, FLUX.1-dev's and FLUX.1-schnell's in small: it paints what FluxPipeline paints
with the same noise."""

import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "testing"))
from paths import BIN, BUILD, SOURCE

sys.path.insert(0, str(SOURCE / "tests/peer"))
os.environ["HF_HUB_OFFLINE"] = "1"
import torchtitan_cpu  # noqa: E402, F401

import numpy  # noqa: E402
import torch  # noqa: E402
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel  # noqa: E402
from flux_folders import captions, disturb, write_clip, write_pictures, write_t5  # noqa: E402
from PIL import Image  # noqa: E402
from transformers import CLIPTextModel, CLIPTokenizer, T5EncoderModel, T5Tokenizer  # noqa: E402

HEIGHT, WIDTH, STEPS = 32, 48, 3
PROMPTS = ["a red cat on the tree", "two boat"]


def autoencoder():
    model = AutoencoderKL(down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4, block_out_channels=(32,) * 4,
                          layers_per_block=1, latent_channels=16, scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False,
                          use_post_quant_conv=False)
    disturb(model, gain=1)
    return model


def write_pipeline(folder, dev):
    """Writes a pipeline whose parts have random weights. `dev`: with the guidance's layers and shifted times."""
    parts = folder / "parts"
    parts.mkdir(parents=True)
    write_t5(parts / "t5", captions(random.Random(7), 200))
    write_clip(parts / "clip")
    transformer = FluxTransformer2DModel(patch_size=1, in_channels=64, num_layers=2, num_single_layers=2, attention_head_dim=32, num_attention_heads=2,
                                         joint_attention_dim=32, pooled_projection_dim=32, guidance_embeds=dev, axes_dims_rope=(8, 12, 12))
    disturb(transformer)
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0 if dev else 1.0, use_dynamic_shifting=dev, base_shift=0.5, max_shift=1.15)
    pipeline = FluxPipeline(scheduler, autoencoder(), CLIPTextModel.from_pretrained(parts / "clip"), CLIPTokenizer.from_pretrained(parts / "clip", model_max_length=77),
                            T5EncoderModel.from_pretrained(parts / "t5"), T5Tokenizer.from_pretrained(parts / "t5", legacy=True), transformer)
    pipeline.set_progress_bar_config(disable=True)
    pipeline.save_pretrained(folder / "pipeline")
    return pipeline


def noise(seed, count):
    """Returns the noise of titan-generate's pictures."""
    elements = 16 * (HEIGHT // 8) * (WIDTH // 8)
    out = subprocess.run([BUILD / "tests/dump_flux_draws", str(seed), str(count), "0", str(elements)], check=True, capture_output=True).stdout
    rows = numpy.frombuffer(out, numpy.float64).reshape(count, -1)
    return torch.from_numpy(rows[:, 4 : 4 + elements].copy()).float().view(count, 16, HEIGHT // 8, WIDTH // 8)


class GeneratePicturesTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        torch.manual_seed(3)

    def generate(self, *words):
        flags = ["--prompt", PROMPTS[0], "--prompt", PROMPTS[1], "--image", self.folder / "out.png", "--seed", "11", *words]
        return subprocess.run([BIN / "titan-generate", *map(str, flags)], capture_output=True, text=True)

    def painted(self, checkpoint):
        done = self.generate("--checkpoint", checkpoint, "--height", HEIGHT, "--width", WIDTH, "--steps", STEPS, "--guidance", "2.5")
        self.assertEqual(done.returncode, 0, done.stderr)
        pictures = []
        for i in range(len(PROMPTS)):
            with Image.open(self.folder / f"out-{i:03d}.png") as picture:
                self.assertEqual(picture.size, (WIDTH, HEIGHT))
                self.assertEqual(picture.getexif()[0x010E], PROMPTS[i])  # ImageDescription
                pictures.append(torch.from_numpy(numpy.array(picture)).permute(2, 0, 1).float())
        return torch.stack(pictures)

    def compare(self, pipeline, length, **named):
        latents = FluxPipeline._pack_latents(noise(11, 2), 2, 16, HEIGHT // 8, WIDTH // 8)
        made = pipeline(prompt=PROMPTS, height=HEIGHT, width=WIDTH, num_inference_steps=STEPS, latents=latents, output_type="pt",
                        max_sequence_length=length, **named).images
        self.assertGreater(made.std(), 0.1)  # The pictures are not flat.
        # Titan truncates. Rounding of 32 bits may move a number over the border of two bytes.
        self.assert_alike(self.painted(self.folder / "pipeline"), (made * 255).floor())

    def assert_alike(self, mine, wanted):
        differ = (mine - wanted).abs()
        self.assertLessEqual(differ.max(), 1)
        self.assertLess(differ.mean(), 0.01)

    # A job starts from the pipeline's weights, with the guidance's layers that its flavor lacks. Its checkpoint still
    # paints the same, since the job hardly learns.
    def train(self):
        write_pictures(self.folder / "pictures", random.Random(1), captions(random.Random(2), 4))
        words = {"model.name": "flux", "model.flavor": "flux-tiny-debug", "job.dump_folder": self.folder / "job", "training.steps": 1,
                 "training.dataset_path": self.folder / "pictures", "training.dataset": "cc12m-test", "training.img_size": 32,
                 "training.local_batch_size": 2, "training.mixed_precision_param": "float32", "optimizer.lr": 1e-30, "lr_scheduler.warmup_steps": 1,
                 "encoder.t5_encoder": self.folder / "pipeline/text_encoder_2", "encoder.clip_encoder": self.folder / "pipeline/text_encoder",
                 "encoder.autoencoder_path": self.folder / "pipeline/vae", "encoder.max_t5_encoding_len": 512, "checkpoint.interval": 1,
                 "checkpoint.initial_load_path": self.folder / "pipeline"}  # fmt: skip
        config = self.folder / "job.toml"
        config.touch()
        flags = [word for key, value in words.items() for word in (f"--{key}", str(value))]
        done = subprocess.run([BIN / "titan-rank", "--config", config, *flags, "--checkpoint.enable", "--checkpoint.initial_load_in_hf"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("guidance_embeds true", done.stdout)

    # Mistakes are named by their flag before the model is loaded, and leave no files.
    def check_mistakes(self, checkpoint):
        for words, code, message in [
            (["--temperature", "0.5"], 2, "--temperature: .* is flux, a model of images"),
            (["--seed", "-1"], 2, "--seed: -1 is negative"),
            (["--guidance", "nan"], 2, "--guidance nan: is not a finite number"),
            (["--image", self.folder / "out.jpg"], 2, "out.jpg: pictures are PNG files"),
            (["--image", self.folder / "folder"], 2, "or a folder's with /"),
            (["--prompts", self.folder], 2, "is a folder, not a file"),
            (["--prompt", b"\xff"], 2, "prompt 2 is not text in UTF-8"),
            (["--width", "65520", "--height", "65520"], 1, "2 pictures at a time takes at least .* GiB, .*lower --batch"),
            (["--width", "40"], 2, "--width 40: not a multiple of 16"),
            (["--t5", "no/such"], 3, "encoder.t5_encoder"),
        ]:
            defaults = {"--prompt": "a", "--image": self.folder / "mistake.png"}
            given = [word for flag, value in defaults.items() if flag not in words for word in (flag, value)]
            command = [BIN / "titan-generate", "--checkpoint", checkpoint, "--batch", "2", "--prompt", "b", *given, *words]
            done = subprocess.run([word if isinstance(word, bytes) else str(word) for word in command], capture_output=True, text=True)
            self.assertEqual(done.returncode, code, (words, done.stderr))
            self.assertRegex(done.stderr, message)
        self.assertEqual(list(self.folder.glob("mistake*")), [])

    # What T5 cannot read of a long prompt is reported, and the picture is made.
    def check_long_prompt(self, checkpoint):
        done = self.generate("--checkpoint", checkpoint, "--prompt", "cat " * 1000, "--height", HEIGHT, "--width", WIDTH, "--steps", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"warning: prompt 3 has \d{4} tokens, and the model reads the first 256")
        self.assertNotIn("prompt 1", done.stderr)

    def test_dev_paints_what_diffusers_paints(self):
        self.compare(write_pipeline(self.folder, dev=True), 512, guidance_scale=2.5)
        wanted = self.painted(self.folder / "pipeline")
        self.train()
        self.assert_alike(self.painted(self.folder / "job/checkpoint"), wanted)

    def test_schnell_paints_what_diffusers_paints(self):
        pipeline = write_pipeline(self.folder, dev=False)
        self.compare(pipeline, 256, true_cfg_scale=2.5, negative_prompt="")
        self.check_mistakes(self.folder / "pipeline")
        self.check_long_prompt(self.folder / "pipeline")
        (self.folder / "pipeline/vae/diffusion_pytorch_model.safetensors").unlink()
        done = self.generate("--checkpoint", self.folder / "pipeline")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertTrue(re.search(r"encoder\.autoencoder_path.*vae", done.stderr), done.stderr)
        done = self.generate("--checkpoint", self.folder / "pipeline/transformer")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("--t5", done.stderr)


if __name__ == "__main__":
    unittest.main()
