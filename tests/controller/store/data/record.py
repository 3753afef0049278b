"""Records the store of a controller of the build in TITAN_BIN as NAME.db, and in NAME.json what a later controller must
find in it.

    TITAN_SOURCE=. TITAN_BIN=OLD/bin python tests/controller/store/data/record.py tests/controller/store/data/NAME

Every release that changes the form of a store makes one recording; recorded_store_test.cc reads them all, and none is
ever recorded again. Ranks are stand-ins (tests/worker/node/shim/fake_rank.cc), so LibTorch is not needed: no record
depends on how a rank trains.
"""

import json
import os
import signal
import sqlite3
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(os.environ["TITAN_SOURCE"]) / "tests" / "testing"))
from cluster import BIN, Cluster, wait_until  # noqa: E402
from jobs import tiny  # noqa: E402

TESTS = Path(os.environ.get("TITAN_TESTS", BIN.parent / "tests"))
SHORT = {"steps": 5, "step_ms": 100}
ENDLESS = {"steps": -1, "step_ms": 2000}  # A rank that is killed at once has made no step, so there is no progress.


class Recorded(Cluster):
    def become(self, fake):
        """Restarts the workers of both nodes with another stand-in for later jobs."""
        for name in ("n1", "n2"):
            if name not in self.daemons:
                self.add_worker(name)
            daemon = self.daemons[name]
            daemon.kill(restart=False)
            if "--rank-binary" not in daemon.command:
                daemon.command += ["--rank-binary", str(TESTS / "fake_rank")]
            daemon.environment["TITAN_TEST_FAKE_RANK"] = json.dumps(fake)
            daemon.revive()
        wait_until("both nodes", lambda: [node["state"] for node in self.ask("node", "list")["nodes"]] == ["READY", "READY"])

    def ranks(self):
        return sorted(self.processes("fake_rank"), key=lambda process: process.rank)


def kill_until_failed(cluster, job):
    """Kills the job's ranks as soon as they exist, so that no attempt makes progress."""
    def failed():
        for rank in cluster.ranks():
            rank.kill(signal.SIGKILL)
        return cluster.job(job)["state"] == "FAILED"
    wait_until("end without progress", failed, timeout=300)


def scene(cluster, folder):
    jobs = {}

    def submit(name, **options):
        jobs[name] = cluster.submit(*tiny(folder / name, **options))
        return jobs[name]

    cluster.become(SHORT)
    cluster.succeed(submit("done", steps=5))
    cluster.become(ENDLESS)
    kill_until_failed(cluster, submit("failed", steps=100000))
    cluster.wait(submit("cancelled", steps=100000), until="step=1")
    cluster.titanctl("cancel", jobs["cancelled"])
    cluster.wait(jobs["cancelled"])
    submit("running", steps=100000, ranks_per_node=1)
    cluster.wait(jobs["running"], until="step=2")
    cluster.ranks()[1].kill(signal.SIGKILL)
    wait_until("second attempt", lambda: len(cluster.job(jobs["running"])["attempts"]) == 2)
    cluster.wait(jobs["running"], until=f"step={cluster.job(jobs['running'])['progress']['step'] + 3}")
    submit("queued", steps=10, ranks=16)
    cluster.titanctl("update", jobs["queued"], "--priority", 7, "--label", "team=vision", "--label", "stage=late")
    deleted = cluster.submit(*tiny(folder / "deleted", steps=10, ranks=16))
    cluster.titanctl("cancel", deleted, "--wait")
    uid = cluster.job(deleted)["uid"]
    cluster.titanctl("delete", deleted)
    cluster.titanctl("node", "cordon", "n2", "--reason", "maintenance")
    return jobs, uid


def summary(job):
    attempts = [{"number": one["number"], "end_cause": one["end_cause"],
                 "placements": [[place["node"], place["first_rank"], place["num_ranks"], place["devices"]] for place in one["placements"]]}
                for one in job["attempts"]]
    return {"state": job["state"], "uid": job["uid"], "failure_reason": job["failure_reason"], "labels": job["labels"],
            "owner": job["owner"], "priority": job["spec"]["priority"], "attempts": attempts}


def main():
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder, Recorded(workers=0, devices=2) as cluster:
        jobs, deleted = scene(cluster, Path(folder))
        jobs = {name: cluster.job(job) for name, job in jobs.items()}
        cluster.controller.kill(restart=False)
        [path] = (cluster.folder / "controller").rglob("*.db")
        target.with_suffix(".db").unlink(missing_ok=True)
        with sqlite3.connect(path) as store:
            store.execute("VACUUM INTO ?", [str(target.with_suffix(".db"))])
    found = [f"  {json.dumps(name)}: {json.dumps(summary(job))}" for name, job in jobs.items()]
    target.with_suffix(".json").write_text(
        '{"jobs": {\n' + ",\n".join(found) + f'\n }},\n "deleted": {json.dumps(deleted)},\n "cordoned": {{"n2": "maintenance"}}}}\n')


if __name__ == "__main__":
    main()
