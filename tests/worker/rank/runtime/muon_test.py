"""Tests jobs with Muon and groups of parameters, from their configuration to their metrics and checkpoints."""

import json
import os
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, os.path.join(os.environ["TITAN_SOURCE"], "tests", "numerics"))
import rank_runs  # noqa: E402
from rank_runs import LOSS  # noqa: E402

WIDE = {"training.dtype": "float64", "training.local_batch_size": 4, "training.global_batch_size": 4, "training.seq_len": 32,
        "training.steps": 6, "lr_scheduler.warmup_steps": 2, "optimizer.lr": 0.02, "activation_checkpoint.mode": "none"}
MUON = {"optimizer.name": "Muon"}
SAVES = {"checkpoint.enable": True, "checkpoint.interval": 3, "checkpoint.last_save_model_only": False}
# One group for attention's matrices and one for the norms. Muon's defaults apply to all else.
GROUPS = {"optimizer.param_groups": json.dumps([{"pattern": "attention\\.w", "name": "Muon", "lr": 0.01, "momentum": 0.9},
                                                {"pattern": "norm", "lr_factor": 0.5, "weight_decay": 0}])}
# A small model's logits reach this limit.
CLIP = {"optimizer.qk_clip": 0.02}


def axes(**degrees):
    return {f"parallelism.{axis}_degree": degree for axis, degree in degrees.items()}


