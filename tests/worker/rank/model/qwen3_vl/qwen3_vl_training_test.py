"""Trains Qwen3-VL's debugmodel on pictures with captions and on rows of several texts and pictures: the losses are equal on every
mesh, a job resumes on another mesh with the same rows, batches without pictures train, and the first loss and gradient norm of a job
that begins with transformers' weights are transformers' for the same pictures and captions. With --long: more meshes."""

import io
import json
import pathlib
import shutil
import sys
import tarfile
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3].parent / "testing"))
from paths import SOURCE

sys.path.insert(0, str(SOURCE / "tests/worker/rank/runtime"))
sys.path.insert(0, str(SOURCE / "tests/worker/rank/model/vlm"))
from qwen3_vl_data import END, EOS, IMAGE, PAD, SPECIAL, START, VIDEO, write_processor, write_tokenizer  # noqa: E402
from titan_rank_test import Ranks, losses  # noqa: E402
from vlm_data import WORDS, png, text, write_archive, write_interleaved  # noqa: E402

DEGREE = "--parallelism.{}_parallel_degree"
TENSOR, CONTEXT, PIPELINE = (DEGREE.format(axis) for axis in ("tensor", "context", "pipeline"))
COPIES, SHARDS = "--parallelism.data_parallel_replicate_degree", "--parallelism.data_parallel_shard_degree"
FULL = ["--activation_checkpoint.mode", "full"]
MESHES = {"fsdp": (2, FULL), "tp": (2, [TENSOR, "2"]), "cp": (2, [CONTEXT, "2"]), "pp": (2, [PIPELINE, "2"])}
MORE = {"ddp": (2, [COPIES, "2", SHARDS, "1"]), "hsdp": (4, [COPIES, "2", SHARDS, "2"]), "tp-cp": (4, [TENSOR, "2", CONTEXT, "2"]),
        "pp-tp": (4, [PIPELINE, "2", TENSOR, "2", *FULL]), "fsdp-cp": (4, [SHARDS, "2", CONTEXT, "2", *FULL]),
        "tp-full": (2, [TENSOR, "2", "--parallelism.no_enable_sequence_parallel"]),
        "selective": (2, ["--activation_checkpoint.mode", "selective", "--activation_checkpoint.selective_ac_option", "op"])}


