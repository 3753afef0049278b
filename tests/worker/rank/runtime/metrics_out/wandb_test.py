"""Tests metrics.enable_wandb: the lines of metrics.jsonl are sent to Weights & Biases, and failures there never affect the
training."""

import json
import math
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "testing"))
from paths import BIN, SOURCE

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
PROGRAM = BIN / "titan_wandb.py"
KEY = "0123456789abcdef0123456789abcdef01234567"
LOSS = "loss_metrics/global_avg_loss"
SMALL = {
    "training.seq_len": 32, "training.local_batch_size": 1, "training.global_batch_size": 2, "training.steps": 4,
    "lr_scheduler.warmup_steps": 2, "metrics.log_freq": 1, "metrics.device_peak_tflops": 1, "resources.threads_per_rank": 1,
    "training.mixed_precision_param": "float32", "debug.seed": 3,
}  # fmt: skip


def until(what, holds, seconds=60):
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(0.02)


def lines_of(path):
    """Returns all lines but the last one, of which a writer that was killed, or still writes, may have left half."""
    return [json.loads(line) for line in Path(path).read_text().split("\n")[:-1]] if Path(path).exists() else []


def scalars_of(line):
    """Returns the values of a line of metrics.jsonl as Weights & Biases should get them. NaN, which equals nothing, becomes "NaN"."""
    wanted = {name: "NaN" if value is None else value for name, value in line.items() if value is None or isinstance(value, (int, float))}
    return {**wanted, "_timestamp": datetime.fromisoformat(line["time"].replace("Z", "+00:00")).timestamp()}


def comparable(data):
    return {name: "NaN" if isinstance(value, float) and math.isnan(value) else value for name, value in data.items()}


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


class Case(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = Path(scratch.name)
        self.dump, self.calls_at = self.scratch / "dump", self.scratch / "calls.jsonl"

    def environment(self, mood="", **more):
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "TITAN_RANK_"))}
        return {**inherited, "PYTHONPATH": str(HERE / "standin"), "STANDIN": str(self.calls_at), "STANDIN_MOOD": mood,
                "TITAN_RANK_PYTHON": sys.executable, "WANDB_API_KEY": KEY, **more}

    def calls(self, kind):
        return [call for call in lines_of(self.calls_at) if call["call"] == kind]


