"""Tests that PyTorch's own viewer (torch.cuda._memory_viz) opens the memory snapshots of a training job: every free has its
allocation, live bytes are what the job holds, and a snapshot that cannot be written causes only a warning."""

import json
import os
import pickle
import re
import sys
import tempfile
import unittest

from torch.cuda import _memory_viz as viewer

sys.path.insert(0, os.path.dirname(__file__))
from titan_rank_test import Ranks  # noqa: E402

JOB = ["--training.steps", "5", "--checkpoint.no_enable", "--profiling.enable_memory_snapshot", "--profiling.profile_freq", "2"]
GIB = 2**30


def live_by_event(trace):
    """Returns the live bytes after each event. Fails if a free has no allocation or memory is allocated twice."""
    live, total, series = {}, 0, []
    for event in trace:
        if event["action"] == "alloc":
            assert event["addr"] not in live, event
            live[event["addr"]] = event["size"]
            total += event["size"]
        elif event["action"] == "free_completed":
            assert live.pop(event["addr"]) == event["size"], event
            total -= event["size"]
        series.append(total)
    return live, series


class MemorySnapshot(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)

    def run_job(self, name, world, *words):
        self.folder = os.path.join(self.scratch.name, name)
        ranks = Ranks(self.folder, world, [*JOB, *words])
        self.addCleanup(ranks.kill)
        self.assertEqual([0] * world, ranks.wait(), "\n".join(ranks.outputs))
        return ranks

    def files(self, folder="memory_snapshot"):
        root = os.path.join(self.folder, folder)
        return sorted(os.path.relpath(os.path.join(at, name), root) for at, _, names in os.walk(root) for name in names)

    def load(self, name):
        with open(os.path.join(self.folder, "memory_snapshot", name), "rb") as file:
            return pickle.load(file)

    def peaks(self):
        with open(os.path.join(self.folder, "metrics.jsonl")) as file:
            return [json.loads(line)["memory/max_active(GiB)"] * GIB for line in file]

    def test_opens_in_the_viewer(self):
        ranks = self.run_job("two", 2)
        names = ["iteration_%d/rank%d_memory_snapshot.pickle" % (step, rank) for step in (2, 4) for rank in (0, 1)]
        self.assertEqual(names, self.files())
        self.assertIn("Memory snapshot: " + os.path.join(self.folder, "memory_snapshot", names[0]), ranks.outputs[0])
        for name in names:
            snapshot = self.load(name)
            [trace] = snapshot["device_traces"]
            live, series = live_by_event(trace)
            blocks = {block["address"]: block["requested_size"] for segment in snapshot["segments"] for block in segment["blocks"]
                      if block["state"] == "active_allocated"}  # fmt: skip
            self.assertEqual(blocks, live)
            # Live bytes are at least half of the weights and the optimizer's two moments in float32, and at most what
            # the process has.
            parameters = int(re.search(r"([\d,]+) total parameters", ranks.outputs[0]).group(1).replace(",", ""))
            self.assertGreater(series[-1], 3 * 4 * parameters / 2)
            self.assertLess(max(series), max(self.peaks()))
            for event in trace:
                self.assertLessEqual({"action", "addr", "size", "stream", "time_us", "frames"}, event.keys())
            scopes = {tuple(frame["name"] for frame in event["frames"]) for event in trace if event["action"] == "alloc"}
            self.assertTrue([stack for stack in scopes if "layers.0" in stack and stack[-1] == "forward and backward"], scopes)
            self.assertTrue([stack for stack in scopes if "layers.0 backward" in stack and stack[0].startswith("aten::")])
            viewer.segsum(snapshot)  # Throws if bytes do not add up.
            for html in (viewer.trace_plot(snapshot), viewer.trace_plot(snapshot, plot_segments=True), viewer.segment_plot(snapshot)):
                self.assertIn("<html>", html)
            self.assertIn("layers.0", viewer.memory(snapshot, format_flamegraph=str))
            self.assertIn("TOTAL MEM", viewer.trace(snapshot))
        before, after = (self.load(name)["segments"] for name in names[::2])
        self.assertIsInstance(viewer.compare(before, after, format_flamegraph=str), str)
        self.assertTrue(viewer.filter_alloc_free_pairs(snapshot)["device_traces"][0])

    def test_ranks_that_are_threads_share_one(self):
        self.run_job("threads", 1, "--comm.mode", "local_tensor", "--resources.ranks", "2")
        self.assertEqual(["iteration_%d/rank0_memory_snapshot.pickle" % step for step in (2, 4)], self.files())
        live_by_event(self.load("iteration_4/rank0_memory_snapshot.pickle")["device_traces"][0])

    def test_a_folder_that_cannot_be_made_is_a_warning(self):
        os.makedirs(os.path.join(self.scratch.name, "full"))
        with open(os.path.join(self.scratch.name, "full", "memory_snapshot"), "w") as file:
            file.write("a file")
        ranks = self.run_job("full", 1)
        warnings = [event["message"] for event in ranks.events(0, "warning")]
        self.assertEqual(2, len([text for text in warnings if text.startswith("the memory snapshot is lost: ")]), warnings)
        self.assertEqual(5, ranks.events(0, "step")[-1]["step"])


if __name__ == "__main__":
    unittest.main()
