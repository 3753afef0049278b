"""Checks which job owns a dump folder, for every name that the folder can have and every operation on it.

Each cell is either right (training continues from the committed step) or rejected by name, and the job that holds the
folder is never disturbed. Prints its table.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from cluster import BIN, Cluster, wait_until  # noqa: E402
from jobs import committed_steps, last_step, tiny, wait_committed, wait_step  # noqa: E402
from mounts import PRIVATE_MOUNTS, may_mount_privately  # noqa: E402

SMALL = ["--training.seq_len", 64, "--training.local_batch_size", 1, "--checkpoint.no_last_save_model_only"]
FOREVER = 100_000


def private_mounts():
    """Re-runs this program in a private mount namespace, which root may create; returns False if that is refused."""
    if os.environ.get("TITAN_PRIVATE_MOUNTS"):
        return True
    if not may_mount_privately():
        return False
    os.environ["TITAN_PRIVATE_MOUNTS"] = "1"
    os.execvp("unshare", [*PRIVATE_MOUNTS, sys.executable, *sys.argv])


def copy_folder(source, target):
    """Copies a folder like a backup of a live folder."""
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("*.tmp"))


class FolderIdentity(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.rows = []
        self.addCleanup(lambda: print("\n".join(f"{name:28} {verb:8} {what}" for name, verb, what in self.rows)))

    def start(self, **options):
        self.cluster = self.enterContext(Cluster(workers=1, **options))
        self.cluster.environment["XDG_CACHE_HOME"] = str(self.folder)  # `titanctl run` keeps the state of a failed run there.

    # --- Operations ---

    def submit(self, dump, steps=FOREVER, extra=()):
        return self.cluster.submit(*tiny(dump, steps=steps, ranks=1, extra=[*SMALL, *extra]))

    def refused_at_submit(self, name, dump, live):
        done = self.cluster.titanctl("submit", *tiny(dump, steps=FOREVER, ranks=1, extra=SMALL), "-q", check=False)
        self.assertEqual(1, done.returncode, done.stdout + done.stderr)
        self.assertIn(f"belongs to projects/default/jobs/{live}", done.stderr)
        self.rows.append((name, "submit", "refused, names the live job"))

    def refused_run(self, name, dump):
        done = self.cluster.titanctl("run", *tiny(dump, steps=FOREVER, ranks=1, extra=SMALL), check=False)
        self.assertEqual(1, done.returncode, done.stdout + done.stderr)
        self.assertIn("DUMP_FOLDER_IN_USE", done.stderr)
        self.assertIn("belongs to job projects/default/jobs/", done.stderr)
        self.rows.append((name, "run", "refused, names the live job"))

    def undisturbed(self, job, dump):
        wait_step(dump, last_step(dump) + 3)
        now = self.cluster.job(job)
        self.assertEqual(("RUNNING", 1), (now["state"], len(now["attempts"])))

    def loaded(self, job, attempt):
        """Returns the message of the attempt's AttemptLoaded event."""
        def find():
            found = [e for e in self.cluster.events(job) if e["reason"] == "AttemptLoaded" and e["attempt"] == attempt]
            return found and found[0]["message"]
        return wait_until(f"load of attempt {attempt} of {job}", find, 60, poll=0.1)

    def signal_ranks(self, number):
        for rank in self.cluster.ranks():
            rank.kill(number)

    def stop_apart_from_fence(self, dump):
        """Stops the ranks while none of them holds the folder's lock, because a stopped holder would block every other job.
        """

        def stopped():
            self.signal_ranks(signal.SIGSTOP)
            wait_until("stopped ranks", lambda: all(Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
                                                            for rank in self.cluster.ranks()), 60, poll=0.01)
            with open(dump / ".fence.lock") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True
                except BlockingIOError:
                    self.signal_ranks(signal.SIGCONT)
                    return False

        wait_until("ranks stopped apart from the fence", stopped, 60, poll=0.02)

    def kill_rank(self, job):
        """Kills the rank and returns the number of the next attempt."""
        attempt = len(self.cluster.job(job)["attempts"])
        self.signal_ranks(signal.SIGKILL)
        return attempt + 1

    def restart(self, name, job, dump, change):
        wait_committed(dump, max(committed_steps(dump), default=0) + 1)
        known = max(committed_steps(dump))
        change()
        attempt = self.kill_rank(job)
        message = self.loaded(job, attempt)
        self.assertRegex(message, "checkpoint of step")
        self.assertGreaterEqual(int(message.split()[-1]), known)
        wait_step(dump, known + 1)
        self.rows.append((name, "restart", "resumes from the committed step"))

    def fails(self, name, verb, job, reason):
        end = self.cluster.wait(job, timeout=60)
        self.assertEqual(("FAILED", reason), (end["state"], end["failure_reason"]), end["failure_message"])
        self.rows.append((name, verb, reason))
        return end

    def resume(self, name, dump):
        known = max(committed_steps(dump))
        job = self.submit(dump, steps=known + 2)
        self.cluster.succeed(job)
        self.assertEqual(f"checkpoint of step {known}", self.loaded(job, 1))
        self.rows.append((name, "resume", "resumes from the newest step"))

    # --- Names of a folder ---

    def bind(self, source):
        target = Path(tempfile.mkdtemp(prefix="bound-", dir=self.folder))
        subprocess.run(["mount", "--bind", source, target], check=True)
        self.addCleanup(subprocess.run, ["umount", target], check=True)
        return target

    def link(self, source):
        target = self.folder / f"{source.name}-link"
        target.symlink_to(source)
        return target

    def test_one_job_under_every_name(self):
        self.start(devices=2)
        dump = self.folder / "dump"
        link, copy = self.link(dump), self.folder / "copy"
        job = self.submit(dump)
        wait_committed(dump, 5)
        names = [("same path", dump), ("symlink", link)] + ([("bind mount", self.bind(dump))] if MOUNTS else [])
        for name, path in names:
            self.refused_at_submit(name, path, job)
            self.refused_run(name, path)
        if MOUNTS:  # titanctl's machine does not see the nodes' mounts.
            bound = names[-1][1]
            blind = ["unshare", "-m", "sh", "-c", f"umount {bound} && exec \"$@\"", "sh", BIN / "titanctl"]
            done = subprocess.run([*blind, "submit", *map(str, tiny(bound, steps=FOREVER, ranks=1, extra=SMALL)), "-q"], text=True,
                                  capture_output=True, check=True,
                                  env={**self.cluster.environment, "TITAN_CONTROLLER": self.cluster.address})
            end = self.fails("seen by nodes alone", "submit", done.stdout.strip(), "DUMP_FOLDER_IN_USE")
            self.assertIn(f"{job} under the name {dump}", end["failure_message"])
            self.assertEqual([[]], [attempt["exits"] for attempt in end["attempts"]], "no rank has run")
        copy_folder(dump, copy)
        self.refused_at_submit("restored copy", copy, job)
        os.utime(copy / ".fence-alive", (1, 1))  # No job beats in a copy; an old beat ends the wait for silence.
        known = max(committed_steps(copy))
        self.cluster.titanctl("run", *tiny(copy, steps=known + 2, ranks=1, extra=SMALL))
        self.assertEqual(known + 2, max(committed_steps(copy)))  # Its metrics may have later steps, logged before the copy was made.
        self.rows.append(("restored copy", "run", "resumes in the copy alone"))
        self.undisturbed(job, dump)

        self.restart("same path", job, dump, lambda: None)
        moved = self.folder / "moved"
        self.restart("symlink", job, dump, lambda: (dump.rename(moved), dump.symlink_to(moved)))
        older = self.folder / "older"

        def restore():
            copy_folder(moved, older)
            wait_committed(moved, max(committed_steps(older)) + 1)
            dump.unlink()
            moved.rename(self.folder / "lost")
            older.rename(dump)
        wait_committed(dump, max(committed_steps(dump)) + 1)
        restore()
        self.assertRegex(self.loaded(job, self.kill_rank(job)), "checkpoint of step")
        warnings = [e["message"] for e in self.cluster.events(job) if e["reason"] == "RankWarning"]
        self.assertTrue(any("but the newest that can be read is step" in text for text in warnings), warnings)
        self.rows.append(("older restored copy", "restart", "resumes, a warning names both steps"))
        wait_step(dump, last_step(dump) + 1)

        self.cluster.titanctl("cancel", job)
        self.assertEqual("CANCELLED", self.cluster.wait(job)["state"])
        self.resume("same path", dump)
        self.resume("symlink", self.folder / "dump-link")
        if MOUNTS:
            self.resume("bind mount", self.bind(dump))
        shutil.rmtree(dump / "checkpoint")
        job = self.submit(dump, steps=2)
        self.cluster.succeed(job)
        self.assertEqual("initial weights (fresh)", self.loaded(job, 1))
        self.assertTrue(any("training starts from scratch" in e["message"] for e in self.cluster.events(job)))
        self.rows.append(("emptied on purpose", "resume", "from scratch, with a warning"))

    def test_removed_or_replaced_folder(self):
        self.start(devices=1, lease_ms=1000)
        dump, other = self.folder / "dump", self.folder / "other"
        done = self.submit(other, steps=5)
        self.cluster.succeed(done)
        before = (other / "fence.json").read_bytes()

        job = self.submit(dump)
        wait_committed(dump, 5)
        self.signal_ranks(signal.SIGSTOP)  # Otherwise the rank itself would find the other job's fence.
        dump.rename(self.folder / "away")
        other.rename(dump)
        self.kill_rank(job)
        self.fails("another job's folder", "restart", job, "DUMP_FOLDER_REPLACED")
        self.assertEqual(before, (dump / "fence.json").read_bytes(), "the other job's folder is unchanged")
        dump.rename(other)

        job = self.submit(self.folder / "removed")
        wait_committed(self.folder / "removed", 5)
        self.signal_ranks(signal.SIGSTOP)
        shutil.rmtree(self.folder / "removed")
        self.kill_rank(job)
        end = self.fails("removed", "restart", job, "CHECKPOINTS_GONE")
        self.assertIn(str(self.folder / "removed"), end["failure_message"])
        self.assertEqual([], committed_steps(self.folder / "removed"))

        # A job is paused so long that another job may take the folder: it fails for good when it resumes, and the other
        # job is undisturbed.
        dump = self.folder / "paused"
        job = self.submit(dump)
        wait_committed(dump, 5)
        self.stop_apart_from_fence(dump)
        os.utime(dump / ".fence-alive", (1, 1))
        known = max(committed_steps(dump))
        done = self.cluster.titanctl("run", *tiny(dump, steps=known + 2, ranks=1, extra=SMALL))
        self.assertIn("was taken over from job projects/default/jobs/", done.stdout)  # Printed by the rank.
        self.signal_ranks(signal.SIGCONT)
        end = self.fails("taken while paused", "restart", job, "DUMP_FOLDER_TAKEN")
        self.assertIn("was taken over by job projects/default/jobs/", end["failure_message"])
        self.assertEqual(1, len(end["attempts"]))
        self.assertEqual(known + 2, max(committed_steps(dump)))

        if not MOUNTS:
            return
        # One of three nodes lacks the mount: the job continues elsewhere, and starts from step 0 nowhere.
        mount = self.folder / "mount"
        mount.mkdir()
        job = self.submit(mount / "dump", extra=["--restart.unreachable_grace_seconds", 1])
        wait_committed(mount / "dump", 5)
        for name in ("n2", "n3"):
            daemon = self.cluster.add_worker(name)
            if name == "n2":
                daemon.supervised = False
                daemon.kill(restart=False)
                daemon.command = ["unshare", "-m", "sh", "-c", f"mount -t tmpfs none {mount} && exec \"$@\"", "sh", *daemon.command]
                daemon.revive()
        ready = lambda: {n["name"][-2:] for n in self.cluster.ask("node", "list")["nodes"] if n["state"] == "READY"}  # noqa: E731
        wait_until("three nodes", lambda: {"n1", "n2", "n3"} <= ready(), 30, poll=0.1)
        known = max(committed_steps(mount / "dump"))
        self.cluster.kill_node("n1")
        self.assertRegex(self.loaded(job, 3), "checkpoint of step")
        attempts = self.cluster.job(job)["attempts"]
        self.assertEqual([["n1"], ["n2"], ["n3"]], [[p["node"] for p in a["placements"]] for a in attempts])
        self.assertIn(f"the job's dump folder {mount}/dump is not here", attempts[1]["end_message"])
        wait_step(mount / "dump", known + 1)
        self.rows.append(("missing on one node", "restart", "resumes on another node"))


MOUNTS = private_mounts()
if __name__ == "__main__":
    unittest.main()
