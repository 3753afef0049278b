"""Tests that training on several sources, texts and conversations, shuffled and packed, is the same on any mesh. In float64 a job
that resumes on other ranks has the losses of one that never stopped, even if the sources' weights change, and its metrics report
how much each source has contributed. Packed conversations have the loss that each has in a separate row, of which only the
assistant's words count."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "testing"))
from paths import BIN

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


TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"


class MixedData(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.root / "empty.toml").touch()
        shutil.copytree(ASSETS / "tokenizer", self.root / "tokenizer")
        (self.root / "tokenizer" / "chat_template.jinja").write_text(TEMPLATE)

    def chats(self, count):
        rows = []
        for i in range(count):
            turns = [[{"role": "user", "content": f"ask {i} " + "x " * (5 * i % 7)}, {"role": "assistant", "content": f"say {k} " + "word " * (3 * i % 4)}]
                     for k in range(1 + i % 2)]  # fmt: skip
            rows.append(json.dumps({"messages": sum(turns, [])}) + "\n")
        return "".join(rows)

    def train(self, dump, steps, mesh):
        flags = {**JOB, **mesh, "job.dump_folder": dump, "training.steps": steps}
        flags["model.hf_assets_path"] = self.root / "tokenizer"
        done = subprocess.run([BIN / "titan-rank", "--config", self.root / "empty.toml", *(f"--{k}={v}" for k, v in flags.items())],
                              capture_output=True, text=True, env={**os.environ, "TITAN_ASSETS": str(ASSETS)}, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])
        rows = map(json.loads, (dump / "metrics.jsonl").read_text().splitlines())
        steps = {}
        for row in rows:  # A validation has its own line.
            steps.setdefault(row["step"], {}).update(row)
        return steps

    def test_resumes_on_other_ranks(self):
        lines = [json.dumps({"text": f"line {i} of a " + "word " * (7 * i % 40)}) + "\n" for i in range(300)]
        (self.root / "a.jsonl").write_text("".join(lines))
        (self.root / "b.jsonl").write_text(self.chats(300))
        sources = json.dumps([
            {"name": "a", "dataset_path": str(self.root / "a.jsonl"), "weight": 3, "weight_at_step": ["4: 1"]},
            {"name": "b", "dataset_path": str(self.root / "b.jsonl"), "weight": 1, "messages_key": "messages"},
        ])  # fmt: skip
        whole = self.train(self.root / "whole", 6, {"resources.ranks": 1, "training.dataloader.sources": sources})
        for steps, mesh in MESHES:
            parts = self.train(self.root / "parts", steps, {**mesh, "training.dataloader.sources": sources})
        self.assertEqual(list(whole), [1, 2, 3, 4, 5, 6])
        for step, row in whole.items():
            self.assertAlmostEqual(row["loss_metrics/global_avg_loss"], parts[step]["loss_metrics/global_avg_loss"], delta=1e-10)
            # Source a gets three of four rows, then every second one.
            rows = {"a": 6 * min(step, 3) + 4 * max(0, step - 3), "b": 2 * min(step, 3) + 4 * max(0, step - 3)}
            self.assertAlmostEqual(row["data/padding"], parts[step]["data/padding"], delta=1e-12)
            self.assertTrue(0 < row["data/padding"] < 0.5, row["data/padding"])
            for name, given in rows.items():
                self.assertEqual([row[f"data/{name}/tokens"], parts[step][f"data/{name}/tokens"]], [64 * given] * 2, step)

    # A batch in the configuration applies, whether a job resumes its own steps or another job's. Without one, the
    # checkpoint's batch stays. Sources still change their weights by steps, however many rows a step had.
    def test_configured_batch_wins_over_the_checkpoints(self):
        for name in ("a", "b"):
            (self.root / f"{name}.jsonl").write_text("".join(json.dumps({"text": f"line {i} of {name}"}) + "\n" for i in range(300)))
        sources = json.dumps([{"name": "a", "dataset_path": str(self.root / "a.jsonl"), "weight": 3, "weight_at_step": ["5: 1"]},
                              {"name": "b", "dataset_path": str(self.root / "b.jsonl"), "weight": 1}])  # fmt: skip
        data = {"training.dataloader.sources": sources, "resources.ranks": 1, "training.dataloader.shuffle": "none"}
        unset = {**data, "training.global_batch_size": -1, "training.local_batch_size": 4}
        self.train(self.root / "job", 3, {**unset, "resources.ranks": 2})
        shutil.copytree(self.root / "job", self.root / "other")
        whole = {**data, "checkpoint.initial_load_path": self.root / "other" / "checkpoint" / "step-3", "checkpoint.initial_load_model_only": "false"}
        given = lambda run, step: [run[step][f"data/{name}/tokens"] // 64 for name in "ab"]  # noqa: E731
        # Source a gets 3 of 4 rows until step 4, then every second one: 24 rows, then 4 per step.
        for dump, settings in (("job", data), ("started", whole)):
            run = self.train(self.root / dump, 6, {**settings, "training.global_batch_size": 4})
            self.assertEqual([given(run, step) for step in (4, 5, 6)], [[21, 7], [23, 9], [25, 11]], dump)
        # The number of rows so far is no longer a multiple of eight. Without the key, the batch of the newest step
        # stays: four rows on two ranks.
        run = self.train(self.root / "job", 7, {**unset, "resources.ranks": 2, "lr_scheduler.total_steps": 7})
        self.assertEqual(given(run, 7), [27, 13])
        run = self.train(self.root / "other", 4, unset)
        self.assertEqual(given(run, 4), [24, 8])

    # A window of one packs nothing. With a window of sixteen the conversations fit into eleven rows.
    def test_loss_of_packed_conversations(self):
        (self.root / "chats.jsonl").write_text(self.chats(16))
        data = {"resources.ranks": 1, "training.dataset_path": self.root / "chats.jsonl", "training.dataloader.messages_key": "messages",
                "training.dataloader.shuffle": "none", "training.local_batch_size": 1}  # fmt: skip
        alone = self.train(self.root / "alone", 1, {**data, "training.global_batch_size": 16, "training.dataloader.packing_window": 1})
        packed = self.train(self.root / "packed", 1, {**data, "training.global_batch_size": 11})
        validates = {"validation.enable": "true", "validation.freq": 1, "validation.steps": 2, "validation.seq_len": 64, "validation.local_batch_size": 2,
                     "validation.dataset_path": self.root / "chats.jsonl", "validation.dataloader.messages_key": "messages",
                     "training.global_batch_size": 11}  # fmt: skip
        validated = [self.train(self.root / f"{on}-validated", 1, {**data, **validates, "validation.dataloader.train_on": on}) for on in ("assistant", "all")]
        everything = self.train(self.root / "all", 1, {**data, "training.global_batch_size": 11, "training.dataloader.train_on": "all"})
        loss = lambda run: run[1]["loss_metrics/global_avg_loss"]  # noqa: E731
        self.assertAlmostEqual(loss(packed), loss(alone), delta=1e-10)
        self.assertGreater(abs(loss(packed) - loss(everything)), 1e-6)
        self.assertEqual([loss(run) for run in validated], [loss(packed)] * 2)
        known, whole = (run[1]["validation_metrics/loss"] for run in validated)
        self.assertGreater(abs(known - whole), 1e-6)

    # If a long question fills all rows of a step, that step's loss is zero, and the next step trains.
    def test_a_step_may_have_no_label(self):
        messages = [{"role": "user", "content": "ask " * 60}, {"role": "assistant", "content": "say"}]
        (self.root / "long.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
        data = {"resources.ranks": 1, "training.dataset_path": self.root / "long.jsonl", "training.dataloader.messages_key": "messages",
                "training.dataloader.shuffle": "none", "training.dataloader.packing_window": 1, "training.local_batch_size": 1,
                "training.global_batch_size": 1}  # fmt: skip
        losses = [row["loss_metrics/global_avg_loss"] for row in self.train(self.root / "long", 4, data).values()]
        self.assertEqual(losses[0], 0)
        self.assertTrue(any(loss > 0 for loss in losses), losses)


if __name__ == "__main__":
    unittest.main()
