"""Tests `titanctl profile`: traces of a training job arrive from the ranks of two nodes in the user's folder."""

import json
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from cluster import BIN, Cluster, wait_until
from jobs import tiny, wait_step


def names(path):
    return [event.get("name", "") for event in json.loads(path.read_text())["traceEvents"]]


def steps_in(trace):
    return sorted(int(name.removeprefix("ProfilerStep#")) for name in trace if name.startswith("ProfilerStep#"))


class Profile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(workers=2, devices=1))
        cls.dump = cls.cluster.folder / "dump"
        cls.job = cls.cluster.submit(*tiny(cls.dump, steps=100000, interval=100000, ranks_per_node=1))
        wait_step(cls.dump, 2)

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def profile(self, *arguments, check=True):
        return self.cluster.titanctl("profile", self.job, *arguments, check=check)

    def begin(self, *arguments):
        """Starts a call in the background and returns it once its ranks record."""
        process = subprocess.Popen([BIN / "titanctl", "--controller", self.cluster.address, "profile", self.job, "--folder", self.folder,
                                    *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        printed = ""
        while "recording steps" not in printed:
            line = process.stderr.readline()
            self.assertTrue(line, printed)
            printed += line
        return process

    def wait_until_free(self, rank):
        def records():
            return self.profile("--ranks", rank, "--steps", 1, "--folder", self.folder, check=False).returncode == 0

        wait_until(f"rank {rank} to be free", records, timeout=120, poll=0.1)  # Sixteen recorded steps take this long on a busy machine.

    def test_every_rank_records_the_same_steps(self):
        for i in range(3):  # A rank on a machine that stalled for a second records the next steps that it can.
            folder = self.folder / f"out-{i}"
            done = self.profile("--ranks", "0,1", "--steps", 3, "--folder", folder)
            files = [folder / f"rank{rank}_trace.json" for rank in (0, 1)]
            self.assertEqual([str(file) for file in files], sorted(done.stdout.splitlines()))
            self.assertEqual(files, sorted(folder.iterdir()))
            self.assertRegex(done.stderr, r"rank 1: steps \d+ to \d+, \d+\.\d MiB")
            traces = [names(file) for file in files]
            steps = steps_in(traces[0])
            self.assertEqual(list(range(steps[0], steps[0] + 3)), steps)
            if steps == steps_in(traces[1]):
                break
        self.assertEqual(steps, steps_in(traces[1]))
        for trace in traces:
            for expected in ("data", "forward 0F0", "backward 0B0", "layers.0", "layers.0 backward", "aten::mm"):
                self.assertIn(expected, trace)
            self.assertTrue([name for name in trace if re.fullmatch(r"all_gather \S+, 2 ranks, \d+ bytes", name)])
        wait_step(self.dump, steps[-1] + 2)
        self.assertEqual("RUNNING", self.cluster.job(self.job)["state"])
        wait_until("events of both ranks' traces", lambda: [event["reason"] for event in self.cluster.events(self.job)
                                                            if event["message"].startswith(f"steps {steps[0]} to {steps[-1]},")]
                   == ["TraceRecorded"] * 2)

    def test_a_script_gets_json(self):
        done = self.cluster.titanctl("profile", self.job, "--ranks", 1, "--steps", 1, "-o", "json")
        result = json.loads(done.stdout)
        self.assertEqual("", done.stderr)
        [trace] = result["traces"]
        self.assertEqual((self.job, 1, f"{self.job}_iteration_{trace['last_step']}"),
                         (result["job"], trace["rank"], result["folder"]))
        file = self.cluster.folder / trace["file"]
        self.assertEqual(f"{result['folder']}/rank1_trace.json", trace["file"])
        self.assertEqual(file.stat().st_size, trace["bytes"])
        self.assertEqual([trace["first_step"]], steps_in(names(file)))

    def test_impossible_requests_are_refused(self):
        wrong = self.profile("--ranks", "0,2", check=False)
        self.assertEqual(2, wrong.returncode)
        self.assertIn("2 is not one of the job's 2 ranks", wrong.stderr)
        waits = self.cluster.submit(*tiny(self.folder / "dump", ranks=64))
        queued = self.cluster.titanctl("profile", waits, check=False)
        self.assertEqual(1, queued.returncode)
        self.assertIn("is QUEUED: only a running job can be profiled", queued.stderr)
        self.cluster.titanctl("cancel", waits)
        over = self.cluster.titanctl("profile", waits, check=False)
        self.assertEqual(1, over.returncode)
        self.assertIn("is CANCELLED: cannot profile", over.stderr)

    def test_two_calls_at_once(self):
        process = self.begin("--steps", 16)
        other = self.profile("--ranks", "0,1", check=False)
        self.assertEqual(1, other.returncode)
        self.assertIn("rank 0 is to record 16 steps from step", other.stderr)
        process.send_signal(signal.SIGINT)  # The job continues, and so does the recording.
        self.assertEqual(130, process.wait(10))
        self.assertEqual([], list(self.folder.iterdir()))
        self.assertEqual("RUNNING", self.cluster.job(self.job)["state"])
        self.wait_until_free(0)

    def test_daemons_may_die(self):
        process = self.begin("--ranks", "0,1", "--steps", 8)
        self.cluster.worker("n2").kill()
        self.cluster.controller.kill()
        out, err = process.communicate(timeout=60)
        self.assertEqual(0, process.returncode, err)
        traces = [names(Path(line)) for line in sorted(out.splitlines())]
        self.assertEqual([8, 8], [len(steps_in(trace)) for trace in traces])

    def test_stopped_or_killed_ranks_are_named(self):
        ranks = self.cluster.ranks()
        for rank in ranks:
            rank.kill(signal.SIGSTOP)
        try:
            still = self.profile("--ranks", 1, "--timeout", 1, "--folder", self.folder, check=False)
        finally:
            for rank in ranks:
                rank.kill(signal.SIGCONT)
        self.assertEqual(4, still.returncode, still.stderr)
        self.assertRegex(still.stderr, r"rank 1 on node n\d has shown no progress for 1s after step \d+")
        self.wait_until_free(1)  # The rank finishes the requested recording, though the caller has stopped waiting.
        (self.folder / "rank1_trace.json").unlink()

        process = self.begin("--ranks", "0,1", "--steps", 20)
        ranks[1].kill()
        _, err = process.communicate(timeout=60)
        self.assertEqual(1, process.returncode, err)
        self.assertRegex(err, r"attempt \d+ ended \(RANK_KILLED\) before the trace of rank \d arrived")
        self.assertEqual([], list(self.folder.iterdir()))
        self.cluster.wait(self.job, "running")


if __name__ == "__main__":
    unittest.main(verbosity=2)
