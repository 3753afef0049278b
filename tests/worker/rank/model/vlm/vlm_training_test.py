"""Tests a tiny vision-language model on pictures with captions and on rows of several texts and pictures: the losses are equal on
every mesh, a job resumes on other meshes with the same rows to the same place in the data, packed or not, validation has the same loss everywhere, batches
without pictures train, and samples that cannot be used are skipped and named."""

import json
import pathlib
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3].parent / "testing"))
from paths import SOURCE
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(SOURCE / "tests/worker/rank/runtime"))
from titan_rank_test import Ranks, losses  # noqa: E402
from vlm_data import BOS, EOS, IMAGE, write_archive, write_interleaved, write_tokenizer  # noqa: E402

DEGREE = "--parallelism.{}_parallel_degree"
TENSOR, CONTEXT, PIPELINE = (DEGREE.format(axis) for axis in ("tensor", "context", "pipeline"))
MESHES = {"fsdp": ["--activation_checkpoint.mode", "full"], "tp": [TENSOR, "2"], "cp": [CONTEXT, "2"], "pp": [PIPELINE, "2"],
          "ddp": ["--parallelism.data_parallel_replicate_degree", "2", "--parallelism.data_parallel_shard_degree", "1"]}  # fmt: skip
HSDP = ["--parallelism.data_parallel_replicate_degree", "2"]  # On four ranks.


def without(value, key):
    """Returns a copy of JSON without the members of this name."""
    if isinstance(value, list):
        return [without(one, key) for one in value]
    if not isinstance(value, dict):
        return value
    return {name: without(one, key) for name, one in value.items() if name != key}


class VlmTrainingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.folder = pathlib.Path(cls.scratch.name)
        write_tokenizer(cls.folder / "tokenizer")
        write_archive(cls.folder / "pictures/shard-000.tar", 24, bad=[9])
        write_interleaved(cls.folder / "mixed/rows.parquet", 30)
        write_interleaved(cls.folder / "texts/rows.parquet", 12, with_images=lambda row: False)

    def start(self, name, world, extra=(), **changes):
        words = {"model.name": "vlm", "model.flavor": "tiny-debug", "model.hf_assets_path": self.folder / "tokenizer",
                 "training.dtype": "float64", "training.steps": 4, "training.seq_len": 64, "data.patch_size": 4,
                 "data.max_patches_per_image": 24, "data.max_images_per_batch": 4, "training.local_batch_size": 2,
                 "training.global_batch_size": 4, "training.dataset": "cc12m", "training.dataset_path": self.folder / "pictures",
                 "debug.seed": 5, "optimizer.lr": 1e-2, "lr_scheduler.warmup_steps": 1} | changes  # fmt: skip
        flags = []
        for key, value in words.items():
            flags += [f"--{key}", str(value)]
        return Ranks(str(self.folder / name), world, [*flags, *extra])

    def train(self, name, world, extra=(), **changes):
        """Returns the losses by step, and the ranks."""
        ranks = self.start(name, world, extra, **changes)
        self.assertEqual(ranks.wait(), [0] * world, "\n".join(ranks.outputs))
        return losses(ranks.folder), ranks

    def held_out(self, name):
        lines = [json.loads(line) for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()]
        return [line["validation_metrics/loss"] for line in lines if "validation_metrics/loss" in line]

    def data_position(self, name, step):
        """Returns the place in the data after a step, as a checkpoint has it, without the number of samples that were skipped."""
        state = json.loads((self.folder / name / f"checkpoint/step-{step}/manifest.json").read_text())["train_state"]
        return without(state["dataloader"]["cursor"], "bad_samples")

    def assert_resumes(self, name, meshes, losses_before, **changes):
        """Tests that the job resumes from step 2 on other meshes, with the same losses and the same position in the data."""
        position = self.data_position(name, 4)
        for world, mesh in meshes:
            shutil.rmtree(self.folder / name / "checkpoint/step-4")
            own = changes | {"training.local_batch_size": 1} if world == 4 else changes
            resumed, _ = self.train(name, world, ["--checkpoint.interval", "2", *mesh], **own)
            self.assert_equal(resumed, losses_before, f"{name} resumed on {world} ranks {mesh}")
            self.assertEqual(self.data_position(name, 4), position, f"{name} resumed on {world} ranks {mesh}")

    def assert_equal(self, ours, theirs, name):
        self.assertEqual(sorted(ours), sorted(theirs), name)
        for step, loss in theirs.items():
            self.assertAlmostEqual(ours[step], loss, delta=1e-10, msg=f"{name}, step {step}")

    def test_captions_have_equal_losses_on_every_mesh(self):
        validation = ["--validation.enable", "--validation.freq", "4", "--validation.steps", "-1", "--validation.dataset", "obelics",
                      "--validation.dataset_path", str(self.folder / "mixed"), "--validation.seq_len", "64",
                      "--validation.local_batch_size", "4"]  # fmt: skip
        one, ranks = self.train("one", 1, ["--checkpoint.interval", "2", *validation])
        self.assertEqual(sorted(one), [1, 2, 3, 4])
        self.assertTrue(all(value > 1 for value in one.values()), one)
        self.assertIn("000009", ranks.outputs[0])  # Damaged.
        self.assertEqual(len(self.held_out("one")), 2)  # After the first step and the fourth.
        for name, mesh in MESHES.items():
            split, _ = self.train(name, 2, [*mesh, "--checkpoint.no_enable", *(validation if name in ("fsdp", "cp") else [])])
            self.assert_equal(split, one, name)
        split, _ = self.train("hsdp", 4, [*HSDP, "--checkpoint.no_enable"], **{"training.local_batch_size": 1})
        self.assert_equal(split, one, "hsdp")
        for name in ("fsdp", "cp"):
            for mine, theirs in zip(self.held_out(name), self.held_out("one"), strict=True):
                self.assertAlmostEqual(mine, theirs, delta=1e-10)
        self.assert_resumes("one", [(2, [TENSOR, "2"]), (4, HSDP)], one)

    def test_packed_rows_with_and_without_pictures(self):
        """Rows depend on all samples before. A rank's rows may have no picture, and a limit ends batches early."""
        mixed = {"training.dataset": "obelics", "training.dataset_path": self.folder / "mixed", "data.packing_buffer_size": 5,
                 "data.max_images_per_batch": 3}
        one, _ = self.train("packed", 1, ["--checkpoint.interval", "2"], **mixed)
        for name, mesh in {"tp": [TENSOR, "2"], "cp": [CONTEXT, "2"]}.items():  # Pictures are in all parts of a row.
            split, _ = self.train(f"packed-{name}", 2, [*mesh, "--checkpoint.no_enable"], **mixed)
            self.assert_equal(split, one, name)
        self.assert_resumes("packed", [(2, [])], one, **mixed)  # A rank may have rows without pictures.

    def test_only_texts_and_weights_as_in_hugging_face(self):
        texts = {"training.dataset": "obelics", "training.dataset_path": self.folder / "texts"}
        last = ["--checkpoint.interval", "4", "--checkpoint.last_save_in_hf", "--checkpoint.last_save_model_only"]
        curve, _ = self.train("texts", 2, last, **texts)
        self.assertLess(curve[4], curve[1])
        # A folder may have the weights of Llama and of SigLIP 2 side by side. The projector, which neither has, is drawn.
        saved, folder = self.folder / "texts/checkpoint/step-4", self.folder / "both"
        weights = {key: value for path in saved.glob("*.safetensors") for key, value in load_file(path).items()}
        folder.mkdir()
        for name, prefix in (("language", ("model.", "lm_head.")), ("encoder", "vision_model.")):
            some = {key: value for key, value in weights.items() if key.startswith(prefix)}
            save_file(some, folder / f"{name}.safetensors")
        loaded, _ = self.train("loaded", 1, ["--checkpoint.initial_load_in_hf", "--checkpoint.initial_load_path", str(folder)], **texts)
        self.assertLess(loaded[1], curve[4])

    def test_images_are_balanced_over_ranks(self):
        """The rows of a step are dealt to other ranks, and the losses stay. Row 9, whose picture is damaged, is the costliest of its
        step, so that the first rank gets it and not the second."""
        size_of = lambda i: (24, 16) if i % 4 == 1 else (4 + i % 5, 4)  # noqa: E731
        write_archive(self.folder / "skewed/shard-000.tar", 20, bad=[9], size_of=size_of)
        skewed = {"training.dataset_path": self.folder / "skewed", "training.local_batch_size": 1, "training.global_batch_size": 8}
        one, _ = self.train("skewed-one", 1, ["--checkpoint.no_enable"], **skewed)
        reader = {}
        for name, flags in (("plain", []), ("balanced", ["--data.balance_images"])):
            split, ranks = self.train(f"skewed-{name}", 2, ["--checkpoint.interval", "2", *flags], **skewed)
            self.assert_equal(split, one, name)
            reader[name] = ["000009" in output for output in ranks.outputs]
        self.assertEqual(reader, {"plain": [False, True], "balanced": [True, False]})
        shutil.rmtree(self.folder / "skewed-balanced/checkpoint/step-4")
        resumed, _ = self.train("skewed-balanced", 2, ["--checkpoint.interval", "2", "--data.balance_images"], **skewed)
        self.assertEqual(resumed, split, "bit for bit")

    def test_bad_samples_are_counted_over_ranks(self):
        """Rank 0 reads samples 0, 1, 4, 5, ..., and rank 1 the others. Neither has three bad ones, but all have."""
        write_archive(self.folder / "bad/shard-000.tar", 24, bad=[1, 2, 5])
        keys = {"training.dataset_path": self.folder / "bad", "training.dataloader.max_bad_samples": 2}
        ranks = self.start("too-many", 2, ["--checkpoint.no_enable"], **keys)
        self.assertEqual(ranks.wait(), [11, 11], "\n".join(ranks.outputs))
        for output in ranks.outputs:
            self.assertIn("3 unusable samples of all ranks in the pass, more than dataloader.max_bad_samples = 2", output)
        keys["training.dataloader.max_bad_samples"] = -1
        _, ranks = self.train("any-number", 2, ["--checkpoint.no_enable"], **keys)
        for rank, named in enumerate((["000001", "000005"], ["000002"])):
            for number in ("000001", "000002", "000005"):
                self.assertEqual(number in ranks.outputs[rank], number in named, (rank, number))
        last = json.loads((self.folder / "any-number/metrics.jsonl").read_text().splitlines()[-1])
        self.assertEqual(last["data/bad_samples"], 3)
        for figure in ("rows_per_second", "waited(%)", "busy_threads", "rows_ready"):
            self.assertIn(f"data/{figure}", last)

    def test_the_tower_has_weights_of_its_own(self):
        """The tower's weights are those of a folder, and all others are drawn."""
        texts = {"training.dataset": "obelics", "training.dataset_path": self.folder / "texts", "training.steps": 1,
                 "optimizer.lr": 1e-30}  # fmt: skip
        last = ["--checkpoint.last_save_in_hf", "--checkpoint.last_save_model_only"]

        def weights_of(name, world, extra=(), **changes):
            self.train(name, world, [*last, *extra], **texts | changes)
            return {key: value for path in (self.folder / name / "checkpoint/step-1").glob("*.safetensors")
                    for key, value in load_file(path).items()}  # fmt: skip

        of_folder, drawn = weights_of("tower", 1), weights_of("drawn", 1, **{"debug.seed": 7})
        released = self.folder / "siglip"  # As released: with the text's tower, and without a projector.
        released.mkdir()
        towers = {key: value for key, value in of_folder.items() if key.startswith("vision_model.")}
        some = towers["vision_model.post_layernorm.bias"]
        others = {"text_model.head.bias": some.clone(), "logit_scale": some[:1].clone()}
        save_file(towers | others, released / "model.safetensors")
        config = json.loads((self.folder / "tower/checkpoint/step-1/config.json").read_text())["vision_config"]
        (released / "config.json").write_text(json.dumps({"model_type": "siglip2", "vision_config": config}))
        path = ["--checkpoint.initial_load_vision_path", str(released)]
        loaded = weights_of("with-tower", 2, path, **{"debug.seed": 7})
        self.assertEqual(loaded.keys(), drawn.keys())
        for key, value in loaded.items():
            same = (of_folder if key.startswith("vision_model.") else drawn)[key]
            self.assertTrue(value.equal(same), key)
        self.assertFalse(loaded["model.embed_tokens.weight"].equal(of_folder["model.embed_tokens.weight"]))
        self.assertFalse(loaded["vision_model.embeddings.position_embedding.weight"].equal(
            drawn["vision_model.embeddings.position_embedding.weight"]))  # fmt: skip

        missing = "vision_model.encoder.layers.0.mlp.fc1.weight"
        for name, tensors, settings, message in (
            ("lacks", {key: value for key, value in towers.items() if key != missing}, config, missing),
            ("deeper", towers | {missing.replace(".0.", ".9."): towers[missing].clone()}, config, "layers.9.mlp.fc1.weight"),
            ("other", towers, config | {"num_attention_heads": 1}, "config.json says num_attention_heads 1, need 2"),
        ):
            folder = self.folder / f"siglip-{name}"
            folder.mkdir()
            save_file(tensors, folder / "model.safetensors")
            (folder / "config.json").write_text(json.dumps(settings))
            ranks = self.start(f"tower-{name}", 1, ["--checkpoint.initial_load_vision_path", str(folder)], **texts)
            self.assertEqual(ranks.wait(), [11], "\n".join(ranks.outputs))
            self.assertIn("checkpoint.initial_load_vision_path: ", ranks.outputs[0])
            self.assertIn(message, ranks.outputs[0])

    def test_failures_are_named(self):
        write_tokenizer(self.folder / "plain", special=[BOS, EOS, *IMAGE[:3]])
        for name, changes, message in (
            ("no-pad", {"model.hf_assets_path": self.folder / "plain"}, "the tokenizer has no token <|pad|>"),
            ("bad", {"training.dataloader.max_bad_samples": 0, "training.steps": 8}, "more than dataloader.max_bad_samples = 0"),
        ):
            ranks = self.start(name, 1, ["--checkpoint.no_enable"], **changes)
            self.assertEqual(ranks.wait(), [11], "\n".join(ranks.outputs))
            self.assertIn(message, ranks.outputs[0])


if __name__ == "__main__":
    unittest.main()