class Muon(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def start_job(self, name, flags, world=1):
        return rank_runs.LocalRun(Path(self.folder.name) / name, {**rank_runs.small_model("llama3"), **WIDE, **flags}, world)

    def run_job(self, name, flags, world=1):
        return self.start_job(name, flags, world).wait()

    def output(self, run):
        return (run.folder / "rank-0.out").read_text()

    def assert_same(self, run, reference, first=0):
        got, want = run.metrics(), reference.metrics()
        self.assertEqual(list(got), [step for step in want if step > first])
        for step, row in got.items():
            self.assertLess(abs(row[LOSS] - want[step][LOSS]) / want[step][LOSS], 1e-10, step)

    def test_meshes_and_resumption(self):
        """Tensor ranks, or one rank, resume what two sharded ranks saved, with the losses of one rank that never stopped."""
        for name, how in [("plain", MUON), ("groups", {**MUON, **GROUPS}), ("clipped", {**MUON, **CLIP})]:
            whole = self.run_job(name + "-whole", how)
            saved = self.run_job(name + "-saved", {**how, **SAVES, "training.steps": 3, "lr_scheduler.total_steps": 6,
                                                   "training.local_batch_size": 2}, 2)
            keys = saved.checkpoint(3)
            self.assertIn("optim.momentum_buffer.layers.0.attention.wq.weight", keys)
            self.assertIn("optim.exp_avg_sq.output.weight", keys)
            self.assertNotIn("optim.exp_avg.layers.0.attention.wq.weight", keys)
            for mesh, flags, world in [("tp", axes(tensor_parallel=2), 2), ("one", {}, 1)]:
                start = {"checkpoint.initial_load_path": saved.dump / "checkpoint" / "step-3", "checkpoint.initial_load_model_only": False}
                self.assert_same(self.run_job(f"{name}-{mesh}", {**how, **SAVES, **flags, **start}, world), whole, first=3)

    def test_another_optimizer(self):
        """A checkpoint of AdamW has no momentum for Muon: the job reports that, and resumes without the state if so configured."""
        saved = self.run_job("adamw", {**SAVES, "training.steps": 3, "lr_scheduler.total_steps": 6})
        start = {**SAVES, "checkpoint.initial_load_path": saved.dump / "checkpoint" / "step-3", "checkpoint.initial_load_model_only": False}
        refused = self.start_job("refused", {**MUON, **start})
        with self.assertRaises(RuntimeError):
            refused.wait()
        self.assertIn("was saved with another optimizer: it has no optim.momentum_buffer", self.output(refused))
        self.assertIn('put "optimizer" into checkpoint.exclude_from_loading', self.output(refused))
        again = self.run_job("again", {**MUON, **start, "checkpoint.exclude_from_loading": ["optimizer"]})
        self.assertEqual(len(again.metrics()), 3)

    def test_clipped_logits(self):
        """The metrics have the largest logit and the number of clipped heads. If only the ranks know the model, they refuse one that
        norms its heads."""
        whole = {step: (row["qk_clip/largest_logit"], row["qk_clip/clipped_heads"]) for step, row in self.run_job("one", {**MUON, **CLIP}).metrics().items()}
        self.assertTrue(all(largest > 0.02 and clipped >= 1 and clipped == int(clipped) for largest, clipped in whole.values()), whole)
        pipeline = self.run_job("pp", {**MUON, **CLIP, **axes(pipeline_parallel=2)}, 2).metrics()
        for step, (largest, clipped) in whole.items():
            self.assertAlmostEqual(pipeline[step]["qk_clip/largest_logit"], largest, delta=1e-10)
            self.assertEqual(pipeline[step]["qk_clip/clipped_heads"], clipped)
        free = self.run_job("free", MUON).metrics()
        self.assertNotIn("qk_clip/largest_logit", free[1])
        self.assertEqual(free[1][LOSS], self.run_job("high", {**MUON, "optimizer.qk_clip": 1e9}).metrics()[1][LOSS])
        refused = self.start_job("refused", {**rank_runs.small_model("qwen3"), **CLIP})
        with self.assertRaises(RuntimeError):
            refused.wait()
        self.assertIn("layers.0 normalizes its queries and keys", self.output(refused))

    def test_learning_rates(self):
        """Each group has its own learning rate under one schedule, a figure in the metrics and a line in the log."""
        run = self.run_job("rates", {**MUON, **GROUPS, "training.steps": 3, "lr_scheduler.total_steps": 6})
        for step in run.metrics().values():
            factor = step["lr"] / 0.02
            rates = {key: value for key, value in step.items() if key.startswith("lr/")}
            self.assertEqual(list(rates), ["lr/group_0", "lr/group_1", "lr/group_2", "lr/group_3"])
            for rate, want in zip(rates.values(), [0.01, 0.01, 0.02, 0.02]):
                self.assertAlmostEqual(rate, want * factor, delta=1e-15)
        for line in ["Optimizer group 0: Muon, lr 0.01", "Optimizer group 1: AdamW, lr 0.01, weight decay 0,",
                     "Optimizer group 2: Muon, lr 0.02", "Optimizer group 3: AdamW, lr 0.02"]:
            self.assertIn(line, self.output(run))

    def test_learns_as_adamw(self):
        """In thirty steps in bf16 (two hundred with TITAN_LONG=1), each with a suitable learning rate, Muon does not trail
        AdamW."""
        steps = 200 if os.environ.get("TITAN_LONG") else 30
        flags = {"training.dtype": "float32", "training.mixed_precision_param": "bfloat16", "training.steps": steps,
                 "training.local_batch_size": 8, "training.global_batch_size": 8, "training.seq_len": 128,
                 "lr_scheduler.warmup_steps": 5}
        last = {}
        for name, rate in (("AdamW", 4e-3), ("Muon", 2e-2)):
            run = self.start_job(f"learns-{name}", {**flags, "optimizer.name": name, "optimizer.lr": rate}).wait(timeout=1200)
            losses = [step[LOSS] for step in run.metrics().values()]
            last[name] = sum(losses[-5:]) / 5
            print(name, steps, "steps:", " ".join(f"{losses[i]:.4f}" for i in [0, steps // 4, steps // 2, -1]), f"last five {last[name]:.4f}")
        self.assertLess(last["Muon"], 1.01 * last["AdamW"])


if __name__ == "__main__":
    unittest.main()
