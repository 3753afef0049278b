"""The controller loses its state while a job trains: an empty store, then an older copy of the right one. Nothing is
stopped."""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import failpoints
from fault_case import FaultCase, tiny, wait_until

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from cluster import BIN  # noqa: E402
from jobs import committed_steps, last_step, wait_step  # noqa: E402

STEPS = 100_000  # The job is cancelled in the end.


class Identity(FaultCase):
    def replace_state(self, folder):
        """Starts another controller on the same port, with `folder` (None: an empty one) as its state."""
        state = self.cluster.folder / "controller"
        self.cluster.controller.kill(restart=False)
        shutil.rmtree(state)
        if folder is not None:
            self.cluster.titanctl("cluster", "restore", folder, "--state", state)
        self.cluster.controller.revive()
        return state

    def worker_log(self, name="n1"):
        return Path(self.cluster.worker(name).log).read_text()

    def controller(self, *arguments):
        """Runs titan-controller in a folder with an older version's state; returns (exit code, stderr)."""
        done = subprocess.run([BIN / "titan-controller", *map(str, arguments)], cwd=self.left, capture_output=True, text=True, timeout=30)
        return done.returncode, done.stderr

    def test_no_state_is_overlooked_or_replaced(self):
        """The default folder was once relative: a controller that ignored the old state would serve an empty cluster."""
        self.left = Path(self.enterContext(tempfile.TemporaryDirectory()))
        old = self.left / "titan-controller-state"
        old.mkdir()
        (old / "titan.db").touch()
        code, printed = self.controller()
        self.assertEqual(1, code)
        self.assertIn("--state titan-controller-state", printed)
        code, printed = self.controller("--restore", self.left / "nothing.db", "--state", self.left / "new")
        self.assertEqual(2, code)
        self.assertIn("nothing.db: no such file", printed)
        (self.left / "text.db").write_text("no store" * 1000)
        code, printed = self.controller("--restore", self.left / "text.db", "--state", self.left / "new")
        self.assertEqual(1, code)
        self.assertIn("text.db", printed)
        self.assertFalse((self.left / "new" / "titan.db").exists())

    def test_a_state_folder_deleted_under_its_controller(self):
        """If the folder is deleted, nothing more is acknowledged, acknowledged jobs are found again, and no empty cluster
        replaces them."""
        with failpoints.LoneController() as alone:
            alone.start()
            jobs = sorted(alone.submit() for _ in range(3))
            shutil.rmtree(alone.state / "tmp")  # Folder of copies that are being sent.
            copy = alone.folder / "copy.db"
            self.assertEqual(0, alone.titanctl("cluster", "backup", copy).returncode)
            shutil.rmtree(alone.state)
            self.assertEqual(3, alone.process.wait(timeout=30))
            self.assertIn("was deleted or moved away while it was in use", alone.log.read_text())
            alone.launch()
            self.assertEqual(2, alone.process.wait(timeout=30), "systemd does not restart it")
            (saved,) = alone.state.glob("titan.db.rescued-*")
            self.assertIn(f"mv {saved} {alone.state / 'titan.db'}", alone.log.read_text())
            saved.rename(alone.state / "titan.db")
            alone.start()
            self.assertEqual(jobs, alone.jobs())

    def test_an_empty_controller_and_an_older_copy_stop_nothing(self):
        self.start(workers=1, devices=2)
        backup = self.cluster.folder / "backup.db"
        job = self.cluster.submit(*tiny(self.dump, steps=STEPS, interval=20, extra=["--restart.backoff_initial_seconds", "0.05"]))
        wait_step(self.dump, 2)
        print(self.cluster.titanctl("cluster", "backup", backup).stdout.strip())
        self.assertEqual(0o600, backup.stat().st_mode & 0o777)
        refused = self.cluster.titanctl("cluster", "backup", backup, check=False)
        self.assertEqual(1, refused.returncode)
        self.assertIn("--force", refused.stderr)

        # The copy knows attempt 1; attempt 2 runs.
        self.cluster.ranks()[0].kill()
        wait_until("attempt 2", lambda: [p for p in self.cluster.ranks() if p.attempt == 2][1:], 60)
        wait_step(self.dump, last_step(self.dump) + 1)
        before = [p.identity for p in self.cluster.ranks()]
        self.assertEqual(2, len(before))

        self.replace_state(None)
        wait_until("the worker's refusal", lambda: "WRONG_CLUSTER" in self.cluster.titanctl("node", "list").stderr or None)
        wait_step(self.dump, last_step(self.dump) + 2)
        self.assertEqual(before, [p.identity for p in self.cluster.ranks()])
        self.assertIn("belongs to cluster", self.worker_log())

        # The worker is ordered to follow the empty controller: the job is listed and left alone, and its devices stay
        # in use.
        worker = self.cluster.worker("n1")
        worker.kill(restart=False)
        command = worker.command
        worker.command = [*command, "--adopt-cluster"]
        worker.revive()
        worker.command = command
        (unknown,) = wait_until("unknown attempt", lambda: self.cluster.ask("node", "describe", "n1")["unknown"])
        self.assertEqual(f"projects/default/jobs/{job}", unknown["job"])
        self.assertEqual(2, unknown["attempt"])
        self.assertEqual(2, self.cluster.ask("node", "describe", "n1")["devices_used"])
        wait_step(self.dump, last_step(self.dump) + 2)
        self.assertEqual(before, [p.identity for p in self.cluster.ranks()])

        # The older copy comes back, and the worker follows it again.
        self.replace_state(backup)
        worker.kill(restart=False)
        worker.command = [*command, "--adopt-cluster"]
        worker.revive()
        worker.command = command
        wait_until("adoption", lambda: "AttemptAdopted" in [e["reason"] for e in self.cluster.events(job)] or None)
        wait_until("RUNNING", lambda: self.cluster.job(job)["state"] == "RUNNING" or None)
        self.assertEqual(before, [p.identity for p in self.cluster.ranks()])
        self.cluster.titanctl("cancel", job)
        end = self.cluster.wait(job)
        self.assertEqual("CANCELLED", end["state"])
        self.assertEqual([1, 2], [a["number"] for a in end["attempts"]])
        self.assertEqual(committed_steps(self.dump)[-1], end["progress"]["step"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
