"""Watchers that stop reading while jobs are submitted delay no other client, and they lose nothing silently.

The process of fifty watchers is stopped (SIGSTOP) while clients submit, and continues afterwards. Every submission must
be acknowledged meanwhile, and the controller's memory for the watchers must stay bounded. Each watcher must then see
every job in order or learn that it fell behind. On a slow machine, where it may be stopped for longer than a peer has
to answer, it may find its connection closed instead.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from memory import SANITIZED  # noqa: E402
from submit_kills import BIN, LOAD, Controller  # noqa: E402

WATCHERS = 50
SUBMITTED = 1000
KEEPALIVE_S = 5  # The shortest time in which a peer has to answer.
MEBIBYTES = 64 * SANITIZED  # More than the jobs themselves need; fifty copies of all changes would need more.


def rss(pid):
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def submit(controller, acknowledged):
    """Returns the figures of SUBMITTED submissions, all of which must be acknowledged."""
    run = subprocess.run([LOAD, "--controller", controller.address, "--count", str(SUBMITTED), "--acknowledged", acknowledged],
                         capture_output=True, text=True, check=True, timeout=120)
    figures = json.loads(run.stdout)
    assert figures["acknowledged"] == SUBMITTED and figures["failed"] == 0, figures
    return figures


def main():
    with tempfile.TemporaryDirectory(prefix="titan-watchers-") as name:
        folder = Path(name)
        controller = Controller(folder)
        follow = subprocess.Popen([LOAD.parent / "scale_load", "--controller", controller.address, "follow", "--watchers",
                                   str(WATCHERS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert json.loads(follow.stdout.readline())["phase"] == "following"
            reading = submit(controller, folder / "reading")
            os.kill(follow.pid, signal.SIGSTOP)
            before = rss(controller.process.pid)
            stuck = submit(controller, folder / "stuck")
            grown = rss(controller.process.pid) - before
            os.kill(follow.pid, signal.SIGCONT)
            report = json.loads(follow.communicate(f"{2 * SUBMITTED}\n", timeout=120)[0])
        finally:
            follow.kill()
            controller.process.terminate()
            controller.process.wait()
        print(json.dumps({"reading_per_second": reading["per_second"], "stuck_per_second": stuck["per_second"],
                          "grown_mib": round(grown, 1), **report}))
        assert follow.returncode == 0, report
        assert report["cut_off"] == 0 or SUBMITTED / stuck["per_second"] > KEEPALIVE_S, "a connection was closed too early"
        assert grown < MEBIBYTES, f"the controller has grown by {grown:.0f} MiB while nobody read"


if __name__ == "__main__":
    main()
