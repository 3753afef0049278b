"""Tests that the ranks of a job that hangs, or that loses a rank, leave recordings of their last collectives, and that PyTorch's
own analyser (torch.distributed.flight_recorder) reads them: it names the rank that did not come and the collectives in which the
others waited. The flight tails, which every rank leaves in the run folder, show the same."""

import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from titan_rank_test import Ranks  # noqa: E402

TESTS = os.path.join(os.path.dirname(os.environ["TITAN_BIN"]), "tests")

PEER_LOST = 12
WORLD = 4
JOB = [
    "--experimental.custom_import", os.path.join(TESTS, "libfailing_model.so"),
    "--model.name", "failing", "--model.flavor", "small", "--training.global_batch_size", "8", "--training.local_batch_size", "2",
    "--training.steps", "100000", "--checkpoint.no_enable", "--comm.train_timeout_seconds", "2",
]  # fmt: skip
SHARDED = ["--parallelism.data_parallel_shard_degree", "4"]
STAGES = ["--parallelism.pipeline_parallel_degree", "2", "--parallelism.tensor_parallel_degree", "2"]
# The members of an entry that the analyser reads.
FIELDS = {"record_id": int, "pg_id": int, "process_group": tuple, "collective_seq_id": int, "p2p_seq_id": int, "op_id": int,
          "profiling_name": str, "time_created_ns": int, "input_sizes": list, "input_dtypes": list, "output_sizes": list,
          "output_dtypes": list, "state": str, "retired": bool, "timeout_ms": int, "is_p2p": bool}  # fmt: skip


