"""Runs a cluster under a live Prometheus while a rank is killed: every query of the dashboard and every alert is answered and has
data."""

import re
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from live import BIN, TIMEOUT, SOURCE, WatchedCluster, need  # noqa: E402

import panels  # noqa: E402
from cluster import wait_until  # noqa: E402
from metrics_page import documented, families  # noqa: E402

WINDOW = "5m"  # Covers everything that happens in this test.
FIGURES = {"loss_metrics/global_avg_loss": 2.5, "grad_norm": 1.0, "throughput(tps)": 1000.0, "mfu(%)": 30.0, "moe/max_over_mean": 1.5,
           "time_metrics/checkpoint(s)": 0.01}
FAKE = {"steps": -1, "step_ms": 40, "loads": 0, "metrics": FIGURES}

# These series need more time than this test, or a broken machine, to have data. The queries still run.
WITHOUT_DATA = {"titan_rank_straggler_score", "titan_worker_gpu_"}  # Matched as part of an expression.
# Series of attempts and nodes that misbehave, and of certificates, which this cluster does not use.
SERIES_WITHOUT_DATA = WITHOUT_DATA | {"titan_node_unknown_attempts", "titan_node_refusals_total", "titan_worker_attempt_memory_kills",
                                      "titan_certificate_expiry_timestamp_seconds"}


class LiveTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        need("prometheus")
        cls.cluster = WatchedCluster(FAKE, devices=1)
        try:
            cls.live()
        except BaseException:
            cls.cluster.show_logs()
            cls.cluster.close()
            raise

    @classmethod
    def tearDownClass(cls):
        cls.cluster.close()

    @classmethod
    def submit(cls, name, ranks):
        return cls.cluster.submit(SOURCE / "configs/llama3_tiny.toml", "--job.dump_folder", cls.cluster.folder / name, "--resources.ranks", ranks,
                                  "--resources.threads_per_rank", 1, "--checkpoint.enable")

    @classmethod
    def live(cls):
        """Runs a job that saves, loses a rank and recovers, a job that waits, a call that fails and a follower of events."""
        cluster = cls.cluster
        job = cls.submit("trains", 2)
        cluster.wait(job, "step=10")
        cluster.titanctl("checkpoint", job, "--wait")
        wait_until("a first scrape", lambda: cluster.prometheus.query(f'titan_job_step{{titan_job="projects/default/jobs/{job}"}}'), TIMEOUT)
        cluster.processes("fake_rank")[0].kill()
        wait_until("another attempt", lambda: len(cluster.job(job)["attempts"]) == 2, TIMEOUT)
        cluster.wait(job, "step=30")
        cls.submit("waits", 5)
        for _ in range(2):  # Only the second one counts as an increase.
            cluster.titanctl("describe", "nobody", check=False)
            wait_until("the failed call", lambda: cluster.prometheus.query('titan_rpc_duration_seconds_count{code="NOT_FOUND"}'), TIMEOUT)
        cls.follower = subprocess.Popen([BIN / "titanctl", "events", job, "-f"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        env={**cluster.environment, "TITAN_CONTROLLER": cluster.address})
        cls.addClassCleanup(cls.follower.wait)
        cls.addClassCleanup(cls.follower.kill)

    def has_data(self, expression):
        wait_until(f"data of {expression}", lambda: self.cluster.prometheus.query(expression), TIMEOUT, 0.1)

    def test_every_panel_has_data(self):
        for panel in panels.panels():
            for _, expression in panel.queries:
                with self.subTest(panel.title):
                    promql = panels.resolved(expression, WINDOW)
                    self.cluster.prometheus.query(promql)
                    if not any(name in expression for name in WITHOUT_DATA):
                        self.has_data(promql)

    def test_every_alert_is_evaluated(self):
        rules = wait_until("an evaluation", lambda: self.evaluated(self.cluster.prometheus.rules()), TIMEOUT, 0.1)
        names = re.findall(r"- alert: (\w+)", (SOURCE / "deploy/prometheus/alerts.yml").read_text())
        self.assertEqual(sorted(names), sorted(rule["name"] for rule in rules))
        for rule in rules:
            self.assertEqual(("ok", ""), (rule["health"], rule.get("lastError", "")), rule["name"])
            self.cluster.prometheus.query(rule["query"])
        firing = {rule["name"] for rule in rules if rule["state"] == "firing"}
        self.assertLessEqual(firing, {"DiskAlmostFull"}, "alerts of a healthy cluster")  # That alert is about the machine itself.

    @staticmethod
    def evaluated(rules):
        return rules if rules and all(rule["health"] != "unknown" for rule in rules) else None

    def test_every_series_is_documented_and_scraped(self):
        """Every series of the pages is as docs/metrics.md describes it, and Prometheus has it under that name."""
        known = documented()
        for address in sum(self.cluster.pages().values(), []):
            for name, family in families(self.cluster.page(address)).items():
                self.assertIn(name, known, "it is not in docs/metrics.md")
                self.assertEqual(known[name].type, family.type, name)
                self.assertLessEqual(family.labels, known[name].labels, name)
        for name, row in known.items():
            if name not in SERIES_WITHOUT_DATA and not name.startswith("titan_worker_gpu_"):
                self.has_data(name + "_bucket" if row.type == "histogram" else name)

    def test_lost_node_raises_alerts(self):
        """The worker ends for good: alerts report its page, its node and its silence."""
        prometheus = self.cluster.prometheus
        self.cluster.kill_node("n2")
        self.has_data('titan_nodes{state=~"LOST|UNREACHABLE"} > 0')
        self.has_data('up{job="titan-worker"} == 0')
        pending = wait_until("the alerts", lambda: self.pending(prometheus.rules(), {"NodeLost", "WorkerDown"}), TIMEOUT, 0.1)
        self.assertTrue(pending)

    @staticmethod
    def pending(rules, names):
        return names <= {rule["name"] for rule in rules if rule["state"] in ("pending", "firing")}


def load_tests(loader, tests, _):
    """Runs the test that removes a node last."""
    names = sorted(loader.getTestCaseNames(LiveTest), key=lambda name: "lost_node" in name)
    return unittest.TestSuite(LiveTest(name) for name in names)


if __name__ == "__main__":
    unittest.main(verbosity=2)
