"""Training on several sources, shuffled and packed, is the same whatever the mesh: in float64 a job that goes on over other ranks
has the losses of one that never stopped, through a change of weights, and its metrics say what each source has given."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

BIN = pathlib.Path(os.environ["TITAN_BIN"])
ASSETS = pathlib.Path(os.environ["TITAN_DEPS"]) / "assets"
MESHES = ((3, {"resources.ranks": 4}), (6, {"resources.ranks": 4, "parallelism.context_parallel_degree": 2}))
JOB = {
    "model.name": "small_llama3", "model.flavor": "packed", "training.seq_len": 64, "training.local_batch_size": 2,
    "training.global_batch_size": 8, "training.dtype": "float64", "lr_scheduler.warmup_steps": 1, "lr_scheduler.total_steps": 6,
    "optimizer.lr": 1e-2, "metrics.log_freq": 1, "debug.seed": 0, "activation_checkpoint.mode": "none", "resources.threads_per_rank": 1,
    "comm.mode": "local_tensor", "experimental.custom_import": BIN.parent / "tests" / "libsmall_models.so", "checkpoint.enable": "true",
    "checkpoint.interval": 100, "checkpoint.last_save_model_only": "false", "training.dataloader.shuffle": "documents",
    "training.dataloader.packing": "best_fit", "training.dataloader.packing_window": 16,
}  # fmt: skip


class MixedData(unittest.TestCase):
    def train(self, dump, steps, mesh):
        flags = {**JOB, **mesh, "job.dump_folder": dump, "training.steps": steps, "training.dataloader.sources": self.sources}
        done = subprocess.run([BIN / "titan-rank", "--config", self.root / "empty.toml", *(f"--{k}={v}" for k, v in flags.items())],
                              capture_output=True, text=True, env={**os.environ, "TITAN_ASSETS": str(ASSETS)}, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])
        rows = map(json.loads, (dump / "metrics.jsonl").read_text().splitlines())
        return {row["step"]: row for row in rows}

    def test_goes_on_over_other_ranks(self):
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.root / "empty.toml").touch()
        for name in ("a", "b"):
            lines = [json.dumps({"text": f"line {i} of {name} " + "word " * (7 * i % 40)}) + "\n" for i in range(300)]
            (self.root / f"{name}.jsonl").write_text("".join(lines))
        self.sources = json.dumps([
            {"name": "a", "dataset_path": str(self.root / "a.jsonl"), "weight": 3, "weight_at_step": ["4: 1"]},
            {"name": "b", "dataset_path": str(self.root / "b.jsonl"), "weight": 1},
        ])  # fmt: skip
        whole = self.train(self.root / "whole", 6, {"resources.ranks": 1})
        for steps, mesh in MESHES:
            parts = self.train(self.root / "parts", steps, mesh)
        self.assertEqual(list(whole), [1, 2, 3, 4, 5, 6])
        for step, row in whole.items():
            self.assertAlmostEqual(row["loss_metrics/global_avg_loss"], parts[step]["loss_metrics/global_avg_loss"], delta=1e-10)
            # Three rows of four, then every second one.
            rows = {"a": 6 * min(step, 3) + 4 * max(0, step - 3), "b": 2 * min(step, 3) + 4 * max(0, step - 3)}
            for name, given in rows.items():
                self.assertEqual([row[f"data/{name}/tokens"], parts[step][f"data/{name}/tokens"]], [64 * given] * 2, step)


if __name__ == "__main__":
    unittest.main()
