"""Tests a model library that is compiled outside of the tree with only the exported headers: it trains with the same losses on
one rank and under FSDP, TP and CP. Also tests titan-rank's errors for libraries that it cannot use."""

import contextlib
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import safetensors

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "testing"))
from paths import BUILD, SOURCE

sys.path.insert(0, str(SOURCE / "tests/worker/rank/runtime"))
from titan_rank_test import Ranks, losses  # noqa: E402

EXAMPLE = SOURCE / "tests/worker/rank/model/plugin/parallel_block.cc"
FLOAT64 = ["--training.dtype", "float64", "--training.steps", "3"]


def compile_c(folder, name, code, language="c"):
    library = folder / (name + ".so")
    subprocess.run(["g++" if language == "c++" else "gcc", "-shared", "-fPIC", "-o", library, "-x", language, "-"], check=True,
                   input=code, text=True)
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

    def denoise(self, name, world, steps=6, extra=()):
        """Trains the flow of plugin/denoiser.cc, whose batches, loss and units differ from a language model's. Returns the losses."""
        ranks = Ranks(str(self.folder / name), world,
                      ["--experimental.custom_import", str(BUILD / "tests/libdenoiser.so"), "--model.name", "denoiser", "--model.flavor", "tiny",
                       *FLOAT64, "--training.steps", str(steps), "--training.local_batch_size", "8", "--training.global_batch_size", "16",
                       "--optimizer.lr", "1e-2", "--lr_scheduler.warmup_steps", "1", *extra])
        self.assertEqual(ranks.wait(), [0] * world, "\n".join(ranks.outputs))
        return losses(ranks.folder), ranks

    def test_trains_a_model_that_is_not_a_language_model(self):
        """Rows, loss terms, units and validation are the objective's, on any mesh, and a job resumes at its row."""
        validation = ["--validation.enable", "--validation.freq", "6", "--validation.steps", "2", "--validation.local_batch_size", "8"]
        one, ranks = self.denoise("flow", 1, extra=["--checkpoint.interval", "3", *validation])
        lines = [json.loads(line) for line in (self.folder / "flow/metrics.jsonl").read_text().splitlines()]
        self.assertEqual({line["step"]: line["n_tokens_seen"] for line in lines if "n_tokens_seen" in line}, {step: 16 * step for step in one})
        held_out = [line["validation_metrics/loss"] for line in lines if "validation_metrics/loss" in line]
        self.assertEqual(len(held_out), 2)  # After the first step and the sixth.
        self.assertLess(held_out[1], held_out[0])
        for name, extra in {"fsdp": [], "ddp": ["--parallelism.data_parallel_replicate_degree", "2", "--parallelism.data_parallel_shard_degree", "1"],
                            "pp": ["--parallelism.pipeline_parallel_degree", "2", "--activation_checkpoint.mode", "full"]}.items():
            split, _ = self.denoise("flow_" + name, 2, extra=[*extra, "--checkpoint.no_enable"])
            for step, loss in one.items():
                self.assertAlmostEqual(split[step], loss, delta=1e-10, msg=f"{name}, step {step}")
        shutil.rmtree(self.folder / "flow/checkpoint/step-6")
        resumed, _ = self.denoise("flow", 2, extra=["--checkpoint.interval", "3"])
        self.assertAlmostEqual(resumed[6], one[6], delta=1e-10)

    def test_exports_a_hugging_face_folder(self):
        self.train("saved", 1, [])
        target = self.folder / "exported"
        alone = subprocess.run([BUILD / "bin/titan-checkpoint", "export", self.folder / "saved/checkpoint/step-3", target], capture_output=True, text=True)
        self.assertNotEqual(alone.returncode, 0)
        self.assertIn(f"needs --library {self.library}", alone.stderr)
        subprocess.run([BUILD / "bin/titan-checkpoint", "export", self.folder / "saved/checkpoint/step-3", target,
                        "--model", "parallel_block", "--flavor", "tiny", "--library", self.library], check=True)
        with safetensors.safe_open(next(target.glob("*.safetensors")), "pt") as weights:
            names = set(weights.keys())
        self.assertEqual(len(names), 3 + 2 * 8)
        self.assertLessEqual({"transformer.wte.weight", "transformer.h.1.ln_1.weight", "transformer.h.0.mlp.up_proj.weight"},
                             names)
        self.assertEqual(json.loads((target / "config.json").read_text())["model_type"], "parallel_block")

    def test_runs_through_the_daemons(self):
        """titanctl and the controller cannot load the library: they accept its model, and its path becomes absolute."""
        words = [SOURCE / "configs/llama3_tiny.toml", "--model.name", "parallel_block", "--model.flavor", "tiny",
                 "--experimental.custom_import", "my_model.so", "--job.dump_folder", self.folder / "daemons",
                 "--training.steps", "2", "--training.seq_len", "64", "--lr_scheduler.warmup_steps", "1",
                 "--validation.no_enable", "--nproc", "2", "--parallelism.tensor_parallel_degree", "2"]
        for verb in ("validate", "run"):
            done = subprocess.run([BUILD / "bin/titanctl", verb, *words], cwd=self.folder, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def refusal(self, library, extra=(), code=10, name="parallel_block"):
        """Returns the output of a rank that must end with `code`."""
        ranks = Ranks(str(self.folder / "refused"), 1,
                      ["--experimental.custom_import", library, "--model.name", name, "--model.flavor", "tiny",
                       "--checkpoint.no_enable", "--training.steps", "1", *extra])
        self.assertEqual(ranks.wait(), [code], "\n".join(ranks.outputs))
        return ranks.outputs[0]

    def test_refuses_files_that_are_not_model_libraries(self):
        self.assertIn("no such file on this node", self.refusal(str(self.folder / "absent.so")))
        (self.folder / "folder.so").mkdir()
        self.assertIn("no such file on this node", self.refusal(str(self.folder / "folder.so")))
        text = self.folder / "text.so"
        text.write_text("not a library")
        self.assertIn("text.so: cannot be loaded: ", self.refusal(str(text)))
        self.assertIn("has no TITAN_MODEL_PLUGIN", self.refusal(compile_c(self.folder, "nothing", "int nothing;")))
        missing = compile_c(self.folder, "missing", """void titan_absent();
            void* titan_model_plugin() { titan_absent(); return 0; }""")
        self.assertIn("cannot be loaded: ", message := self.refusal(missing))
        self.assertIn("undefined symbol: titan_absent", message)
        throws = compile_c(self.folder, "throws", """#include <stdexcept>
            static const int early = [] { throw std::runtime_error("too early"); return 1; }();""", language="c++")
        self.assertIn("loading it ends the process with signal 6", message := self.refusal(throws))
        self.assertIn("too early", message)
        crash = compile_c(self.folder, "crash", "__attribute__((constructor)) void start() { __builtin_trap(); }")
        self.assertIn("loading it ends the process with signal 4", self.refusal(crash))
        for status in (0, 7):
            leaves = compile_c(self.folder, f"leaves_{status}", """#include <stdlib.h>
                __attribute__((constructor)) void start() { exit(%d); }""" % status)
            self.assertIn(f"loading it ends the process with exit status {status}: ", self.refusal(leaves))
        self.assertIn("shared library", self.refusal("my_models.module"))

    def test_libraries_must_be_in_granted_folders(self):
        """The rank checks the file that it loads: a link in an allowed folder does not allow a target elsewhere."""
        granted = self.folder / "granted"
        granted.mkdir()
        (granted / "link.so").symlink_to(self.library)
        shutil.copy(self.library, granted / "copy.so")
        absent = self.folder / "none"
        with unittest.mock.patch.dict(os.environ, TITAN_RANK_PLUGIN_FOLDERS=f"{absent}:{granted}"):
            for library in (self.library, granted / "link.so", granted / "../my_model.so"):
                self.assertIn("is not in a folder that this node grants", self.refusal(str(library)))
            self.train("granted_run", 1, ["--experimental.custom_import", str(granted / "copy.so"), "--checkpoint.no_enable"])
        with unittest.mock.patch.dict(os.environ, TITAN_RANK_PLUGIN_FOLDERS=""):
            self.assertIn("grants to libraries (titan-worker --plugin-folder): none", self.refusal(str(granted / "copy.so")))

    def test_refuses_libraries_of_other_builds(self):
        """The error names what differs: the form of the library, or any of the four facts about its compilation."""
        old = """struct { const char* compiler; unsigned long layout; void* families; } plugin = {"titan 0.0.1", 7, 0};
                 void* titan_model_plugin() { return &plugin; }"""
        self.assertIn("another plugin format", self.refusal(compile_c(self.folder, "old", old)))

        def library(name, stated):
            words = ", ".join(json.dumps(word) for word in stated)
            return compile_c(self.folder, name, """struct { unsigned form; const char* words[4]; void* families; } plugin = {
                0x71740003, {%s}, 0}; void* titan_model_plugin() { return &plugin; }""" % words)

        what = ("Titan", "LibTorch", "compiler", "Titan's headers (hash)")
        message = self.refusal(library("all", ["other"] * 4))
        self.assertIn("compile it again with this installation's headers", message)
        mine = re.findall('"other" where this titan-rank has "([^"]*)"', message)
        self.assertEqual(len(mine), 4, message)
        self.assertRegex(mine[1], r"^2\.")
        self.assertRegex(mine[2], r"C\+\+ 202002L, string ABI 1$")
        self.assertIn(mine[3], (BUILD / "plugin/include/plugin_headers.h").read_text())
        for place, name in enumerate(what):
            stated = [*mine[:place], "other", *mine[place + 1:]]
            message = self.refusal(library(f"other_{place}", stated))
            self.assertEqual(re.findall('was compiled with (.*) "other" where this titan-rank has "([^"]*)"; compile', message),
                             [(name, mine[place])])

    def test_notices_changed_headers(self):
        """The number is a hash of the headers' text, so even a changed comment changes it. Headers that titan-rank was not built
        from are not exported."""
        tree = self.folder / "tree"
        for folder in ("common", "worker", "deploy"):
            shutil.copytree(SOURCE / folder, tree / folder)
        script = tree / "deploy/plugin_headers.sh"
        of = lambda: subprocess.run([script, "hash"], check=True, capture_output=True, text=True).stdout.strip()  # noqa: E731
        before = of()
        self.assertIn(before, (BUILD / "plugin/include/plugin_headers.h").read_text())
        header = tree / "worker/rank/nn/block.h"
        header.write_text(header.read_text() + "// One more line.\n")
        self.assertNotEqual(of(), before)
        done = subprocess.run([tree / "deploy/plugin_sdk.sh", self.folder / "stale", BUILD], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("headers have changed since titan-rank was built", done.stderr)

    # Changes to the example: mistakes that TITAN_TEST_MISTAKE selects.
    MISTAKES = (
        ("namespace {\n", """#include <cstdlib>
            namespace {
            bool mistake(const std::string& name) {
              const char* selected = std::getenv("TITAN_TEST_MISTAKE");
              return selected != nullptr && selected == name;
            }
            """),
        ("    return input + attention.forward(x, context) + feed_forward.forward(x);",
         """if (mistake("shape")) return input.narrow(1, 0, 1) + attention.forward(x, context).narrow(1, 0, 1);
            return input + attention.forward(x, context) + feed_forward.forward(x);"""),
        ("layer < spec.n_layers", 'layer < spec.n_layers + (mistake("layers") ? 1 : 0)'),
        ("spec.n_kv_heads = 2;", 'spec.n_kv_heads = mistake("heads") ? 3 : 2;'),
        ("  model::add_attention_projections(names",
         """if (mistake("a name")) names.erase(names.begin() + 2);
            model::add_attention_projections(names"""),
        ("""  return {{.name = "parallel_block",
           .flavors = {tiny()},
           .build = build,
           .hf = model::HfFamily{"parallel_block", names, config}}};""",
         """  model::PluginFamily family{.name = "parallel_block", .flavors = {tiny()}, .build = build,
                                          .hf = model::HfFamily{"parallel_block", names, config}};
            if (mistake("throws")) throw std::runtime_error("no table");
            if (mistake("nothing")) return {};
            if (mistake("taken")) family.name = "llama3";
            if (mistake("no build")) family.build = nullptr;
            if (mistake("two flavors")) family.flavors.push_back(tiny());
            if (mistake("no names")) family.hf.reset();
            if (mistake("twice")) return {family, family};
            return {family};"""),
    )

    @functools.cached_property
    def mistaken(self):
        text = EXAMPLE.read_text()
        for old, new in self.MISTAKES:
            self.assertIn(old, text)
            text = text.replace(old, new, 1)
        (self.folder / "mistaken.cc").write_text(text)
        library = self.folder / "mistaken.so"
        if not library.exists():
            subprocess.run([self.folder / "sdk/build", library, "mistaken.cc"], check=True, cwd=self.folder)
        return str(library)

    def refusal_of(self, mistake, extra=(), code=10):
        with unittest.mock.patch.dict(os.environ, TITAN_TEST_MISTAKE=mistake):
            return self.refusal(self.mistaken, extra, code)

    def test_checks_what_a_library_registers(self):
        with contextlib.chdir(self.folder):  # A relative path is relative to the working directory, not to the loader's search path.
            self.assertIn('unknown value "huge" (known: tiny)', self.refusal("my_model.so", ["--model.flavor", "huge"]))
        self.assertIn('has a model "parallel_blok"', self.refusal(self.library, ["--model.name", "parallel_blok"]))
        for mistake, expected in {
                "twice": 'registers family "parallel_block" twice',
                "taken": 'model "llama3" exists already',
                "no build": 'family "parallel_block" needs a name, a build function and flavors',
                "nothing": "registers no family",
                "two flavors": 'flavor "tiny": is registered twice',
                "heads": 'flavor "tiny": n_heads: 4 is not a multiple of n_kv_heads, 3',
                "throws": "its families' function threw: no table",
                "layers": "its blocks are tok_embeddings, layers.0, layers.1, layers.2, output; they must be"}.items():
            with self.subTest(mistake):
                self.assertIn(expected, self.refusal_of(mistake))

    def test_checks_what_a_model_computes(self):
        message = self.refusal_of("shape", code=11)
        self.assertRegex(message, r"MODEL: block layers.0 returns \[\d+, 1, 64\] for \[\d+, \d+, 64\]; expected \[rows, tok")

    def export(self, source, target, library):
        return subprocess.run([BUILD / "bin/titan-checkpoint", "export", source, target, "--model", "parallel_block", "--flavor",
                               "tiny", "--library", library], capture_output=True, text=True)

    def test_refuses_weights_without_names(self):
        self.train("named", 1, [])
        step, exported = self.folder / "named/checkpoint/step-3", self.folder / "hf"
        self.assertEqual(self.export(step, exported, self.library).returncode, 0)
        load = ["--checkpoint.enable", "--checkpoint.initial_load_in_hf", "--checkpoint.initial_load_path", str(exported)]
        self.assertIn("this model has no Hugging Face names", self.refusal_of("no names", load, code=11))
        self.assertIn("no use for 1 of its tensors: transformer.ln_f.weight", self.refusal_of("a name", load, code=11))
        for mistake, expected in {"no names": "the weights of parallel_block have no Hugging Face names",
                                  "a name": "norm.weight"}.items():
            with unittest.mock.patch.dict(os.environ, TITAN_TEST_MISTAKE=mistake):
                done = self.export(step, self.folder / "partly", self.mistaken)
            self.assertNotEqual(done.returncode, 0, mistake)
            self.assertIn(expected, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=["plugin_test.py"])