class JobRuns(Case):
    def start(self, mood="", wandb=True, environment=(), **flags):
        words = [BIN / "titan-rank", "--config", SOURCE / "configs/llama3_tiny.toml", "--job.dump_folder", self.dump,
                 "--metrics.no_enable_tensorboard", "--validation.no_enable", "--checkpoint.no_enable", f"--metrics.{'' if wandb else 'no_'}enable_wandb"]
        for key, value in {**SMALL, **flags}.items():
            words += [f"--{key}", value]
        process = subprocess.Popen(list(map(str, words)), env=self.environment(mood, **dict(environment)), stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def finish(self, *arguments, **named):
        process = self.start(*arguments, **named)
        out, _ = process.communicate(timeout=100)
        self.assertEqual(0, process.returncode, out)
        return out

    def warnings(self):
        return [event["message"] for event in lines_of(self.dump / "run/rank-0.events.jsonl") if event["kind"] == "warning" and "wandb" in event["message"]]

    def losses(self):
        return [(line["step"], line[LOSS]) for line in lines_of(self.dump / "metrics.jsonl")]

    def turn_to(self, name):
        self.dump, self.calls_at = self.scratch / name / "dump", self.scratch / name / "calls.jsonl"

    # Runs the jobs at the same time, since they spend most of it waiting.
    def run_all(self, jobs):
        ranks = {}
        for name, flags in jobs.items():
            self.turn_to(name)
            self.dump.parent.mkdir()
            ranks[name] = self.start(**flags)
        outs = {}
        for name, rank in ranks.items():
            outs[name], _ = rank.communicate(timeout=100)
            self.assertEqual(0, rank.returncode, f"{name}: {outs[name]}")
        return outs

    # The lines are sent as written, under torchtitan's names. If the program is killed, lacks the package or hangs, the
    # job gets one warning and has the losses of a job without it.
    def test_sends_the_lines_of_the_job(self):
        names = {"WANDB_TEAM": "us", "WANDB_RUN_NAME": "first", "WANDB_RUN_TAGS": "a,b", "WANDB_RUN_GROUP": "g"}
        outs = self.run_all({"without": {"wandb": False}, "dies": {"mood": "dies"}, "missing": {"mood": "missing"},
                             "hangs": {"mood": "hangs", "comm.train_timeout_seconds": 1}, "with": {"environment": names}})
        self.turn_to("without")
        without = self.losses()
        self.assertFalse((self.dump / "wandb").exists())
        for name, says in [("dies", "ended by signal 9"), ("missing", "pip install wandb"), ("hangs", "had not received all data 1s after the end")]:
            with self.subTest(name):
                self.turn_to(name)
                self.assertEqual(without, self.losses())
                self.assertEqual(1, len(self.warnings()), self.warnings())
                self.assertIn(says, self.warnings()[0])
        self.turn_to("with")
        self.assertEqual(without, self.losses())
        self.assertRegex(outs["with"], rf"Weights & Biases: {self.dump}/wandb/run-titan-\w{{16}}\n")
        lines = lines_of(self.dump / "metrics.jsonl")
        self.assertEqual(4, len(lines))
        self.assertEqual([scalars_of(line) for line in lines], [comparable(call["data"]) for call in self.calls("log")])
        self.assertEqual(list(range(4)), [call["step"] for call in self.calls("log")])
        (begun,) = self.calls("init")
        wanted = {"project": "torchtitan", "entity": "us", "name": "first", "tags": ["a", "b"], "group": "g", "resume": "allow",
                  "dir": str(self.dump), "config": json.loads((self.dump / "config.json").read_text())}
        self.assertEqual(wanted, {name: begun[name] for name in wanted})
        self.assertEqual([("step", None), ("*", "step")], [(call["name"], call["step_metric"]) for call in self.calls("define_metric")])
        self.assertEqual([0], [call["exit_code"] for call in self.calls("finish")])
        self.assertEqual([], self.warnings())
        self.assertNotIn(KEY, outs["with"])
        for path in self.dump.rglob("*"):
            if path.is_file():
                self.assertNotIn(KEY.encode(), path.read_bytes(), path)

    # The program ends with its rank. The next attempt continues the run, with the steps that it trains again.
    def test_a_killed_rank_and_its_next_attempt(self):
        rank = self.start(**{"training.steps": 100000, "lr_scheduler.total_steps": 100000})
        until("a line of the run", lambda: self.calls("log"))
        sidecar = self.calls("log")[0]["pid"]
        rank.kill()
        rank.communicate()
        until("the end of the sidecar", lambda: gone(sidecar))
        trained = len(self.losses())
        sent = len(self.calls("log"))
        self.assertLessEqual(sent, trained)
        self.finish()
        first, second = self.calls("init")
        self.assertEqual(first["id"], second["id"])
        lines = lines_of(self.dump / "metrics.jsonl")
        self.assertEqual(1, lines[-4]["step"])  # Nothing was saved, so it starts at step 1.
        self.assertEqual([2] * 4, [line["attempt"] for line in lines[-4:]])
        self.assertEqual([scalars_of(line) for line in lines], [comparable(call["data"]) for call in self.calls("log")])
        self.assertEqual(list(range(trained + 4)), [call["step"] for call in self.calls("log")])


class ProgramAlone(Case):
    """Tests the program without a rank, on lines that the test writes."""

    def setUp(self):
        super().setUp()
        self.dump.mkdir()
        self.ours, theirs = socket.socketpair()
        self.addCleanup(self.ours.close)
        self.theirs = theirs

    def start(self, attempt=1, program=(PROGRAM,), **environment):
        with self.theirs:
            process = subprocess.Popen([sys.executable, *program, "--dump-folder", self.dump, "--job", "j", "--attempt", str(attempt)],
                                       stdin=self.theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=self.environment(**environment))
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def write(self, *texts):
        with open(self.dump / "metrics.jsonl", "a") as file:
            file.write("".join(texts))

    def line(self, step, job="j", attempt=1, **more):
        return json.dumps({"step": step, "attempt": attempt, "time": "2026-01-02T03:04:05.678Z", "job": job, "loss": 1.5 / step, **more}) + "\n"

    def end(self, process, words=b"finish\n", code=0):
        self.ours.sendall(words)
        self.assertEqual(code, process.wait(60))

    def steps(self):
        return [(call["step"], call["data"]["step"]) for call in self.calls("log")]

    # The next writer cuts off half a line that a killed writer left, and writes its own line there.
    def test_partial_line_waits_until_it_is_complete(self):
        half = self.line(2)[:30]
        self.write(self.line(1, nothing=None, counts=[1, 2]), "no JSON\n", self.line(9, job="another"), half)
        process = self.start()
        until("the first line", lambda: self.calls("log"))
        self.assertEqual({"step": 1, "attempt": 1, "loss": 1.5, "nothing": "NaN", "_timestamp": 1767323045.678}, comparable(self.calls("log")[0]["data"]))
        os.truncate(self.dump / "metrics.jsonl", (self.dump / "metrics.jsonl").stat().st_size - len(half))
        self.write(self.line(3))
        self.end(process)
        self.assertEqual([(0, 1), (3, 3)], self.steps())

    # A picture that is gone, or that a line describes wrongly, costs neither the others nor the line's figures.
    def test_sends_the_pictures_of_a_validation(self):
        (self.dump / "img").mkdir()
        (self.dump / "img/step-1-grid.png").write_bytes(b"the picture")
        shown = [{"file": "img/step-1-grid.png", "caption": "a cat"}, {"file": "img/gone.png", "caption": ""}, {"caption": "no file"}, 3]
        self.write(self.line(1, pictures=shown), self.line(2, pictures=7))
        self.end(self.start())
        first, second = [call["data"] for call in self.calls("log")]
        self.assertEqual([{"caption": "a cat", "bytes": "the picture"}], first["validation_pictures"])
        self.assertEqual((1.5, 0.75), (first["loss"], second["loss"]))
        self.assertNotIn("validation_pictures", second)

    def test_distinguishes_a_lost_rank_from_one_that_ends(self):
        self.write(self.line(1))
        process = self.start()
        until("the first line", lambda: self.calls("log"))
        self.ours.close()
        process.wait(60)
        self.assertEqual([1], [call["exit_code"] for call in self.calls("finish")])

    def test_refusal_message_omits_the_key(self):
        self.end(self.start(mood="refuses"), words=b"", code=1)
        printed = self.ours.makefile().read()
        self.assertRegex(printed, r"^warning .*the key \(left out\) is not known.*WANDB_MODE=offline.*\n$")

    # The step to resume from is the other run's. wandb counts from there, and an attempt sends only its own lines.
    def test_resumes_another_run(self):
        self.write(self.line(1), self.line(2, attempt=2))
        self.end(self.start(attempt=2, WANDB_RESUME_FROM="old?_step=7"))
        (begun,) = self.calls("init")
        self.assertEqual(("old", "allow"), (begun["id"], begun["resume"]))
        self.assertNotIn("resume_from", begun)
        self.assertEqual([(None, 2)], self.steps())

    # The real package, without a network, writes every line to its own file.
    @unittest.skipUnless(os.environ.get("TITAN_LONG"), "TITAN_LONG is not set; needs pip install wandb==0.31.0")
    def test_the_real_package_offline(self):
        from wandb.proto import wandb_internal_pb2 as wire

        (self.dump / "config.json").write_text('{"training": {"steps": 3}}')
        self.write(self.line(1), self.line(2, none=None), self.line(1, attempt=2))
        self.end(self.start(PYTHONPATH="", WANDB_MODE="offline", WANDB_API_KEY=""))
        (path,) = self.dump.glob("wandb/offline-run-*/*.wandb")
        history, config = [], {}
        for bytes_ in records(path.read_bytes()):
            record = wire.Record.FromString(bytes_)
            if record.WhichOneof("record_type") == "history":
                history.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item})
            config.update({item.key: json.loads(item.value_json) for item in record.run.config.update})
        sent = [{name: value for name, value in entry.items() if name not in ("_step", "_runtime")} for entry in history]
        self.assertEqual([scalars_of(line) for line in lines_of(self.dump / "metrics.jsonl")], [comparable(entry) for entry in sent])
        self.assertEqual([0, 1, 2], [entry["_step"] for entry in history])
        self.assertEqual({"steps": 3}, config["training"])


def records(data):
    """Returns the records of a .wandb file: after 7 bytes it has LevelDB's log format, blocks of 32 KiB with records of (checksum,
    size, kind)."""
    at, part = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        if left < 7 or kind == 0:
            at += left
            continue
        part += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # The whole record, or its last part.
            yield part
            part = b""


if __name__ == "__main__":
    unittest.main(verbosity=2)
