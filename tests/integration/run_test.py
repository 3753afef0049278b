"""Tests `titanctl run`: no cluster before it and none after it; its output, its exit code, and Ctrl-C."""

import json
import os
import re
import signal
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from cluster import BIN, wait_until
from jobs import committed_steps, last_step, losses, tiny, wait_step
from titanctl_case import TitanctlCase


def can_run(program, identity):
    """Returns whether a process of that user can start the program and find its libraries: others cannot enter a checkout below /root."""
    try:
        return subprocess.run([program, "--version"], capture_output=True, check=False, cwd="/", **identity).returncode == 0
    except PermissionError:
        return False


class Run(TitanctlCase):
    def setUp(self):
        super().setUp()
        self.dump = self.folder / "dump"

    def test_runs_to_the_end_and_leaves_nothing_running(self):
        process = self.start("run", *tiny(self.dump, steps=10))
        out, err = process.communicate(timeout=60)
        self.assertEqual(0, process.returncode, err)
        self.assertEqual(10, len([line for line in out.splitlines() if "loss:" in line]))
        self.assertIn("SUCCEEDED", err)
        self.assertEqual(10, len(losses(self.dump)))
        self.assertEqual([], self.left())
        self.assertEqual([], list((self.folder / "cache/titan").iterdir()))
        # The saved configuration of the run is next to its output and is valid as any other.
        saved = self.dump / "config.json"
        dumped = subprocess.run([BIN / "titanctl", "config", "dump", saved, "-o", "json"], capture_output=True, text=True, check=True)
        self.assertEqual(json.loads(saved.read_text()), json.loads(dumped.stdout))
        again = subprocess.run([BIN / "titanctl", "validate", saved], capture_output=True, text=True)
        self.assertEqual(0, again.returncode, again.stderr)

    # Four ranks as threads use one device of the private node.
    def test_a_mesh_in_one_process(self):
        # Foreign files among the steps stay: weights of a hub without an index, an export for torch.load.
        foreign = [self.dump / "checkpoint/step-0/model.safetensors", self.dump / "checkpoint/step-3/model.pt"]
        for path in foreign:
            path.parent.mkdir(parents=True)
            path.write_text("weights")
        process = self.start("run", *tiny(self.dump, steps=5, ranks=4, extra=["--comm.mode", "local_tensor"]))
        out, err = process.communicate(timeout=60)
        self.assertEqual([True, True], [path.exists() for path in foreign])
        self.assertRegex(out + err, r"step-0, \S*step-3: not written by an attempt of a job")
        self.assertEqual(0, process.returncode, err)
        self.assertIn("SUCCEEDED", err)
        self.assertEqual(5, len([line for line in out.splitlines() if "loss:" in line]))
        self.assertEqual(5, len(losses(self.dump)))

    def test_first_interrupt_saves_and_stops(self):
        process = self.start("run", *tiny(self.dump, steps=500, interval=500))
        wait_step(self.dump, 3)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        self.assertEqual(130, process.returncode, err)
        self.assertEqual([last_step(self.dump)], committed_steps(self.dump))
        self.assertEqual([], self.left())

    # Slurm and others signal each process of a job, with several signals and more than once, and then wait before they
    # kill.
    def test_signals_of_schedulers_to_every_process_save(self):
        process = self.start("run", *tiny(self.dump, steps=500, interval=500))
        wait_step(self.dump, 3)
        everybody = self.left()
        self.assertEqual({"titanctl", "titan-controller", "titan-worker", "titan-shim", "titan-rank"}, {p.program for p in everybody})
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGXCPU, signal.SIGCONT, signal.SIGTERM):
            for one in everybody:
                one.kill(number)
        _, err = process.communicate(timeout=60)
        self.assertEqual(130, process.returncode, err)
        self.assertEqual([last_step(self.dump)], committed_steps(self.dump), err)
        wait_until("end of all processes", lambda: not self.left())

    def test_second_interrupt_kills(self):
        process = self.start("run", *tiny(self.dump, steps=500, interval=500))
        wait_step(self.dump, 3)
        for rank in [p for p in self.left() if p.program == "titan-rank"]:
            rank.kill(signal.SIGSTOP)  # So that the first interrupt cannot end it.
        process.send_signal(signal.SIGINT)
        while "Ctrl-C again kills" not in (line := process.stderr.readline()):
            self.assertTrue(line, "titanctl ended at the first interrupt")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        self.assertEqual(130, process.returncode)
        wait_until("end of all processes", lambda: not self.left())

    def test_killed_titanctl_takes_its_daemons_and_ranks_down(self):
        process = self.start("run", *tiny(self.dump, steps=500, interval=500))
        wait_step(self.dump, 2)
        process.kill()
        process.communicate()
        wait_until("end of all processes", lambda: not self.left(), 40)
        self.assertTrue(committed_steps(self.dump), "the ranks did not save before they exited")

    def test_a_bad_configuration_starts_nothing(self):
        process = self.start("run", *tiny(self.dump), "--training.stepz", 3)
        _, err = process.communicate(timeout=10)
        self.assertEqual(2, process.returncode)
        self.assertIn("training.steps", err)
        self.assertFalse((self.folder / "cache").exists())

    def test_a_failing_job_gives_its_reason(self):
        text = self.folder / "text"
        text.mkdir()
        (text / "a.json").write_text('{"text": "hello"}\n' + "broken\n" * 50)
        process = self.start("run", *tiny(self.dump, extra=["--training.dataset_path", text, "--training.dataloader.max_bad_lines", 3]))
        _, err = process.communicate(timeout=60)
        self.assertEqual(1, process.returncode, err)
        self.assertIn("a.json", err)
        # The error names the log and does not refer to a controller that no longer exists.
        self.assertNotIn("titanctl describe", err)
        logs = re.search(r"what the ranks printed: (\S+)/rank-\*\.log", err)
        # Either rank may meet the line first: the other one is stopped.
        self.assertTrue(any("a.json" in log.read_text() for log in Path(logs.group(1)).glob("rank-*.log")))

    # Only the ranks can see that weights are of another model: the job ends after one attempt, with the rank's own message.
    def test_weights_of_another_model_are_reported_once(self):
        weights = self.folder / "hf"
        weights.mkdir()
        (weights / "config.json").write_text(json.dumps({"model_type": "mistral"}))
        (weights / "model.safetensors").write_text("")
        process = self.start("run", *tiny(self.dump, steps=2, ranks=1, extra=[
            "--no-file-checks", "--checkpoint.initial_load_in_hf", "--checkpoint.initial_load_path", weights, "--lr_scheduler.warmup_steps", 9]))
        out, err = process.communicate(timeout=60)
        self.assertEqual(1, process.returncode, err)
        self.assertIn("FAILED: MODEL_MISMATCH: ", err)
        self.assertNotIn("attempt 2", out + err)
        mentions = [line for line in (out + err).splitlines() if 'model_type is "mistral"' in line]
        self.assertLessEqual(len(mentions), 3, "\n".join(mentions))  # A rank's exit may be reported before its message.
        warned = [line for line in (out + err).splitlines() if "lr_scheduler.warmup_steps" in line]
        self.assertEqual(1, len(warned), "\n".join(warned))

    # Only the shapes show that the weights are of another model.
    def test_weights_of_another_shape_are_tried_once(self):
        weights = self.folder / "hf"
        weights.mkdir()
        header = json.dumps({"model.embed_tokens.weight": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}}).encode()
        (weights / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
        process = self.start("run", *tiny(self.dump, steps=2, ranks=1, extra=[
            "--no-file-checks", "--checkpoint.initial_load_in_hf", "--checkpoint.initial_load_path", weights]))
        out, err = process.communicate(timeout=60)
        self.assertEqual(1, process.returncode, err)
        self.assertIn("FAILED: MODEL_MISMATCH: ", err)
        self.assertIn("does not fit this model", err)
        self.assertNotIn("attempt 2", out + err)

    # Files follow the umask of the shell that started the job, so that another user of the group can continue it.
    @unittest.skipUnless(os.geteuid() == 0, "only root may become another user")
    def test_a_colleague_of_the_group_continues(self):
        group = 12000
        self.folder.chmod(0o755)
        shared = self.folder / "shared"
        shared.mkdir()
        os.chown(shared, 11001, group)
        shared.chmod(0o2775)
        for steps, user in ((2, 11001), (4, 11002)):
            identity = {"user": user, "group": group, "extra_groups": [], "umask": 0o002}
            if not can_run(BIN / "titan-rank", identity):
                self.skipTest(f"another user cannot run what is in {BIN}")
            cache = self.folder / f"cache-{user}"
            cache.mkdir()
            os.chown(cache, user, group)
            process = self.start("run", *tiny(shared / "dump", steps=steps, interval=2, ranks=1), identity=identity,
                                 HOME="/nonexistent", XDG_CACHE_HOME=str(cache))
            out, err = process.communicate(timeout=60)
            self.assertEqual(0, process.returncode, out + err)
        self.assertEqual([1, 2, 3, 4], sorted(losses(shared / "dump")))
        wrong = [path for path in (shared / "dump").rglob("*") if path.stat().st_mode & 0o777 != (0o775 if path.is_dir() else 0o664)]
        self.assertEqual([], wrong)

    # /proc cannot hold folders: no rank ever starts, and no log exists.
    def test_reason_is_shown_for_a_rank_that_never_started(self):
        process = self.start("run", *tiny("/proc/titan/dump", ranks=1))
        _, err = process.communicate(timeout=60)
        self.assertEqual(1, process.returncode, err)
        self.assertIn("rank 0: it never began on this node; attempt 1 ended with USER_ERROR: node local: the dump folder /proc/titan/dump", err)
        self.assertNotIn("no log", err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
