"""Follows a job's life through a real controller, workers, shims and ranks, as a user sees it in titanctl."""

import json
import re
import sys
import tempfile
import unittest
import urllib.request
from pathlib import Path

for folder in ("testing", "numerics"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / folder))
from cluster import Cluster, wait_until
from jobs import LOSS, committed_steps, losses, metric_lines, tiny, wait_step
from rank_runs import small_model


class Lifecycle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(workers=2, devices=2))
        wait_until("both nodes", lambda: cls.cluster.ask("cluster", "info")["ready_nodes"] == 2)

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def submit(self, name="dump", **options):
        return self.cluster.submit(*tiny(self.folder / name, **{"steps": 10, **options}))

    def test_submit_wait_describe_list_logs_events(self):
        done = self.cluster.titanctl("submit", *tiny(self.folder / "dump", steps=10, ranks_per_node=1), "--job-id", "first", "--wait")
        self.assertEqual("first\n", done.stdout)
        self.assertIn("SUCCEEDED", done.stderr)

        job = self.cluster.job("first")
        self.assertEqual(("first", "SUCCEEDED", 10), (job["id"], job["state"], job["progress"]["step"]))
        self.assertEqual({"n1", "n2"}, {p["node"] for p in job["attempts"][0]["placements"]})
        self.assertEqual(2, job["spec"]["config"]["resources"]["ranks"])
        self.assertEqual("FINISHED", job["attempts"][0]["end_cause"])
        self.assertEqual(losses(self.folder / "dump")[10], job["progress"]["loss"])
        self.assertEqual([5, 10], committed_steps(self.folder / "dump"))

        table = self.cluster.titanctl("list").stdout
        self.assertRegex(table, r"first +SUCCEEDED +10/10 +\d\S+ +2 +1 +\S+s +- +\S+s +\S+s ago ")
        self.assertIn("first", [j["id"] for j in self.cluster.ask("list", "--state", "succeeded")["jobs"]])
        self.assertNotIn("first", [j["id"] for j in self.cluster.ask("list", "--state", "running,queued")["jobs"]])
        self.assertIn("attempts", self.cluster.titanctl("job", "describe", "first").stdout)
        self.assertIn('state: "SUCCEEDED"', self.cluster.titanctl("describe", "first", "-o", "yaml").stdout)

        self.assertRegex(self.cluster.titanctl("events", "first").stdout, r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d  ")
        self.assertRegex(self.cluster.titanctl("events", "first", "--utc").stdout, r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ  ")

        log = self.cluster.titanctl("logs", "first", "--rank", 0).stdout
        self.assertIsNone(re.search("\033", log), "colours off a terminal")
        self.assertEqual(10, len([line for line in log.splitlines() if "loss:" in line]))
        both = self.cluster.titanctl("logs", "first").stdout
        self.assertIn("[rank 0] ", both)
        self.assertEqual(3, len(self.cluster.titanctl("logs", "first", "--rank", 0, "--tail", 3).stdout.splitlines()))

        reasons = [event["reason"] for event in self.cluster.events("first")]
        self.assertEqual("JobQueued", reasons[0])
        self.assertEqual("JobSucceeded", reasons[-1])
        self.assertEqual(2, reasons.count("CheckpointCommitted"))
        revisions = [event["revision"] for event in self.cluster.events("first")]
        self.assertEqual(sorted(revisions), revisions)

        # The same job again: a new job with a folder that already holds its last step.
        again = self.cluster.titanctl("resubmit", "first", "--job-id", "again", "--wait", "--job.description", "once more")
        self.assertEqual("again\n", again.stdout)
        first, again_job = self.cluster.job("first"), self.cluster.job("again")
        self.assertEqual(("once more", first["spec"]["dump_folder"]), (again_job["title"], again_job["spec"]["dump_folder"]))
        self.assertEqual(first["spec"]["config"]["training"], again_job["spec"]["config"]["training"])
        self.assertIn(f"nothing to do: step 10 of 10 is done in {self.folder / 'dump'}", again.stderr)

    def test_not_found_and_timeout(self):
        for verb in (["describe"], ["logs"], ["cancel"], ["checkpoint"], ["profile"], ["wait"], ["events"], ["node", "describe"]):
            done = self.cluster.titanctl(*verb, "nosuch", check=False)
            self.assertEqual(3, done.returncode, f"{verb}: {done.stderr}")
            self.assertIn("nosuch", done.stderr)
        error = json.loads(self.cluster.titanctl("describe", "nosuch", "-o", "json", check=False).stderr)["error"]
        self.assertEqual(("NOT_FOUND", "JOB_NOT_FOUND"), (error["code"], error["reason"]))
        self.assertIn("nosuch", error["metadata"]["job"])
        job = self.submit(steps=500)
        late = self.cluster.titanctl("wait", job, "--timeout", 1, check=False)
        self.assertEqual(4, late.returncode)
        self.assertRegex(late.stderr, rf"job {job} is still [A-Z]+ at step \d+/500 after 1s")
        some = self.cluster.titanctl("cancel", "nosuch", job, "--now", "--wait", check=False)  # One wrong name does not protect the other jobs.
        self.assertEqual(3, some.returncode)
        self.assertIn(f"job {job} CANCELLED", some.stderr)
        self.assertEqual(1, self.cluster.titanctl("wait", job, check=False).returncode)

    def test_cancel_all_has_to_be_confirmed(self):
        jobs = [self.submit(name, ranks=64) for name in ("one", "two")]  # The jobs wait for devices.
        done = self.cluster.titanctl("cancel", "--all", check=False)
        self.assertEqual(2, done.returncode)
        self.assertIn("this would cancel 2 jobs", done.stderr)
        self.assertEqual({"QUEUED"}, {self.cluster.job(job)["state"] for job in jobs})
        self.cluster.titanctl("cancel", "--all", "--yes")
        self.assertEqual({"CANCELLED"}, {self.cluster.job(job)["state"] for job in jobs})

    def test_on_demand_checkpoint_and_cancel(self):
        job = self.submit(steps=500, interval=500)
        wait_step(self.folder / "dump", 2)
        self.cluster.titanctl("checkpoint", job, "--wait", "--timeout", 30)
        self.assertTrue(committed_steps(self.folder / "dump"))
        self.assertEqual("RUNNING", self.cluster.job(job)["state"])
        # A failed save ends the wait with its reason, though the job continues.
        steps = self.folder / "dump/checkpoint"
        steps.rename(self.folder / "dump/aside")
        steps.write_text("no folder")
        failed = self.cluster.titanctl("checkpoint", job, "--wait", "--timeout", 30, check=False)
        self.assertEqual(1, failed.returncode, failed.stderr)
        self.assertRegex(failed.stderr, rf"job {job}: the save failed: step \d+: .+")
        steps.unlink()
        (self.folder / "dump/aside").rename(steps)
        self.cluster.titanctl("cancel", job, "--wait", "--timeout", 30)
        end = self.cluster.job(job)
        self.assertEqual("CANCELLED", end["state"])
        self.assertEqual(max(losses(self.folder / "dump")), max(committed_steps(self.folder / "dump")))
        self.cluster.titanctl("cancel", job)  # Cancelling again succeeds.
        self.assertEqual([], self.cluster.ranks())

    def test_oversized_job_waits_with_a_reason(self):
        done = self.cluster.titanctl("submit", *tiny(self.folder / "dump", ranks=64), "-q", check=False)
        if done.returncode == 0:
            job = done.stdout.strip()
            waiting = wait_until("a reason", lambda: (j := self.cluster.job(job))["pending_reason"] and j)
            self.assertEqual(("QUEUED", "INSUFFICIENT_DEVICES"), (waiting["state"], waiting["pending_reason"]))
            self.assertIn("64", waiting["pending_message"])
            self.cluster.titanctl("cancel", job)
            pending = self.cluster.titanctl("submit", *tiny(self.folder / "pending", ranks=64), "--job-id", "pending")
            self.assertIn("QUEUED: needs 64 cpu devices", pending.stderr)  # The message gives the reason, not only that the job waits.
            self.cluster.titanctl("cancel", "pending")
        else:
            self.fail(done.stderr)

    def test_two_live_jobs_do_not_share_a_dump_folder(self):
        job = self.submit(steps=500)
        done = self.cluster.titanctl("submit", *tiny(self.folder / "dump"), check=False)
        self.assertEqual(1, done.returncode)
        self.assertIn(str(self.folder / "dump"), done.stderr)
        self.cluster.titanctl("cancel", job, "--now", "--wait")

    def test_cordoned_nodes_take_no_ranks(self):
        self.cluster.titanctl("node", "cordon", "n1", "--reason", "test")
        try:
            job = self.submit(steps=3)
            self.assertEqual({"n2"}, {p["node"] for p in self.cluster.succeed(job)["attempts"][0]["placements"]})
            self.assertIn("CORDONED", self.cluster.titanctl("node", "list").stdout)
            node = self.cluster.ask("node", "describe", "n1")
            self.assertEqual((True, "test"), (node["cordoned"], node["cordon_reason"]))
        finally:
            self.cluster.titanctl("node", "uncordon", "n1")
        self.assertFalse(self.cluster.ask("node", "describe", "n1")["cordoned"])

    # The result for several names is one document, even if some of them failed.
    def test_several_names_give_one_list(self):
        for verb in ("cordon", "drain", "uncordon"):
            nodes = self.cluster.ask("node", verb, "n1", "n2")
            self.assertEqual([("nodes/n1", verb != "uncordon"), ("nodes/n2", verb != "uncordon")], [(n["name"], n["cordoned"]) for n in nodes], verb)
            self.assertEqual("nodes/n1", self.cluster.ask("node", verb, "n1")["name"])
            done = self.cluster.titanctl("node", verb, "n1", "nosuch", "n2", "-o", "json", check=False)
            self.assertEqual((3, ["nodes/n1", "nodes/n2"]), (done.returncode, [n["name"] for n in json.loads(done.stdout)]), verb)
        self.cluster.titanctl("node", "uncordon", "n1", "n2")
        job, other = (self.submit(name, ranks_per_node=1, ranks=8) for name in ("wide", "wider"))
        done = self.cluster.titanctl("cancel", job, "nosuch", other, "-o", "json", check=False)
        self.assertEqual(3, done.returncode)
        self.assertIn("nosuch", json.loads(done.stderr)["error"]["message"])
        self.assertEqual([job, other], [cancelled["id"] for cancelled in json.loads(done.stdout)])
        self.assertEqual([], self.cluster.ask("cancel", "--all"))
        self.assertEqual(job, self.cluster.ask("delete", job)["id"])
        done = self.cluster.titanctl("delete", "nosuch", other, "-o", "yaml", check=False)
        self.assertEqual((3, 1), (done.returncode, len(re.findall("^- ", done.stdout, re.MULTILINE))), done.stdout)

    def test_drain_moves_the_job_to_another_node(self):
        job = self.submit(steps=500, interval=500, ranks=1)
        wait_step(self.folder / "dump", 3)
        node = self.cluster.job(job)["attempts"][0]["placements"][0]["node"]
        try:
            done = self.cluster.titanctl("node", "drain", node, "--wait", "--timeout", 60, "--reason", "new disk")
            self.assertIn(f"node {node} is empty and takes no new ranks", done.stderr)
            saved = max(committed_steps(self.folder / "dump"))
            self.assertGreaterEqual(saved, 3)
            self.cluster.wait(job, until="running")
            first, second = self.cluster.job(job)["attempts"][:2]
            self.assertEqual("STOPPED", first["end_cause"])
            self.assertNotEqual(node, second["placements"][0]["node"])
            self.assertEqual(saved, second["resumed_step"])
            self.assertIn("NodeDraining", [event["reason"] for event in self.cluster.events(job)])
        finally:
            self.cluster.titanctl("node", "uncordon", node)
        self.cluster.titanctl("cancel", job, "--now", "--wait")

    def test_drain_reports_jobs_it_cannot_save(self):
        job = self.cluster.submit(*tiny(self.folder / "dump", steps=500, ranks=1), "--checkpoint.no_enable")
        wait_step(self.folder / "dump", 2)
        node = self.cluster.job(job)["attempts"][0]["placements"][0]["node"]
        try:
            late = self.cluster.titanctl("node", "drain", node, "--wait", "--timeout", 1, check=False)
            self.assertEqual(4, late.returncode)
            self.assertIn(f"node {node} still runs {job}", late.stderr)
            self.assertEqual(1, len(self.cluster.job(job)["attempts"]))
            self.cluster.titanctl("cancel", job, "--now", "--wait")
            self.cluster.titanctl("node", "drain", node, "--wait", "--timeout", 30)
        finally:
            self.cluster.titanctl("node", "uncordon", node)

    def test_only_jobs_that_are_over_are_deleted(self):
        over, live = self.submit("over", steps=2), self.submit("live", ranks=64)  # The second job waits for devices.
        self.cluster.succeed(over)
        done = self.cluster.titanctl("delete", live, over, check=False)  # One refusal does not protect the other jobs.
        self.assertEqual(1, done.returncode)
        self.assertIn("only a job that is over can be deleted", done.stderr)
        self.assertIn(f"job {over} is deleted; {self.folder / 'over'} stays", done.stderr)
        self.assertTrue((self.folder / "over/metrics.jsonl").exists())
        self.assertEqual([live], [job["id"] for job in self.cluster.ask("list")["jobs"] if job["id"] in (live, over)])
        for verb in ("delete", "describe", "events", "logs"):
            self.assertEqual(3, self.cluster.titanctl(verb, over, check=False).returncode)
        self.cluster.daemons["controller"].kill()
        self.assertEqual("QUEUED", self.cluster.job(live)["state"])
        self.assertEqual(3, self.cluster.titanctl("describe", over, check=False).returncode, "gone durably")
        self.cluster.titanctl("cancel", live)

    # A job that sets no seed is restarted before its first checkpoint with the same weights, bit for bit.
    def test_seed_is_drawn_once_per_job(self):
        job = self.submit(steps=500, interval=500, ranks=1, extra=["--debug.seed", "None"])
        wait_step(self.folder / "dump", 3)
        seed = self.cluster.job(job)["spec"]["config"]["debug"]["seed"]
        self.assertRegex(self.cluster.titanctl("describe", job).stdout, rf"(?m)^seed +{seed}$")
        self.cluster.ranks()[0].kill()
        curves = [{}, {}, {}]

        def second_attempt():
            for line in metric_lines(self.folder / "dump"):
                curves[line["attempt"]][line["step"]] = line[LOSS]
            return len(curves[2]) >= 3

        wait_until("three steps of the second attempt", second_attempt)
        self.cluster.titanctl("cancel", job, "--now", "--wait")
        self.assertEqual([curves[1][step] for step in (1, 2, 3)], [curves[2][step] for step in (1, 2, 3)])

    def test_user_errors_are_reported_and_not_retried_forever(self):
        """The second data file is broken, which only the rank sees."""
        text = self.folder / "text"
        text.mkdir()
        (text / "a.json").write_text(json.dumps({"text": "one line that is fine " * 20}) + "\n")
        (text / "b.json").write_text("broken\n" * 50)
        job = self.submit(steps=500, extra=["--training.dataset_path", text, "--training.dataloader.max_bad_lines", 3])
        end = self.cluster.wait(job)
        self.assertEqual("FAILED", end["state"])
        self.assertIn("b.json", end["failure_message"])
        self.assertLessEqual(len(end["attempts"]), 2)

    def page(self):
        return urllib.request.urlopen(f"http://127.0.0.1:{self.cluster.metrics_port}/metrics", timeout=10).read().decode()

    def test_balance_of_experts_on_the_prometheus_page(self):
        """Experts on two ranks of two machines: the page shows the same whole-step figures as the job's own metrics."""
        model = [word for key, value in small_model("qwen3_moe").items() for word in ("--" + key, value)]
        job = self.submit(steps=5000, interval=5000, ranks_per_node=1, extra=[
            *model, "--parallelism.expert_parallel_degree", 2])
        gauge = re.compile('^titan_job_expert_max_over_mean_ratio{titan_job="projects/default/jobs/%s"} (.+)$' % re.escape(job), re.MULTILINE)
        wait_until("a figure of the experts", lambda: gauge.search(self.page()))
        shown = float(gauge.search(self.page()).group(1))
        lines = [line for line in metric_lines(self.folder / "dump") if "moe/max_over_mean" in line]
        self.assertIn("%.6f" % shown, ["%.6f" % line["moe/max_over_mean"] for line in lines])
        tokens = 2 * 128  # Rows of one step, of both ranks.
        self.assertEqual(2 * tokens, sum(lines[0]["moe/layers.0/tokens_per_expert"]))
        self.cluster.titanctl("cancel", job)
        self.cluster.wait(job)
        self.assertIsNone(gauge.search(self.page()), "a job that is over has no gauges")

    def test_prometheus_page(self):
        page = self.page()
        for name in ("titan_jobs", "titan_nodes", "titan_build_info"):
            self.assertIn(name, page)


if __name__ == "__main__":
    unittest.main(verbosity=2)
