"""Tests trainings with optimizer states in bf16 or 8-bit codes: they resume bit for bit, also on other meshes and with other
types, and learn as well as with float32. With TITAN_LONG=1 it compares 200 steps of Llama 3's debug model (minutes), otherwise 25
of a small one. TITAN_CURVES names a file for these curves, in the format of tests/bench/plot_curves.py."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import titan_rank_test
from titan_rank_test import CONFIG, RANK

LONG = bool(os.environ.get("TITAN_LONG"))
LIBRARY = os.path.join(os.path.dirname(RANK), "..", "tests", "libsmall_models.so")

# Six layers, 32 wide: embedding, head and feed-forward have codes, while smaller matrices keep float32.
SMALL = {
    "experimental.custom_import": LIBRARY, "model.name": "small_llama3", "model.flavor": "small", "training.seq_len": 32,
    "training.local_batch_size": 4, "training.global_batch_size": 8, "training.steps": 6, "lr_scheduler.warmup_steps": 1,
    "lr_scheduler.total_steps": 6, "metrics.log_freq": 1, "optimizer.lr": 3e-3, "debug.seed": 5, "comm.mode": "local_tensor",
    "resources.threads_per_rank": 1, "training.mixed_precision_param": "float32",
}  # fmt: skip
SAVES = {"checkpoint.enable": True, "checkpoint.interval": 3, "checkpoint.last_save_model_only": False, "checkpoint.keep_latest_k": 0}
STOCHASTIC = {"training.dtype": "bfloat16", "optimizer.stochastic_rounding": True}

# The loss curves of docs/benchmarks/low-precision.md come from one rank with bf16 layers.
STEPS = 200 if LONG else 25
DEBUG = {"model.name": "llama3", "model.flavor": "debugmodel", "experimental.custom_import": "", "resources.ranks": 1, "training.seq_len": 256,
         "training.local_batch_size": 2, "training.global_batch_size": 2, "optimizer.lr": 8e-4, "lr_scheduler.warmup_steps": 10}  # fmt: skip
CURVES = {"training.steps": STEPS, "lr_scheduler.total_steps": STEPS, "training.mixed_precision_param": "bfloat16",
          **(DEBUG if LONG else {"lr_scheduler.warmup_steps": 5})}  # fmt: skip


def run(folder, *settings):
    values = {"job.dump_folder": folder}
    for one in settings:
        values.update(one)
    words = [f"--{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in values.items()]
    done = subprocess.run([RANK, "--config", CONFIG, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1200)
    return done.returncode, done.stdout


def losses(folder):
    return [loss for _, loss in sorted(titan_rank_test.losses(folder).items())]


def warnings(folder):
    with open(os.path.join(folder, "run", "rank-0.events.jsonl")) as file:
        return [entry["message"] for entry in map(json.loads, file) if entry["kind"] == "warning"]


def shards(folder, step):
    """Returns the hash of each rank's file of a step, by rank, since the file name contains the attempt."""
    place = os.path.join(folder, "checkpoint", f"step-{step}")
    found = {}
    for name in sorted(os.listdir(place)):
        if name.endswith(".safetensors"):
            with open(os.path.join(place, name), "rb") as file:
                found[name.split("-")[1]] = hashlib.sha256(file.read()).hexdigest()
    return found


