"""Tests submit's check of a job against the nodes: before the first worker registers it passes, afterwards it reports what cannot
fit."""

import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from cluster import Cluster, wait_until
from jobs import TINY, tiny


class Fit(unittest.TestCase):
    def setUp(self):
        self.cluster = self.enterContext(Cluster(workers=0))
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def submit(self, *words, check=True):
        return self.cluster.titanctl("submit", TINY, "--job.dump_folder", self.folder / "dump", *words, check=check)

    # A submit may immediately follow a worker's start.
    def test_before_the_first_worker(self):
        printed = self.submit("--dry-run").stderr
        self.assertIn("the job waits for the first worker to register", printed)
        self.assertNotIn("cannot run", printed)
        refused = self.submit("--require-fit", check=False)
        self.assertEqual(1, refused.returncode)
        self.assertIn("waits for the first worker to register", refused.stderr)

        self.assertEqual("", self.submit("-q", "--job-id", "early").stderr)
        self.assertEqual("NO_NODES", wait_until("reason", lambda: self.cluster.ask("describe", "early").get("pending_reason")))
        self.cluster.titanctl("cancel", "early", "--wait", check=False)
        done = self.cluster.titanctl("submit", *tiny(self.folder / "other", steps=2, ranks=1), "--job-id", "second")
        self.assertNotIn("cannot run", done.stderr)
        self.cluster.add_worker("n1")
        self.cluster.succeed("second")

    def test_a_dry_run_shows_the_configuration(self):
        shown = json.loads(self.submit("--dry-run", "--training.seq_len", "128", "-o", "json").stdout)
        self.assertEqual(128, shown["spec"]["config"]["training"]["seq_len"])
        self.assertEqual(2, shown["spec"]["config"]["parallelism"]["data_parallel_shard_degree"], "resolved: the file leaves it to the ranks")

    # A petabyte: no test machine has it.
    def test_job_too_large_for_any_device(self):
        self.cluster.add_worker("n1")
        node = wait_until("the node", lambda: self.cluster.ask("node", "list")["nodes"])[0]["resources"]
        self.assertEqual(int(node["memory_bytes"]) // node["devices"], int(node["device_memory_bytes"]))
        self.assertIn(" GiB", self.cluster.titanctl("node", "list").stdout)
        self.assertIn("of a device", self.cluster.titanctl("node", "describe", "n1").stdout)
        large = ["--model.flavor", "405B", "--training.local_batch_size", "512", "--training.seq_len", "8192", "--training.global_batch_size", "-1"]
        printed = self.submit("--dry-run", *large).stderr
        self.assertIn("MEMORY_TOO_SMALL: the fullest rank takes about ", printed)
        for part in ("weights ", "gradients ", "optimizer ", "activations ", "buffers ", "but the largest device has "):
            self.assertIn(part, printed)
        self.assertEqual(1, self.submit("--dry-run", "--require-fit", *large, check=False).returncode)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
