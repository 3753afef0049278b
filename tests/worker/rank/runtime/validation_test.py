"""Tests that the validation loss depends only on the weights and the rows, and not on the batch, the ranks or the mesh: it is the
sum of all cross-entropies divided by the number of all labels. Batches have unequal numbers of labels if rows run out, are
packed, or hold prompts. training.nonfinite_policy says whether non-finite values end the job or are only reported."""

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
ROWS = pathlib.Path(__file__).parent / "validation_rows"
JOB = {
    "model.name": "llama3", "model.flavor": "debugmodel", "training.dataset_path": ROWS / "train.jsonl", "training.local_batch_size": 2,
    "training.global_batch_size": 2, "training.seq_len": 64, "training.steps": 1, "training.mixed_precision_param": "float32",
    "optimizer.lr": 1e-3, "lr_scheduler.warmup_steps": 2, "activation_checkpoint.mode": "none", "debug.seed": 42, "metrics.log_freq": 1,
    "resources.threads_per_rank": 1, "comm.mode": "local_tensor", "validation.enable": "true", "validation.freq": 1, "validation.steps": -1,
    "validation.dataset_path": ROWS / "val.jsonl", "validation.seq_len": 48,
}  # fmt: skip
DP = {"resources.ranks": 2, "training.local_batch_size": 1}
TP = {"resources.ranks": 2, "parallelism.tensor_parallel_degree": 2}
PP = {"resources.ranks": 2, "parallelism.pipeline_parallel_degree": 2}
CP = {"resources.ranks": 2, "parallelism.context_parallel_degree": 2}
PACKED = {"validation.seq_len": 64, "validation.dataloader.packing": "best_fit"}
TEMPLATE = "{% for m in messages %}[{{ m.role }}] {% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"


def batch(rows):
    return {"validation.local_batch_size": rows}


class Validation(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.root / "empty.toml").touch()
        shutil.copytree(ASSETS / "tokenizer", self.root / "tokenizer")
        (self.root / "tokenizer" / "chat_template.jinja").write_text(TEMPLATE)
        self.runs = 0

    def run_job(self, *settings):
        self.runs += 1
        dump = self.root / str(self.runs)
        flags = {**JOB, "job.dump_folder": dump, "model.hf_assets_path": self.root / "tokenizer"}
        for more in settings:
            flags.update(more)
        done = subprocess.run([BIN / "titan-rank", "--config", self.root / "empty.toml", *(f"--{k}={v}" for k, v in flags.items())],
                              capture_output=True, text=True, env={**os.environ, "TITAN_ASSETS": str(ASSETS)}, timeout=120)  # fmt: skip
        lines = map(json.loads, (dump / "metrics.jsonl").read_text().splitlines()) if (dump / "metrics.jsonl").exists() else []
        events = [json.loads(line) for line in (dump / "run" / "rank-0.events.jsonl").read_text().splitlines()]
        return done.returncode, [line["validation_metrics/loss"] for line in lines if "validation_metrics/loss" in line], events

    def loss(self, *settings):
        code, losses, events = self.run_job(*settings)
        self.assertEqual((0, 1), (code, len(losses)), events[-3:])
        return losses[0]

    def check_one_figure(self, whole, ways, *common):
        for way in ways:
            with self.subTest(way=way):
                self.assertAlmostEqual(whole, self.loss(*common, way), delta=2e-5)  # float32 sums in another order.

    # The text has about thirteen rows, which none of these batches divides. Batches of one row are right in any case.
    def test_text_that_does_not_fill_the_last_batch(self):
        whole = self.loss(batch(1))
        self.assertAlmostEqual(7.4797, whole, delta=6e-5)
        self.check_one_figure(whole, [batch(2), batch(8), {**batch(4), **DP}, {**batch(2), **TP}, {**batch(4), **PP}, {**batch(2), **CP}])

    def test_packed_rows(self):
        whole = self.loss(PACKED, batch(16))
        self.assertAlmostEqual(7.5007, whole, delta=6e-5)
        self.check_one_figure(whole, [batch(2), {**batch(2), **DP}], PACKED)

    # Questions have many lengths, so the labels of a row are anything from a few to most of it.
    def test_conversations(self):
        turns = [[{"role": "user", "content": "ask " + "x " * (17 * i % 40)}, {"role": "assistant", "content": "say " + "word " * (13 * i % 23)}]
                 for i in range(40)]  # fmt: skip
        (self.root / "chats.jsonl").write_text("".join(json.dumps({"messages": pair}) + "\n" for pair in turns))
        chats = {"validation.dataset_path": self.root / "chats.jsonl", "validation.dataloader.messages_key": "messages"}
        self.check_one_figure(self.loss(chats, batch(64)), [batch(1), {**batch(3), **DP}], chats)

    def test_rows_without_labels_give_no_loss(self):
        turn = [{"role": "user", "content": "ask " * 300}, {"role": "assistant", "content": "say"}]
        (self.root / "questions.jsonl").write_text(json.dumps({"messages": turn}) + "\n")
        code, losses, events = self.run_job({"validation.dataset_path": self.root / "questions.jsonl", "validation.steps": 1,
                                             "validation.dataloader.messages_key": "messages", **batch(1)})  # fmt: skip
        self.assertEqual((0, []), (code, losses))
        self.assertTrue([e for e in events if e["kind"] == "warning" and "no token of the validation dataset is a label" in e["message"]], events)

    # The step is finite, but its update is not, so the model's output after it is meaningless.
    def test_non_finite_results_are_never_shown(self):
        explodes = {"optimizer.lr": 1e38, "validation.sample_prompts": "The file",
                    "validation.sample_max_new_tokens": 3}  # fmt: skip
        code, losses, events = self.run_job(explodes)
        self.assertEqual((11, []), (code, losses), events[-2:])
        self.assertEqual("error", events[-1]["kind"])
        self.assertEqual("NONFINITE_LOSS", events[-1]["reason"], events[-1])
        self.assertIn("step 1: the validation loss", events[-1]["message"])
        code, losses, events = self.run_job(explodes, {"training.nonfinite_policy": "skip"})
        self.assertEqual((0, []), (code, losses), events[-2:])
        warnings = [e["message"] for e in events if e["kind"] == "warning"]
        self.assertTrue([w for w in warnings if "step 1: the validation loss" in w and "is not finite" in w], warnings)
        self.assertTrue([w for w in warnings if 'logits after "The file" are not finite' in w], warnings)


if __name__ == "__main__":
    unittest.main()
