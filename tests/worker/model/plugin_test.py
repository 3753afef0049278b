"""A model library compiled outside of the tree, from exported headers alone: trained on one rank, under FSDP, TP and CP
with the same losses; and what titan-rank says about libraries that it cannot use."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import safetensors

sys.path.insert(0, os.path.join(os.environ["TITAN_SOURCE"], "tests", "worker", "runtime"))
from titan_rank_test import Ranks, losses  # noqa: E402

SOURCE = pathlib.Path(os.environ["TITAN_SOURCE"])
BUILD = pathlib.Path(os.environ["TITAN_BIN"]).parent
EXAMPLE = SOURCE / "tests/worker/model/plugin/parallel_block.cc"
FLOAT64 = ["--training.dtype", "float64", "--training.steps", "3"]


def compile_c(folder, name, code):
    source = folder / (name + ".c")
    source.write_text(code)
    library = folder / (name + ".so")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    return str(library)


class PluginTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.folder = pathlib.Path(cls.scratch.name)
        sdk = cls.folder / "sdk"
        subprocess.run([SOURCE / "deploy/plugin_sdk.sh", sdk, BUILD], check=True)
        shutil.copy(EXAMPLE, cls.folder / "my_model.cc")
        cls.library = str(cls.folder / "my_model.so")
        subprocess.run([sdk / "build", cls.library, "my_model.cc"], check=True, cwd=cls.folder)

    def run_ranks(self, name, world, extra):
        ranks = Ranks(str(self.folder / name), world, ["--experimental.custom_import", self.library, *extra])
        return ranks, ranks.wait()

    def train(self, name, world, extra=("--checkpoint.no_enable",)):
        ranks, codes = self.run_ranks(
            name, world, ["--model.name", "parallel_block", "--model.flavor", "tiny", *FLOAT64, *extra])
        self.assertEqual(codes, [0] * world, "\n".join(ranks.outputs))
        return losses(ranks.folder)

    def test_trains_the_same_on_every_mesh(self):
        one = self.train("one", 1)
        self.assertEqual(sorted(one), [1, 2, 3])
        for name, extra in {"fsdp": [], "tp": ["--parallelism.tensor_parallel_degree", "2"],
                            "cp": ["--parallelism.context_parallel_degree", "2"],
                            "pp": ["--parallelism.pipeline_parallel_degree", "2"]}.items():
            split = self.train(name, 2, [*extra, "--checkpoint.no_enable"])
            for step, loss in one.items():
                self.assertAlmostEqual(split[step], loss, delta=1e-10, msg=f"{name}, step {step}")

    def test_its_weights_leave_as_a_hugging_face_folder(self):
        self.train("saved", 1, [])
        target = self.folder / "exported"
        subprocess.run([BUILD / "bin/titan-checkpoint", "export", self.folder / "saved/checkpoint/step-3", target,
                        "--model", "parallel_block", "--flavor", "tiny", "--library", self.library], check=True)
        with safetensors.safe_open(next(target.glob("*.safetensors")), "pt") as weights:
            names = set(weights.keys())
        self.assertEqual(len(names), 3 + 2 * 8)
        self.assertLessEqual({"transformer.wte.weight", "transformer.h.1.ln_1.weight", "transformer.h.0.mlp.up_proj.weight"},
                             names)
        self.assertEqual(json.loads((target / "config.json").read_text())["model_type"], "parallel_block")

    def test_goes_through_the_daemons(self):
        """titanctl and the controller cannot look into the library: they accept its model, and its path becomes absolute."""
        words = [SOURCE / "configs/llama3_tiny.toml", "--model.name", "parallel_block", "--model.flavor", "tiny",
                 "--experimental.custom_import", "my_model.so", "--job.dump_folder", self.folder / "daemons",
                 "--training.steps", "2", "--training.seq_len", "64", "--lr_scheduler.warmup_steps", "1",
                 "--validation.no_enable", "--nproc", "2", "--parallelism.tensor_parallel_degree", "2"]
        for verb in ("validate", "run"):
            done = subprocess.run([BUILD / "bin/titanctl", verb, *words], cwd=self.folder, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def refusal(self, library, extra=()):
        ranks = Ranks(str(self.folder / "refused"), 1,
                      ["--experimental.custom_import", library, "--model.name", "parallel_block",
                       "--model.flavor", "tiny", *extra])
        self.assertEqual(ranks.wait(), [10], "\n".join(ranks.outputs))
        return ranks.outputs[0]

    def test_libraries_that_cannot_be_used_are_named(self):
        self.assertIn("no such file on this node", self.refusal(str(self.folder / "absent.so")))
        nothing = compile_c(self.folder, "nothing", "int nothing;")
        self.assertIn("has no TITAN_MODEL_PLUGIN", self.refusal(nothing))
        other = compile_c(self.folder, "other", """
            struct { const char* compiler; unsigned long layout; void* families; } plugin = {"titan 0.0.1", 7, 0};
            void* titan_model_plugin() { return &plugin; }""")
        message = self.refusal(other)
        self.assertIn('was compiled for "titan 0.0.1"', message)
        self.assertIn("compile it again with this installation's headers", message)
        self.assertIn('unknown value "huge" (known: tiny)', self.refusal(self.library, ["--model.flavor", "huge"]))
        self.assertIn('has a model "parallel_blok"', self.refusal(self.library, ["--model.name", "parallel_blok"]))
        self.assertIn("shared library", self.refusal("my_models.module"))


if __name__ == "__main__":
    unittest.main(argv=["plugin_test.py"])
