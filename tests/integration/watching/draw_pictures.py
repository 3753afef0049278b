"""Draws the rows of the dashboard from a run with faults, for docs/operate/monitor.md.

    draw_pictures.py [--seconds 150] [--out docs/pictures]

It runs two nodes on loopback and a Prometheus. A job of two ranks trains, saves, loses a rank repeatedly, and then has a slow
rank. A second job runs undisturbed, a third one waits. Needs real ranks (titan-rank in TITAN_BIN) and matplotlib (pip install
matplotlib).
"""

import argparse
import re
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from live import TIMEOUT, SOURCE, WatchedCluster  # noqa: E402

import panels  # noqa: E402
from cluster import wait_until  # noqa: E402
from jobs import tiny  # noqa: E402

ACROSS = 3
WINDOW = "15s"
FOREVER = 1_000_000
COLOURS = 256  # Colours of a picture's palette; this saves two thirds of the bytes.
INTERVAL = 10
LEGEND = 6  # Number of lines with a name in the legend.
SHORT = {"s": "s", "bytes": "MB", "Bps": "B/s", "percentunit": "%", "short": "", "ops": "1/s", "none": ""}
SCALE = {"bytes": 1e-6, "percentunit": 100}


class SlowRank(threading.Thread):
    """Stops one rank of the job for three quarters of the time."""

    def __init__(self, cluster):
        super().__init__(daemon=True)
        self.cluster, self.ended = cluster, threading.Event()

    def run(self):
        while not self.ended.wait(0.02):
            for rank in [one for one in self.cluster.ranks() if one.rank == 1]:
                rank.kill(signal.SIGSTOP)
                self.ended.wait(0.06)
                rank.kill(signal.SIGCONT)


def live(cluster, seconds):
    """Runs the faults: kills every 15 s in the first half, a slow rank in the second."""
    def submit(name, ranks):
        extra = ["--scheduling.job_id", name, "--checkpoint.keep_latest_k", 2]
        return cluster.submit(*tiny(cluster.folder / name, FOREVER, INTERVAL, ranks=ranks, extra=extra))

    jobs = [submit("trains", 2), submit("small", 1)]
    submit("waits", 4)
    for job in jobs:
        cluster.wait(job, "step=10", timeout=TIMEOUT)
    begun, saved = time.monotonic(), 0
    while time.monotonic() - begun < seconds / 2:
        saved = int(cluster.wait(jobs[0], f"committed={saved + INTERVAL}")["progress"]["committed_step"])  # Otherwise it would restart without progress.
        attempts = len(cluster.job(jobs[0])["attempts"])
        wait_until("a rank", lambda: [one for one in cluster.ranks() if one.rank == 1])[0].kill()
        wait_until("another attempt", lambda: len(cluster.job(jobs[0])["attempts"]) > attempts, TIMEOUT)
        cluster.wait(jobs[0], "running", timeout=TIMEOUT)
        time.sleep(seconds / 10)
    slow = SlowRank(cluster)
    slow.start()
    time.sleep(max(0.0, begun + seconds - time.monotonic()))
    slow.ended.set()
    slow.join()


def legend_of(pattern, labels, folder):
    text = re.sub(r"{{(\w+)}}", lambda name: labels.get(name.group(1), ""), pattern)
    return text.replace("projects/default/jobs/", "").replace(f"{folder}/", "").replace("127.0.0.1", "")


def lines_of(panel, cluster, begin, end):
    """Yields the name of each line and its points."""
    for pattern, expression in panel.queries:
        for series in cluster.prometheus.query_range(panels.resolved(expression, WINDOW), begin, end, 1):
            points = [(float(at) - begin, float(value) * SCALE.get(panel.unit, 1)) for at, value in series["values"]]
            if any(value == value for _, value in points):
                yield legend_of(pattern, series["metric"], cluster.folder), points


def draw_panel(axes, panel, lines, seconds):
    for name, points in lines:
        axes.plot(*zip(*points), linewidth=1, label=name)
    unit = SHORT[panel.unit]
    axes.set_title(f"{panel.title} ({unit})" if unit else panel.title, fontsize=8)
    axes.set_xlim(0, seconds)
    if panel.unit != "none":
        axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=6)
    axes.grid(linewidth=0.3)
    handles, names = axes.get_legend_handles_labels()
    if handles:
        axes.legend(handles[:LEGEND], names[:LEGEND], fontsize=5, loc="best")


def save(figure, path):
    from PIL import Image  # pylint: disable=import-outside-toplevel; comes with matplotlib.
    figure.savefig(path, dpi=80)
    Image.open(path).convert("RGB").quantize(COLOURS).save(path, optimize=True)


def draw_row(row, cluster, begin, end, out):
    """Draws those panels of the row that have data."""
    import matplotlib  # pylint: disable=import-outside-toplevel; --help does not need it.
    matplotlib.use("Agg")
    from matplotlib import pyplot  # pylint: disable=import-outside-toplevel
    drawn = [(panel, lines) for panel in row.panels if (lines := list(lines_of(panel, cluster, begin, end)))]
    down = -(-len(drawn) // ACROSS)
    figure, grid = pyplot.subplots(down, ACROSS, figsize=(10, 2.1 * down), squeeze=False)
    for i, axes in enumerate(grid.flat):
        if i < len(drawn):
            draw_panel(axes, *drawn[i], end - begin)
        else:
            axes.axis("off")
    figure.tight_layout()
    path = out / f"{row.title.lower().replace(' ', '-')}.png"
    save(figure, path)
    pyplot.close(figure)
    print(f"{path.name}: {path.stat().st_size} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--out", type=Path, default=SOURCE / "docs/pictures")
    flags = parser.parse_args()
    flags.out.mkdir(exist_ok=True)
    with WatchedCluster(devices=2) as cluster:
        begin = time.time()
        live(cluster, flags.seconds)
        end = time.time()
        for row in panels.ROWS:
            draw_row(row, cluster, begin, end, flags.out)


if __name__ == "__main__":
    main()