class SmallTrainings(unittest.TestCase):
    """Trains SMALL with changed settings. Other scripts' tests use this, too."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = scratch.name

    def train(self, name, *settings):
        folder = os.path.join(self.scratch, name)
        code, output = run(folder, SMALL, *settings)
        self.assertEqual(0, code, output[-3000:])
        return folder

    def check_resumed(self, name, settings):
        """Checks that six steps on two ranks, and three plus three, have the same bits. Returns the folder of the latter."""
        more = {**settings, **SAVES, "resources.ranks": 2}
        self.train(name, more, {"training.steps": 3})
        parts = self.train(name, more)
        if "debug.seed" in more:  # The first start drew the seed.
            with open(os.path.join(parts, "checkpoint", "step-3", "manifest.json")) as file:
                more["debug.seed"] = json.load(file)["train_state"]["seed"]
        whole = self.train(name + " whole", more)
        self.assertEqual(losses(whole)[3:], losses(parts)[-3:])
        self.assertEqual(shards(whole, 6), shards(parts, 6))
        self.assertEqual(2, len(shards(parts, 6)))
        return parts


class OptimizerStateTypes(SmallTrainings):
    def test_a_resumed_run_has_the_same_bits(self):
        for name, more in {
            "codes": {"optimizer.state_dtype": "8bit"},
            "codes by LibTorch's operations": {"optimizer.state_dtype": "8bit", "resources.kernels": "reference"},
            "bf16": {"optimizer.state_dtype": "bfloat16"},
            "codes and stochastic rounding": {"optimizer.state_dtype": "8bit", **STOCHASTIC},
            "float32 moments and stochastic rounding": {"optimizer.state_dtype": "float32", **STOCHASTIC},
            # Each start draws a seed, but the first one's is saved, and rounding uses it, too.
            "stochastic rounding without a seed": {"debug.seed": "None", **STOCHASTIC},
        }.items():
            with self.subTest(name):
                parts = self.check_resumed(name, more)
                self.assertFalse([line for line in warnings(parts) if "state_dtype" in line])

    def test_states_resume_as_other_types_on_other_meshes(self):
        meshes = [{"resources.ranks": 1}, {"resources.ranks": 4, "parallelism.tensor_parallel_degree": 2},
                  {"resources.ranks": 2, "parallelism.pipeline_parallel_degree": 2},
                  {"resources.ranks": 2, "training.enable_cpu_offload": True},
                  {"resources.ranks": 2, "optimizer.early_step_in_backward": True}]  # fmt: skip
        words = {"float32": "float32", "bfloat16": "bfloat16", "8bit": "8-bit codes"}
        whole = losses(self.train("whole", {"training.max_norm": 100.0}))
        for i, (source, target) in enumerate((a, b) for a in words for b in words):
            with self.subTest(source=source, target=target, mesh=meshes[i % len(meshes)]):
                start = {**SAVES, "training.max_norm": 100.0, "optimizer.state_dtype": source}
                folder = self.train(f"{source} {target}", start, {"resources.ranks": 2, "training.steps": 3})
                self.train(f"{source} {target}", start, meshes[i % len(meshes)], {"optimizer.state_dtype": target})
                for found, wanted in zip(losses(folder)[-3:], whole[-3:]):
                    self.assertLess(abs(found - wanted), 0.01 * wanted)
                messages = [line for line in warnings(folder) if "optimizer.state_dtype" in line]
                self.assertEqual(0 if source == target else 1, len(messages), messages)
                if messages:
                    self.assertIn(f"kept as {words[source]}; they continue as {words[target]}", messages[0])

    def test_a_step_that_explodes_is_skipped(self):
        for kernels in ("auto", "reference"):
            more = {"training.nonfinite_policy": "skip", "optimizer.state_dtype": "8bit", "resources.kernels": kernels, **STOCHASTIC}
            folder = os.path.join(self.scratch, "explodes " + kernels)
            code, output = run(folder, SMALL, more, {"optimizer.lr": 1e37, "training.max_norm": 1e37})
            self.assertEqual(0, code, output[-3000:])
            self.assertTrue([line for line in warnings(folder) if "the step is skipped" in line])

    def test_loss_follows_float32(self):
        ways = {
            "float32": {"optimizer.state_dtype": "float32"},
            "bfloat16": {"optimizer.state_dtype": "bfloat16"},
            "8bit": {"optimizer.state_dtype": "8bit"},
            "bfloat16 parameters, stochastic": {"optimizer.state_dtype": "float32", **STOCHASTIC},
            "bfloat16 parameters, stochastic, 8bit": {"optimizer.state_dtype": "8bit", **STOCHASTIC},
        }
        curves = {name: losses(self.train(name, CURVES, way)) for name, way in ways.items()}
        if LONG:
            nearest = losses(self.train("bfloat16 parameters, nearest", CURVES, {"training.dtype": "bfloat16"}))
            print("bfloat16 parameters, nearest: last %.4f" % nearest[-1])
            curves["bfloat16 parameters, nearest, bfloat16"] = nearest
        if os.environ.get("TITAN_CURVES"):
            with open(os.environ["TITAN_CURVES"], "w") as file:
                json.dump(curves, file)
        curves.pop("bfloat16 parameters, nearest, bfloat16", None)  # Stochastic rounding exists to fix this case.
        last = STEPS // 10
        for name, curve in curves.items():
            ratio = sum(curve[-last:]) / sum(curves["float32"][-last:])
            apart = max(abs(a - b) / b for a, b in zip(curve, curves["float32"]))
            print(f"{name}: loss {curve[0]:.4f} to {curve[-1]:.4f}, mean of the last {last} steps {ratio:.5f} of float32's, "
                  f"at most {apart:.5f} apart in one step")
            self.assertLess(abs(ratio - 1), 0.01, name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