class FlightRecorder(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.addCleanup(os.environ.pop, "TITAN_TEST_FAILURE", None)

    def start(self, name, words, failure=""):
        os.environ["TITAN_TEST_FAILURE"] = failure
        self.folder = os.path.join(self.scratch.name, name)
        ranks = Ranks(self.folder, WORLD, [*JOB, *words])
        self.addCleanup(ranks.kill)
        return ranks

    def recordings(self, folder="comm_traces"):
        """Returns the content of each rank's file."""
        found = {}
        folder = os.path.join(self.folder, folder)
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name), "rb") as file:
                found[name] = pickle.load(file)
        return found

    def analysis(self, *words, folder="comm_traces"):
        """Returns the analyser's output, its missing ranks by (group, collective), and how many collectives matched."""
        database = os.path.join(self.scratch.name, "database")
        done = subprocess.run([sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", os.path.join(self.folder, folder),
                               "-o", database, *words], capture_output=True, text=True, timeout=120)  # fmt: skip
        printed = done.stdout + done.stderr
        self.assertEqual(0, done.returncode, printed)
        with open(database, "rb") as file:
            _, tables = pickle.load(file)
        report = r"Not all ranks joining collective.*\n.*\ngroup info: (.*?):.*\ncollective: (.*)\nmissing ranks: {(.*)}"
        missing = {(group, name): {int(rank) for rank in ranks.split(", ")} for group, name, ranks in re.findall(report, printed)}
        return printed, missing, [collective.collective_name for collective in tables.collectives if collective.pass_check]

    def divergence(self):
        """Returns the combined report of the ranks' tails."""
        tails = [os.path.join(self.folder, "run", "rank-%d.flight" % rank) for rank in range(WORLD)]
        return subprocess.run([os.path.join(TESTS, "flight_tails"), *tails], check=True, capture_output=True, text=True).stdout

    def hang(self, name, words, victim, call):
        """Makes one rank compute forever: the others time out, and it is stopped."""
        ranks = self.start(name, words, "%d hang %d" % (victim, call))
        self.assertEqual([PEER_LOST] * WORLD, ranks.wait(), "\n".join(ranks.outputs))
        for rank in range(WORLD):
            error = ranks.events(rank, "error")[-1]
            path = os.path.join(self.folder, "comm_traces", "rank_%d" % rank)
            self.assertEqual(path, error["recording"])
            self.assertTrue(error["message"].endswith("; until the next attempt this rank's last collectives are in " + path), error["message"])
        return ranks

    def test_names_a_hanging_rank_and_its_missed_collective(self):
        self.hang("hang", SHARDED, victim=2, call=5)
        recordings = self.recordings()
        self.assertEqual(["rank_%d" % rank for rank in range(WORLD)], list(recordings))
        for recording in recordings.values():
            self.assertEqual("2.10", recording["version"])
            self.assertIn("fsdp", recording["pg_config"])
            for entry in recording["entries"]:
                for field, kind in FIELDS.items():
                    self.assertIs(kind, type(entry[field]), field)
                self.assertIn(entry["state"], ("scheduled", "started", "completed"))
                self.assertEqual(entry["state"] == "completed", entry["time_discovered_completed_ns"] is not None)
        self.assertRegex(self.divergence(), r"^rank 2 never came to _reduce_scatter_base \d+ of fsdp \(ranks 0-3; \d+ Float\)$")
        printed, missing, matched = self.analysis()
        self.assertEqual({2}, missing["fsdp", "nccl:_reduce_scatter_base"], printed)  # The first of the backward pass.
        self.assertEqual({2}, set.union(*missing.values()), printed)
        self.assertGreater(len(matched), 50)

    def test_stages_and_their_messages_match_until_one_rank_hangs(self):
        self.hang("stages", STAGES, victim=3, call=20)
        # Rank 1 may wait for the next message of rank 3 before rank 2 waits for its all-reduce.
        self.assertRegex(self.divergence(), r"^rank 3 never came to (all_reduce \d+ of tp \(ranks 2-3|recv \d+ of pp 3->1 \(ranks 1,3); \d+ Float\)$")
        printed, missing, matched = self.analysis()
        for names in ({"nccl:send 0->1", "nccl:recv 1<-0"}, {"nccl:send 1->0", "nccl:recv 0<-1"}, {"nccl:all_reduce"}):
            self.assertTrue(names & set(matched), set(matched))
        self.assertGreater(len(matched), 200)
        self.assertEqual({3}, missing["tp", "nccl:all_reduce"], printed)
        self.assertNotIn("has errors", printed)

    def test_short_buffers_start_at_a_common_step(self):
        self.hang("short", [*STAGES, "--comm.trace_buf_size", "400"], victim=2, call=100)
        for recording in self.recordings().values():
            self.assertLessEqual(len(recording["entries"]), 400)
            self.assertGreater(recording["entries"][0]["op_id"], 0)
        self.assertRegex(self.divergence(), "^rank 2 never came to ")
        printed, missing, matched = self.analysis()
        self.assertGreater(len(matched), 50)
        self.assertEqual({2}, missing["tp", "nccl:all_reduce"], printed)
        self.assertNotIn("has errors", printed)

    def test_killed_rank_is_reported_as_missing(self):
        ranks = self.start("killed", [*SHARDED, "--comm.save_traces_folder", "kept", "--comm.save_traces_file_prefix", "of-"])
        ranks.wait_for_step(2)
        os.makedirs(os.path.join(self.folder, "kept"))
        stale = os.path.join(self.folder, "kept", "of-1")
        notes = os.path.join(self.folder, "kept", "notes")
        for path in (stale, notes):
            with open(path, "wb"):
                pass
            os.utime(path, (1, 1))
        ranks.processes[1].send_signal(signal.SIGKILL)
        self.assertEqual([PEER_LOST, -signal.SIGKILL, PEER_LOST, PEER_LOST], ranks.wait(), "\n".join(ranks.outputs))
        self.assertFalse(os.path.exists(stale), "a file of an earlier attempt would pass for one of this")
        os.remove(notes)
        self.assertEqual(["of-0", "of-2", "of-3"], list(self.recordings("kept")))
        done = subprocess.run([sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", os.path.join(self.folder, "kept")],
                              capture_output=True, text=True, timeout=120)  # fmt: skip
        self.assertIn("Missing dump files from ranks {1}", done.stderr)
        printed, _, _ = self.analysis("--allow-incomplete-ranks", folder="kept")
        self.assertIn("missed FR dumps from ranks ({1})", printed)

    def test_names_a_different_collective(self):
        ranks = self.start("other", [*STAGES, "--comm.no_shared_memory"], "3 other 20")
        self.assertEqual([PEER_LOST] * WORLD, ranks.wait(), "\n".join(ranks.outputs))
        printed, _, _ = self.analysis()
        self.assertRegex(self.divergence(), r"^rank 3 came to all_reduce \d+ of tp \(ranks 2-3; \d+ Float\) with all_to_all of \d+ Float$")
        kinds = "COLLECTIVE_TYPE_MISMATCH, Expected collective type: '(all_to_all|all_reduce)' does not match"
        self.assertRegex(printed, "group info: tp:ranks 2, 3\n(.*\n)*.*" + kinds)

    def test_shared_memory_detects_a_different_collective_at_once(self):
        ranks = self.start("shared", STAGES, "3 other 20")
        codes = ranks.wait()
        self.assertNotIn(0, codes, "\n".join(ranks.outputs))
        self.assertTrue(all("took no part" not in output for output in ranks.outputs), "\n".join(ranks.outputs))
        kinds = "calls all_to_all of .* calls all_reduce of |calls all_reduce of .* calls all_to_all of "
        self.assertRegex("\n".join(ranks.outputs), kinds)

    def test_a_folder_that_cannot_be_made_is_a_warning(self):
        # These folders have the names of files that the ranks would write.
        os.makedirs(os.path.join(self.scratch.name, "unwritable", "run", "rank-2.flight.new"))
        ranks = self.start("unwritable", SHARDED)
        ranks.wait_for_step(2)
        with open(os.path.join(self.folder, "comm_traces"), "wb"):
            pass  # A file where the folder should be.
        ranks.processes[3].send_signal(signal.SIGKILL)
        self.assertEqual([PEER_LOST] * 3 + [-signal.SIGKILL], ranks.wait(), "\n".join(ranks.outputs))
        for rank in range(3):
            self.assertNotIn("recording", ranks.events(rank, "error")[-1])
            warnings = [event["message"] for event in ranks.events(rank, "warning")]
            self.assertTrue(any(re.match("this rank's last collectives are not recorded: .*comm_traces", w) for w in warnings), warnings)
            unknown = [w for w in warnings if re.match("if this rank hangs, its last collectives will not be known: .*rank-2.flight", w)]
            self.assertEqual(1 if rank == 2 else 0, len(unknown), warnings)

    def test_without_entries_there_are_no_files(self):
        ranks = self.start("off", [*SHARDED, "--comm.trace_buf_size", "0"])
        ranks.wait_for_step(2)
        ranks.processes[3].send_signal(signal.SIGKILL)
        ranks.wait()
        self.assertFalse(os.path.exists(os.path.join(self.folder, "comm_traces")))


if __name__ == "__main__":
    unittest.main()