class Scratch(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.folder = pathlib.Path(cls.scratch.name)
        write_tokenizer(cls.folder / "tokenizer", WORDS)
        write_archive(cls.folder / "pictures/shard-000.tar", 16, bad=[5])
        write_interleaved(cls.folder / "mixed/rows.parquet", 24)
        write_interleaved(cls.folder / "texts/rows.parquet", 8, with_images=lambda row: False)

    def start(self, name, world, extra=(), **changes):
        words = {"model.name": "qwen3_vl", "model.flavor": "debugmodel", "model.hf_assets_path": "tokenizer",
                 "training.dtype": "float64", "training.steps": 2, "training.seq_len": 64, "data.spatial_merge_size": 2,
                 "data.max_patches_per_image": 64, "data.max_images_per_batch": 6, "training.local_batch_size": 2,
                 "training.global_batch_size": 4, "training.dataset": "cc12m", "training.dataset_path": "pictures",
                 "debug.seed": 5, "optimizer.lr": 1e-3, "lr_scheduler.warmup_steps": 1} | changes  # fmt: skip
        flags = []
        for key, value in words.items():
            flags += [f"--{key}", str(self.folder / value) if key.endswith("_path") else str(value)]
        return Ranks(str(self.folder / name), world, [*flags, *extra])

    def train(self, name, world, extra=(), **changes):
        """Returns the losses by step, and the ranks."""
        ranks = self.start(name, world, extra, **changes)
        self.assertEqual(ranks.wait(), [0] * world, "\n".join(ranks.outputs))
        return losses(ranks.folder), ranks

    def assert_equal(self, ours, theirs, name):
        self.assertEqual(sorted(ours), sorted(theirs), name)
        for step, loss in theirs.items():
            self.assertAlmostEqual(ours[step], loss, delta=1e-10, msg=f"{name}, step {step}")


class Qwen3VlTrainingTest(Scratch):
    def test_equal_losses_on_every_mesh(self):
        saves = ["--checkpoint.interval", "1", "--checkpoint.keep_latest_k", "0"]
        one, ranks = self.train("one", 1, saves)
        self.assertIn("000005", ranks.outputs[0])  # Damaged.
        self.assertTrue(all(value > 1 for value in one.values()), one)
        for name, (world, mesh) in MESHES.items():
            split, _ = self.train(name, world, [*mesh, "--checkpoint.no_enable"])
            self.assert_equal(split, one, name)
        shutil.rmtree(self.folder / "one/checkpoint/step-2")
        resumed, _ = self.train("one", 2, [*saves, TENSOR, "2"])
        self.assert_equal(resumed, one, "resumed")

    def test_failures_are_named(self):
        write_tokenizer(self.folder / "other", WORDS, special=[SPECIAL[0], *SPECIAL[3:], *SPECIAL[1:3]])
        ranks = self.start("ids", 1, ["--checkpoint.no_enable"], **{"model.hf_assets_path": "other"})
        self.assertEqual(ranks.wait(), [11], "\n".join(ranks.outputs))
        self.assertIn("the tokenizer's token <|image_pad|> is 3, but that of qwen3_vl debugmodel is 5", ranks.outputs[0])


class LongTest(Scratch):
    def test_packed_rows_with_and_without_pictures(self):
        """Several samples share a row, and some rows have no picture."""
        mixed = {"training.dataset": "obelics", "training.dataset_path": "mixed", "data.packing_buffer_size": 5,
                 "data.max_images_per_batch": 3}
        one, _ = self.train("packed", 1, ["--checkpoint.no_enable"], **mixed)
        split, _ = self.train("packed-cp", 2, [CONTEXT, "2", "--checkpoint.no_enable"], **mixed)
        self.assert_equal(split, one, "cp")

    def test_more_meshes(self):
        for data in ({}, {"training.dataset": "obelics", "training.dataset_path": "mixed", "data.packing_buffer_size": 5}):
            data = data | {"training.global_batch_size": 8}
            one, _ = self.train(f"one{len(data)}", 1, ["--checkpoint.no_enable"], **data)
            for name, (world, mesh) in (MESHES | MORE).items():
                split, _ = self.train(f"{name}{len(data)}", world, [*mesh, "--checkpoint.no_enable"], **data)
                self.assert_equal(split, one, name)

    def test_only_texts_and_a_step_resumes_everywhere(self):
        texts = {"training.dataset": "obelics", "training.dataset_path": "texts", "training.steps": 4, "training.global_batch_size": 8}
        saves = ["--checkpoint.interval", "2", "--checkpoint.keep_latest_k", "0"]
        one, _ = self.train("texts", 2, saves, **texts)
        self.assertLess(one[4], one[1])
        for name, (world, mesh) in MORE.items():
            shutil.rmtree(self.folder / "texts/checkpoint/step-4")
            resumed, _ = self.train("texts", world, [*saves, *mesh], **texts)
            self.assert_equal(resumed, one, name)


class TransformersTest(Scratch):
    """The batch is made again from the same files by transformers' processor and the tokenizers package."""

    def setUp(self):
        import torch
        from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLConfig

        from qwen3_vl_model_oracle_test import draw

        torch.manual_seed(7)
        text_config = {"vocab_size": 2048, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6, "num_attention_heads": 16,
                       "num_key_value_heads": 8, "head_dim": 16, "max_position_embeddings": 4096, "tie_word_embeddings": True,
                       "rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True}}
        vision = {"depth": 4, "hidden_size": 128, "intermediate_size": 256, "num_heads": 2, "patch_size": 16, "out_hidden_size": 256,
                  "num_position_embeddings": 256, "deepstack_visual_indexes": [1, 2]}
        self.config = Qwen3VLConfig(text_config=text_config, vision_config=vision, image_token_id=IMAGE, video_token_id=VIDEO,
                                    vision_start_token_id=START, vision_end_token_id=END, tie_word_embeddings=True)
        self.config._attn_implementation = "eager"
        from transformers import Qwen3VLForConditionalGeneration

        self.model = Qwen3VLForConditionalGeneration(self.config)
        draw(self.model)
        self.model.save_pretrained(self.folder / "weights")

    def write_pictures(self, sizes):
        """Writes one sample for each size. Returns pictures and captions."""
        (self.folder / "sized").mkdir()
        samples = [(png(*size, i), text(i)) for i, size in enumerate(sizes)]
        with tarfile.open(self.folder / "sized/a.tar", "w") as archive:
            for i, (picture, caption) in enumerate(samples):
                for name, content in ((f"{i:06d}.png", picture), (f"{i:06d}.txt", caption.encode())):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
        return samples

    def batch(self, samples, limits):
        """Returns the model's inputs and the labels of the samples, one a row."""
        import torch
        from PIL import Image
        from tokenizers import Tokenizer
        from transformers import Qwen2VLImageProcessor

        processor = Qwen2VLImageProcessor(patch_size=16, temporal_patch_size=2, merge_size=2, image_mean=[0.5] * 3, image_std=[0.5] * 3,
                                          min_pixels=limits[0], max_pixels=limits[1])
        images = processor([Image.open(io.BytesIO(picture)) for picture, _ in samples], return_tensors="pt")
        tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer/tokenizer.json"))
        rows, labels = [], []
        for (_, caption), grid in zip(samples, images["image_grid_thw"].tolist(), strict=True):
            words = SPECIAL[3] + SPECIAL[5] * (grid[1] * grid[2] // 4) + SPECIAL[4] + caption + SPECIAL[2]
            row = tokenizer.encode(words, add_special_tokens=False).ids
            self.assertEqual(row[-1], EOS)
            targets = [-100 if token in (IMAGE, START, END) else token for token in row[1:]] + [-100]
            rows.append(row + [PAD] * (64 - len(row)))
            labels.append(targets + [-100] * (64 - len(row)))
        inputs = {"input_ids": torch.tensor(rows), "image_grid_thw": images["image_grid_thw"], "pixel_values": images["pixel_values"].double()}
        return inputs, torch.tensor(labels)

    def test_first_loss_and_norm_are_transformers(self):
        import torch
        from transformers import Qwen3VLForConditionalGeneration
        from transformers.models.qwen3_vl import modeling_qwen3_vl

        from qwen3_vl_model_oracle_test import in_fp64, widen

        limits = 4096, 16384
        write_processor(self.folder / "tokenizer", *limits)
        samples = self.write_pictures([(70, 50), (200, 180), (40, 31), (128, 96)])
        changes = {"training.dataset_path": "sized", "training.steps": 1, "training.local_batch_size": 4, "data.max_patches_per_image": 256}
        first = ["--checkpoint.interval", "1", "--checkpoint.initial_load_in_hf", "--checkpoint.initial_load_path",
                 str(self.folder / "weights"), "--checkpoint.last_save_in_hf", "--checkpoint.last_save_model_only"]
        got, _ = self.train("from-hf", 1, first, **changes)
        lines = [json.loads(line) for line in (self.folder / "from-hf/metrics.jsonl").read_text().splitlines()]
        norm = next(line["grad_norm"] for line in lines if "grad_norm" in line)
        inputs, labels = self.batch(samples, limits)
        with in_fp64(modeling_qwen3_vl, "Qwen3VL"):
            widen(self.model, self.config)
            logits = self.model(**inputs).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            loss.backward()
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        expected = torch.stack([gradient.norm() for gradient in gradients]).norm().item()
        print(f"loss {got[1]} differs by {abs(got[1] / loss.item() - 1):.1e}, norm {norm} by {abs(norm / expected - 1):.1e}")
        self.assertAlmostEqual(got[1] / loss.item(), 1, delta=1e-10)
        self.assertAlmostEqual(norm / expected, 1, delta=1e-10)
        back = Qwen3VLForConditionalGeneration.from_pretrained(self.folder / "from-hf/checkpoint/step-1")
        self.assertEqual(set(back.state_dict()), set(self.model.state_dict()))
        self.assertEqual(back.config.vision_config.deepstack_visual_indexes, [1, 2])
        changed = [name for name, value in back.state_dict().items() if not torch.equal(value, self.model.state_dict()[name].float())]
        self.assertGreater(len(changed), 100)


if __name__ == "__main__":
    long = "--long" in sys.argv
    if long:
        sys.argv.remove("--long")
    suite = unittest.TestSuite()
    for case in (LongTest,) if long else (Qwen3VlTrainingTest, TransformersTest):
        suite.addTests(unittest.defaultTestLoader.loadTestsFromTestCase(case))
    sys.exit(not unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful())
