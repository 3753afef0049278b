"""Tests traces of two ranks that train and save: their content, that collectives are in flight while layers compute, and that the
programs for which the traces are made can read them."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))
import trace_overlap
from titan_rank_test import Ranks

CLOCKS_US = 200  # Titan's spans and LibTorch's use two clocks, which LibTorch compares at the start and end of a recording.
PLUGIN = """
import json, sys
from torch_tb_profiler import io
from torch_tb_profiler.profiler.loader import RunLoader
if __name__ == "__main__":
    run = RunLoader("run", sys.argv[1], io.Cache()).load()
    ranks = [run.get_profile(worker, "default") for worker in ("rank0", "rank1")]
    whole = run.get_profile("All", "default")
    print(json.dumps({
        "views": sorted(view.display_name for view in run.views),
        "steps": [[row[0] for row in rank.overview["steps"]["rows"]] for rank in ranks],
        "operations": [[row["name"] for row in rank.operation_table_by_name["data"]] for rank in ranks],
        "collectives": {rank: rows["rows"] for rank, rows in whole.comm_ops["data"].items()},
        "overlap": whole.steps_to_overlap["data"]["all"]}))
"""


class Traces(unittest.TestCase):
    """One run, in which every second of five steps is recorded, and each step's checkpoint is written during the next step."""

    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        ranks = Ranks(cls.folder, 2, ["--training.steps", "5", "--profiling.save_traces_folder", "t", "--profiling.enable_profiling",
                                      "--profiling.profile_freq", "2", "--profiling.profiler_warmup", "1",
                                      "--checkpoint.interval", "1", "--checkpoint.async_mode", "async"])
        codes = ranks.wait()
        assert codes == [0, 0], "\n".join(ranks.outputs)
        cls.traces = {}
        for step in (2, 4):
            for rank in (0, 1):
                with open(cls.path(step, rank)) as file:
                    cls.traces[step, rank] = json.load(file)

    @classmethod
    def path(cls, step, rank):
        return os.path.join(cls.folder, "t", f"iteration_{step}", f"rank{rank}_trace.json")

    def test_every_rank_on_schedule(self):
        self.assertEqual(["iteration_2", "iteration_4"], sorted(os.listdir(os.path.join(self.folder, "t"))))
        for (step, rank), trace in self.traces.items():
            names = [event.get("name", "") for event in trace["traceEvents"]]
            self.assertEqual(1, names.count(f"ProfilerStep#{step}"))
            self.assertNotIn(f"ProfilerStep#{step - 1}", names)
            for expected in ("data", "forward 0F0", "backward 0B0", "layers.0", "layers.0 backward", "aten::mm", "stage checkpoint"):
                self.assertIn(expected, names)
            gathered = [name for name in names if re.fullmatch(r"all_gather \S+, 2 ranks, \d+ bytes", name)]
            self.assertGreater(len(gathered), 0, sorted(set(names)))
            self.assertEqual({"backend": "gloo", "rank": rank, "world_size": 2}, trace["distributedInfo"])

    # The loader prepares the batch after the next one, and the writer writes the step before.
    def test_threads_that_read_and_save(self):
        for trace in self.traces.values():
            rows = row_names(trace)
            work = defaultdict(set)
            for event in trace["traceEvents"]:
                if event.get("cat") == "background":
                    work[rows[event["tid"]]].add(event["name"])
            self.assertEqual({"read and tokenise"}, work["data loader"])
            self.assertEqual({"data loader", "checkpoint writer"}, set(work))
            self.assertLessEqual(work["checkpoint writer"],
                                 {"write shard", "wait for all ranks' shards", "publish manifest", "remove old checkpoints"})

    # A layer's weights are gathered while the layer before it computes, and its gradients are reduced while the next
    # layer of the backward pass computes.
    def test_collectives_overlap_with_layers(self):
        for trace in self.traces.values():
            layers = {}
            for event in trace["traceEvents"]:
                if re.fullmatch(r"layers\.\d+( backward)?", event.get("name", "")):
                    layers[event["name"]] = (event["ts"], event["ts"] + event["dur"])
            count = len(layers) // 2
            self.assertGreater(count, 2)
            moved = [one for one in trace_overlap.transfers(trace) if one["axis"] == "fsdp"]
            for layer in range(1, count):
                before, begin = layers[f"layers.{layer - 1}"], layers[f"layers.{layer}"][0]
                gathers = [one for one in moved if one["operation"] == "all_gather"
                           and before[1] - CLOCKS_US < one["wait"] and one["waited"] < begin + CLOCKS_US]
                self.assertEqual(1, len(gathers), f"of layer {layer}")
                self.assertLess(gathers[0]["issued"], before[0] + CLOCKS_US, f"layer {layer}'s gather comes after the layer before it")
                self.assertGreater(gathers[0]["end"], before[1] - CLOCKS_US)
            for layer in range(1, count):
                own, after = layers[f"layers.{layer} backward"], layers[f"layers.{layer - 1} backward"]
                reductions = [one for one in moved if one["operation"] == "reduce_scatter"
                              and own[1] - CLOCKS_US < one["begin"] and one["issued"] < after[0] + CLOCKS_US]
                self.assertEqual(1, len(reductions), f"of layer {layer}")
                self.assertGreater(reductions[0]["end"], after[1] - CLOCKS_US)

    def test_trace_overlap_reports_transfers(self):
        ran = subprocess.run([sys.executable, trace_overlap.__file__, self.path(2, 0), self.path(4, 1)], check=True, text=True, stdout=subprocess.PIPE)
        for step in (2, 4):
            self.assertIn(f"iteration_{step}", ran.stdout)
        self.assertRegex(ran.stdout, r"all_gather +fsdp +\d+ +\d+\.\d\d +\d+\.\d\d +\d+\.\d\d +\d+\.\d\d\n")
        for trace in self.traces.values():
            number, size, issuing, waiting, other = trace_overlap.table(trace)["all_gather", "fsdp"]
            gathered = [event for event in trace["traceEvents"] if re.match("all_gather fsdp,", event.get("name", ""))]
            self.assertEqual(len(gathered), number)
            self.assertEqual(sum(int(re.search(r"(\d+) bytes", event["name"])[1]) for event in gathered), size)
            self.assertGreater(other, 0)
            self.assertLess(issuing + waiting, sum(trace_overlap.steps(trace)) * 1e3)

    # Perfetto and other viewers of the trace event format rely on kinds and fields, on names of rows, and on events in
    # a row being disjoint or nested.
    def test_the_format_is_what_viewers_expect(self):
        for trace in self.traces.values():
            rows = defaultdict(list)
            for event in trace["traceEvents"]:
                self.assertIn(event["ph"], ("X", "M", "i", "s", "f"), event)
                self.assertIsInstance(event["name"], str)
                if event["ph"] == "M":
                    self.assertTrue(event["args"], event)
                    continue
                self.assertGreater(event["ts"], 0)
                if event["ph"] == "X":
                    self.assertGreaterEqual(event["dur"], 0)
                    rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"], event["name"]))
            for (process, row), events in rows.items():
                slack = 0.002 if isinstance(row, int) and row >= 10**9 else 1.0  # A microsecond: LibTorch's own clock.
                around = []
                for begin, end, name in sorted(events, key=lambda event: (event[0], -event[1])):
                    while around and around[-1] <= begin + slack:
                        around.pop()
                    self.assertTrue(not around or end <= around[-1] + slack, f"{name} in row {row} of {process} crosses the end of another")
                    around.append(end)

    def test_tensorboards_plugin_shows_both_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            for rank in (0, 1):
                os.symlink(self.path(4, rank), os.path.join(folder, f"rank{rank}.pt.trace.json"))  # Names for the plugin: docs/howto/profile.md.
            script = os.path.join(folder, "plugin.py")
            with open(script, "w") as file:
                file.write(PLUGIN)
            ran = subprocess.run([sys.executable, script, folder], text=True, capture_output=True, timeout=120)
        self.assertEqual(0, ran.returncode, ran.stderr)
        shown = json.loads(ran.stdout.splitlines()[-1])
        self.assertEqual(["Distributed", "Operator", "Overview", "Trace"], shown["views"])
        self.assertEqual([["4"], ["4"]], shown["steps"])
        for operations in shown["operations"]:
            self.assertIn("aten::mm", operations)
            self.assertIn("MmBackward0", operations)
        for rank in (0, 1):
            table = trace_overlap.table(self.traces[4, rank])
            calls = {row[0]: (row[1], row[2]) for row in shown["collectives"][f"rank{rank}"]}
            for operation in ("all_gather", "reduce_scatter"):
                mine = [row for (name, _), row in table.items() if name == operation]
                self.assertEqual((sum(row[0] for row in mine), sum(row[1] for row in mine)), calls["gloo:" + operation])
            computation, overlapping, communication, _ = shown["overlap"][f"rank{rank}"]
            self.assertGreater(overlapping, 0)


def row_names(trace):
    return {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event.get("name") == "thread_name"}


if __name__ == "__main__":
    unittest.main(verbosity=2)
