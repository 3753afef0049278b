"""Tests titan-rank as real processes, without daemons: it finishes, saves on SIGTERM, resumes, loses a peer, and has exit
codes."""

import base64
import glob
import json
import math
import os
import pty
import re
import resource
import signal
import socket
import struct
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

ASSETS = os.path.join(os.environ["TITAN_DEPS"], "assets")
RANK = os.path.join(os.environ["TITAN_BIN"], "titan-rank")
CONFIG = os.path.join(os.environ["TITAN_SOURCE"], "configs", "llama3_tiny.toml")
SMALL = [
    "--training.seq_len", "64", "--training.local_batch_size", "1", "--training.steps", "12",
    "--lr_scheduler.warmup_steps", "2", "--metrics.log_freq", "1", "--metrics.no_enable_tensorboard",
    "--validation.no_enable", "--checkpoint.interval", "5", "--comm.init_timeout_seconds", "30",
    "--training.global_batch_size", "2", "--resources.threads_per_rank", "1",
    "--training.mixed_precision_param", "float32",  # Processors without bfloat16 products take ten times as long.
]


def listening_socket():
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen(16)
    os.set_inheritable(server.fileno(), True)
    return server


class Ranks:
    """The ranks of one job; rank 0 inherits a listening socket, as under the shim."""

    def __init__(self, folder, world, extra=(), config=CONFIG):
        self.folder = folder
        server = listening_socket() if world > 1 else None
        self.processes = []
        for rank in range(world):
            words = [RANK, "--config", config]
            if config == CONFIG:
                words += SMALL + ["--job.dump_folder", folder, *extra]
            if world > 1 or config != CONFIG:
                words += ["--rank", str(rank), "--world", str(world)]
            fds = ()
            if server:
                words += ["--store", "127.0.0.1:%d" % server.getsockname()[1]]
                if rank == 0:
                    words += ["--listen-fd", str(server.fileno())]
                    fds = (server.fileno(),)
            self.processes.append(subprocess.Popen(
                words, pass_fds=fds, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        if server:
            server.close()

    def wait(self, seconds=120):
        """Waits for all ranks and returns their exit codes. Stores their output in `outputs`."""
        self.outputs = []
        try:
            for process in self.processes:
                self.outputs.append(process.communicate(timeout=seconds)[0])
        finally:
            self.kill()
        return [process.returncode for process in self.processes]

    def kill(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    def events(self, rank, kind=None):
        path = os.path.join(self.folder, "run", "rank-%d.events.jsonl" % rank)
        if not os.path.exists(path):
            return []
        with open(path) as file:
            lines = [json.loads(line) for line in file if line.endswith("\n")]
        return [line for line in lines if kind in (None, line["kind"])]

    def wait_for_step(self, step, seconds=120):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if any(event["step"] >= step for event in self.events(0, "step")):
                return
            for process in self.processes:
                if process.poll() is not None:
                    self.wait()
                    raise AssertionError("a rank ended early:\n" + "\n".join(self.outputs))
            time.sleep(0.02)
        self.kill()
        raise AssertionError("step %d was not reached" % step)


def manifest_of(folder, step):
    with open(os.path.join(folder, "checkpoint", "step-%d" % step, "manifest.json")) as file:
        return json.load(file)


def losses(folder):
    """Returns the loss curve. If a step ran again, its last line counts."""
    curve = {}
    with open(os.path.join(folder, "metrics.jsonl")) as file:
        for line in file:
            entry = json.loads(line)
            if "loss_metrics/global_avg_loss" in entry:
                curve[entry["step"]] = entry["loss_metrics/global_avg_loss"]
    return curve


def make_sentencepiece(folder, learnt, texts):
    """Trains a model in `folder`. Returns the documents' tokens, as its package computes them."""
    import sentencepiece  # Here and below: many tests import this file.

    lines = [line for text in learnt for line in text[:3000].split("\n") if line.strip()]
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_prefix=os.path.join(folder, "tokenizer"), vocab_size=400,
                                             model_type="unigram", user_defined_symbols=["perl", "the "], minloglevel=2, num_threads=1)
    model = sentencepiece.SentencePieceProcessor(model_file=os.path.join(folder, "tokenizer.model"))
    return [[model.bos_id(), *model.encode(text), model.eos_id()] for text in texts]


def make_tiktoken(folder, _, texts):
    import tiktoken

    merged = [b"th", b"the", b" the", b"in", b"ing", b"er", b" a", b"on"]
    ranks = {token: rank for rank, token in enumerate([bytes([byte]) for byte in range(256)] + merged)}
    with open(os.path.join(folder, "tokenizer.model"), "w") as file:
        file.writelines("%s %d\n" % (base64.b64encode(token).decode(), rank) for token, rank in ranks.items())
    words = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    encoding = tiktoken.Encoding("llama3", pat_str=words, mergeable_ranks=ranks, special_tokens={})
    begin = len(ranks)  # Llama 3's special tokens come next: <|begin_of_text|>, <|end_of_text|>, ...
    return [[begin, *encoding.encode(text), begin + 1] for text in texts]


def write_megatron(prefix, documents):
    """Writes documents as Megatron-LM's preprocessing does, each as one sequence of int32."""
    count, lengths = len(documents), [len(document) for document in documents]
    firsts = [4 * sum(lengths[:i]) for i in range(count)]
    with open(prefix + ".bin", "wb") as out:
        for document in documents:
            out.write(struct.pack("<%di" % len(document), *document))
    with open(prefix + ".idx", "wb") as out:
        out.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, count, count + 1))
        out.write(struct.pack("<%di%dq%dq" % (count, count, count + 1), *lengths, *firsts, *range(count + 1)))


class TitanRankTest(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)

    def folder(self, name):
        return os.path.join(self.scratch.name, name)

    def finish(self, name, world, extra=()):
        ranks = Ranks(self.folder(name), world, extra)
        codes = ranks.wait()
        self.assertEqual(codes, [0] * world, "\n".join(ranks.outputs))
        return losses(ranks.folder)

    def test_two_ranks_finish_and_resume_bit_for_bit_after_sigterm(self):
        mixed = ["--training.mixed_precision_param", "bfloat16"]
        whole = self.finish("whole", 2, mixed)
        self.assertEqual(sorted(whole), list(range(1, 13)))
        self.assertLess(whole[12], whole[1])

        # One rank gets the signal. Both save and stop at the same step edge.
        ranks = Ranks(self.folder("stopped"), 2, mixed)
        ranks.wait_for_step(3)
        soft, hard = resource.prlimit(ranks.processes[0].pid, resource.RLIMIT_NOFILE)
        self.assertEqual(hard, soft, "rank 0 has connections of all ranks")
        ranks.processes[1].send_signal(signal.SIGTERM)
        self.assertEqual(ranks.wait(), [16, 16], "\n".join(ranks.outputs))
        stopped = [ranks.events(rank, "stopped")[0]["step"] for rank in (0, 1)]
        self.assertEqual(stopped[0], stopped[1])
        self.assertTrue(os.path.exists(os.path.join(ranks.folder, "checkpoint", "step-%d" % stopped[0], "manifest.json")))

        again = Ranks(ranks.folder, 2, mixed)
        self.assertEqual(again.wait(), [0, 0], "\n".join(again.outputs))
        self.assertEqual(again.events(0, "loaded")[-1]["step"], stopped[0])
        self.assertEqual(losses(ranks.folder), whole)

    def test_ranks_share_memory_or_not_with_the_same_numbers(self):
        stages = ["--parallelism.pipeline_parallel_degree", "2", "--training.local_batch_size", "4",
                  "--parallelism.pipeline_parallel_microbatch_size", "1", "--training.global_batch_size", "4"]
        for mesh in ([], stages):
            curves = []
            for shares, words in ((True, []), (False, ["--comm.no_shared_memory"])):
                ranks = Ranks(self.folder("shares-%d-%s" % (len(mesh), shares)), 2,
                              ["--training.steps", "4", "--checkpoint.no_enable", *mesh, *words])
                self.assertEqual(ranks.wait(), [0, 0], "\n".join(ranks.outputs))
                printed_sharing = "collectives and messages use memory that the ranks share" in ranks.outputs[0]
                self.assertEqual(printed_sharing, shares, ranks.outputs[0])
                curves.append(losses(ranks.folder))
            self.assertEqual(sorted(curves[0]), [1, 2, 3, 4])
            self.assertEqual(*curves)

    def test_killed_peer_ends_the_other_at_once(self):
        ranks = Ranks(self.folder("killed"), 2, ["--training.steps", "100000", "--checkpoint.no_enable"])
        ranks.wait_for_step(2)
        began = time.monotonic()
        ranks.processes[1].kill()
        codes = ranks.wait()
        self.assertLess(time.monotonic() - began, 15.0)  # Far below any timeout.
        self.assertEqual(codes, [12, -signal.SIGKILL], ranks.outputs[0])
        error = ranks.events(0, "error")[-1]
        self.assertEqual((error["class"], error["reason"]), ("peer", "PEER_LOST"))

    def test_peer_killed_during_a_save_is_named(self):
        # Rank 0 waits for rank 1's part of a checkpoint and not in a collective, so no connection breaks.
        ranks = Ranks(self.folder("killed-saving"), 2, ["--training.steps", "100000", "--lr_scheduler.total_steps", "100000",
                                                        "--checkpoint.interval", "1", "--checkpoint.async_mode", "disabled",
                                                        "--checkpoint.keep_latest_k", "2"])
        self.addCleanup(ranks.kill)
        ranks.wait_for_step(2)
        # The kernel kills rank 1 when it writes a larger file: its part of a checkpoint, which is the only large one.
        victim = ranks.processes[1].pid
        resource.prlimit(victim, resource.RLIMIT_CORE, (0, 0))
        resource.prlimit(victim, resource.RLIMIT_FSIZE, (1 << 17, 1 << 17))
        ranks.processes[1].wait(60)
        began = time.monotonic()
        self.assertEqual(ranks.wait(), [12, -signal.SIGXFSZ], ranks.outputs[0])
        self.assertLess(time.monotonic() - began, 60)  # The silence limit is 15 s; a rank's part may take 30 min.
        error = ranks.events(0, "error")[-1]
        self.assertEqual((error["class"], error["reason"]), ("peer", "PEER_LOST"))
        self.assertIn("rank 1 has shown no sign of life", error["message"])

    def test_batch_that_does_not_fit_the_pipeline_is_explained(self):
        self.finish("pieces", 1, ["--training.steps", "5"])  # Two rows per step; saved at step 5.
        staged = Ranks(self.folder("pieces"), 2, [
            "--training.steps", "6", "--parallelism.pipeline_parallel_degree", "2", "--training.local_batch_size", "3",
            "--training.global_batch_size", "-1", "--parallelism.pipeline_parallel_microbatch_size", "3"])
        self.assertEqual(staged.wait(), [11, 11], "\n".join(staged.outputs))
        for part in ("the checkpoint's global batch is kept", "the data-parallel rank 2 rows", "with 2: ", "with 1: ",
                     "3 does not divide training.local_batch_size 2"):
            self.assertIn(part, staged.outputs[0])

    def test_resumed_job_reports_what_it_keeps(self):
        first = Ranks(self.folder("other"), 1, ["--training.steps", "2"])
        self.assertEqual(first.wait(), [0], first.outputs[0])
        self.assertIn("step:  2  loss:", first.outputs[0])
        self.assertNotIn("\033", first.outputs[0], "colours in a pipe")
        again = Ranks(self.folder("other"), 1, ["--training.steps", "2", "--training.seq_len", "48", "--training.local_batch_size", "1",
                                                "--training.global_batch_size", "-1"])
        self.assertEqual(again.wait(), [0], again.outputs[0])
        self.assertIn("Nothing to do: step 2 of 2 is done", again.outputs[0])
        warnings = "\n".join(event["message"] for event in again.events(0, "warning"))
        self.assertIn("trained with rows of 64 tokens; training continues with training.seq_len = 48", warnings)
        self.assertIn("global batch of 2 rows is kept; the configuration gives 1", warnings)

    def test_load_only_stops_without_a_save(self):
        ranks = Ranks(self.folder("load-only"), 1, ["--training.steps", "100000", "--lr_scheduler.total_steps", "100000",
                                                    "--checkpoint.load_only"])
        ranks.wait_for_step(2)
        ranks.processes[0].send_signal(signal.SIGTERM)
        self.assertEqual(ranks.wait(), [16], ranks.outputs[0])
        self.assertIn("nothing is saved: checkpoint.load_only", ranks.outputs[0])
        self.assertFalse(glob.glob(os.path.join(ranks.folder, "checkpoint", "step-*", "manifest.json")))

    def test_other_world_size_follows_the_same_curve(self):
        extra = ["--training.dtype", "float64"]
        whole = self.finish("one", 1, extra)
        two = Ranks(self.folder("mixed"), 2, extra)
        two.wait_for_step(5)
        two.processes[0].send_signal(signal.SIGUSR1)
        self.assertEqual(two.wait(), [16, 16], "\n".join(two.outputs))
        one = Ranks(two.folder, 1, extra)
        self.assertEqual(one.wait(), [0], "\n".join(one.outputs))
        curve = losses(two.folder)
        self.assertEqual(sorted(curve), sorted(whole))
        for step, loss in whole.items():
            self.assertAlmostEqual(curve[step], loss, delta=1e-9)

    def test_hsdp_and_ddp_over_processes_equal_one_rank(self):
        extra = ["--training.dtype", "float64", "--training.global_batch_size", "4", "--training.steps", "4"]
        one = self.finish("one4", 1, extra)
        meshes = {"hsdp": (4, ["2", "2"]), "ddp": (2, ["2", "1"])}
        for name, (world, (replicate, shard)) in meshes.items():
            curve = self.finish(name, world, extra + ["--parallelism.data_parallel_replicate_degree", replicate,
                                                      "--parallelism.data_parallel_shard_degree", shard])
            for step, loss in one.items():
                self.assertAlmostEqual(curve[step], loss, delta=1e-10, msg="%s step %d" % (name, step))

    def test_pipeline_over_processes_equals_one_rank_and_resumes_there(self):
        # The job has accumulation (two runs of a schedule per step), split backward passes and validation.
        extra = ["--training.dtype", "float64", "--training.global_batch_size", "4", "--training.steps", "6",
                 "--validation.enable", "--validation.freq", "6", "--validation.seq_len", "64"]
        one = self.finish("one4", 1, extra)
        staged = extra + ["--parallelism.pipeline_parallel_degree", "2", "--training.local_batch_size", "2",
                          "--parallelism.pipeline_parallel_schedule", "ZBVZeroBubble"]
        two = Ranks(self.folder("stages"), 2, staged)
        two.wait_for_step(2)
        two.processes[1].send_signal(signal.SIGHUP)
        self.assertEqual(two.wait(), [16, 16], "\n".join(two.outputs))
        for rank in (0, 1):  # The first stage's rank computes no loss.
            self.assertIn("loss: %8.5f" % one[1], re.sub(r"\x1b\[[0-9;]*m", "", two.outputs[rank]))
        last = Ranks(two.folder, 1, extra)
        self.assertEqual(last.wait(), [0], "\n".join(last.outputs))
        curve = losses(two.folder)
        self.assertEqual(sorted(curve), sorted(one))
        for step, loss in one.items():
            self.assertAlmostEqual(curve[step], loss, delta=1e-9)

    def test_killed_stage_ends_the_others(self):
        ranks = Ranks(self.folder("stage-killed"), 2, [
            "--training.steps", "100000", "--checkpoint.no_enable", "--training.local_batch_size", "2",
            "--parallelism.pipeline_parallel_degree", "2"])
        ranks.wait_for_step(2)
        ranks.processes[1].kill()
        self.assertEqual(ranks.wait(), [12, -signal.SIGKILL], ranks.outputs[0])
        self.assertEqual(ranks.events(0, "error")[-1]["reason"], "PEER_LOST")

    def test_early_steps_and_offload_change_no_number(self):
        extra = ["--training.dtype", "float64", "--training.steps", "3", "--training.max_norm", "1e9"]
        one = self.finish("late", 1, extra)
        for name, flags in {"early": ["--optimizer.early_step_in_backward"],
                            "offloaded": ["--training.enable_cpu_offload", "--optimizer.early_step_in_backward"],
                            "both passes": ["--training.enable_cpu_offload"]}.items():
            curve = self.finish(name, 2, extra + flags)
            for step, loss in one.items():
                self.assertAlmostEqual(curve[step], loss, delta=1e-10, msg="%s step %d" % (name, step))

    def test_validation_on_uneven_data_and_async_checkpoints(self):
        # Three documents are dealt to two ranks: one rank runs out of data first, and no rank waits for it.
        text = self.folder("text")
        os.makedirs(text)
        with open(os.path.join(text, "data.json"), "w") as file:
            for document in range(3):
                file.write(json.dumps({"text": "A few words about number %d. " % document * (40 if document else 400)}) + "\n")
        extra = ["--validation.enable", "--validation.dataset_path", text, "--validation.steps", "-1",
                 "--validation.freq", "6", "--validation.seq_len", "64", "--validation.local_batch_size", "1",
                 "--checkpoint.async_mode", "async"]
        ranks = Ranks(self.folder("validated"), 2, extra)
        self.assertEqual(ranks.wait(), [0, 0], "\n".join(ranks.outputs))
        seen = [event["metrics"]["validation_metrics/loss"] for event in ranks.events(0, "step")
                if "validation_metrics/loss" in event["metrics"]]
        self.assertEqual(len(seen), 3)  # Steps 1, 6, 12.
        self.assertTrue(all(math.isfinite(loss) for loss in seen))
        self.assertIn(5, [event["step"] for event in ranks.events(0, "checkpoint_staged")])
        self.assertIn(5, [event["step"] for event in ranks.events(0, "checkpoint_committed")])

    def test_a_seed_checkpoint_that_cannot_be_saved_is_a_failure(self):
        for mode in ("disabled", "async"):
            folder = self.folder("unsaved-" + mode)
            os.makedirs(folder)
            with open(os.path.join(folder, "checkpoint"), "w"):
                pass  # A file in place of the checkpoint folder.
            seed = Ranks(folder, 1, ["--checkpoint.create_seed_checkpoint", "--checkpoint.async_mode", mode,
                                     "--training.global_batch_size", "-1"])
            self.assertEqual(seed.wait(), [14], seed.outputs[0])
            self.assertIn("step 0 was not saved", seed.outputs[0])
            self.assertNotIn("Training completed", seed.outputs[0])

    def test_the_last_save_waits_for_its_disk(self):
        """Since their state would be lost, the ranks stay until the folder can be written, and report what they wait for."""
        ranks = Ranks(self.folder("waits"), 2, ["--training.steps", "60", "--checkpoint.interval", "1000"])
        ranks.wait_for_step(1)
        obstacle = os.path.join(ranks.folder, "checkpoint")
        open(obstacle, "x").close()  # A file in place of the checkpoint folder.
        deadline = time.monotonic() + 120
        while not any("; try 3 in " in event["message"] for event in ranks.events(0, "warning")):
            self.assertLess(time.monotonic(), deadline, "no second try")
            self.assertEqual([None, None], [process.poll() for process in ranks.processes])
            time.sleep(0.05)
        os.remove(obstacle)
        self.assertEqual(ranks.wait(), [0, 0], "\n".join(ranks.outputs))
        self.assertIn("step 60 could not be saved: ", ranks.outputs[0])
        self.assertEqual([60], [event["step"] for event in ranks.events(0, "checkpoint_committed")])
        # The checkpoint names its model, and a job of another model refuses it.
        self.assertEqual("llama3", manifest_of(ranks.folder, 60)["model"]["name"])
        other = Ranks(ranks.folder, 1, ["--model.name", "llama4", "--model.flavor", "debugmodel", "--training.steps", "61",
                                        "--checkpoint.load_step", "60"])
        self.assertEqual(other.wait(), [11], other.outputs[0])
        self.assertEqual("MODEL_MISMATCH", other.events(0, "error")[-1]["reason"])
        self.assertIn("step-60 holds llama3 debugmodel (", other.outputs[0])

    def test_stop_request_shortens_the_wait_of_the_last_save(self):
        """The ranks would wait half an hour for the disk, but after a stop request they wait only for the grace period."""
        ranks = Ranks(self.folder("stops"), 2, ["--checkpoint.interval", "1000", "--restart.stop_grace_seconds", "5"])
        ranks.wait_for_step(1)
        open(os.path.join(ranks.folder, "checkpoint"), "x").close()  # A file in place of the checkpoint folder.
        deadline = time.monotonic() + 120
        while not any("; try 4 in " in event["message"] for event in ranks.events(0, "warning")):
            self.assertLess(time.monotonic(), deadline, "no third try")
            time.sleep(0.02)
        self.assertIn("giving up in 29m", ranks.events(0, "warning")[-1]["message"])
        for process in ranks.processes:
            process.send_signal(signal.SIGTERM)
        self.assertEqual(ranks.wait(60), [14, 14], "\n".join(ranks.outputs))
        self.assertIn("because a stop was requested", ranks.outputs[0])

    def test_validation_counts_tokens_and_reports_missing_data(self):
        validation = ["--validation.enable", "--validation.seq_len", "64", "--training.steps", "1",
                      "--checkpoint.no_enable"]
        self.finish("validated", 1, validation + ["--validation.steps", "1"])
        with open(os.path.join(self.folder("validated"), "metrics.jsonl")) as file:
            self.assertGreater(json.loads(file.readlines()[-1])["validation_metrics/throughput(tps)"], 0)

        os.makedirs(self.folder("short"))
        with open(os.path.join(self.folder("short"), "a.json"), "w") as file:
            file.write('{"text": "hi"}\n')
        ranks = Ranks(self.folder("empty"), 1, validation + [
            "--validation.steps", "-1", "--validation.dataset_path", self.folder("short")])
        self.assertEqual(ranks.wait(), [0], ranks.outputs[0])
        self.assertIn("nothing was validated", ranks.outputs[0])

    def test_seed_checkpoint_starts_any_mesh(self):
        folder = self.folder("seeded")
        seed = Ranks(folder, 1, ["--checkpoint.create_seed_checkpoint", "--training.global_batch_size", "-1"])
        self.assertEqual(seed.wait(), [0], seed.outputs[0])
        # Another seed would draw other weights, so the checkpoint's are used.
        curve = self.finish("seeded", 2, ["--debug.seed", "7"])
        plain = self.finish("plain", 2)
        self.assertEqual(curve[1], plain[1])

    def test_kernels_are_named_or_refused(self):
        words = ["--training.steps", "1", "--training.mixed_precision_param", "bfloat16", "--resources.kernels"]
        for kernels, description in (("avx2", "Titan's kernels for avx2"), ("reference", "LibTorch's operations")):
            ranks = Ranks(self.folder(kernels), 1, [*words, kernels])
            self.assertEqual([0], ranks.wait(), ranks.outputs)
            self.assertIn("bfloat16 is computed by %s (resources.kernels = %s)" % (description, kernels), ranks.outputs[0])
        with open("/proc/cpuinfo") as file:
            if "amx_bf16" in file.read():
                return
        ranks = Ranks(self.folder("amx"), 1, [*words, "amx"])
        self.assertEqual([10], ranks.wait(), ranks.outputs)
        self.assertIn("KERNEL_LEVEL: resources.kernels is amx, but the best level of this machine", ranks.outputs[0])

    # A failing disk does not stop the training.
    def test_unwritable_trace_does_not_stop_training(self):
        os.makedirs(self.folder("blocked"))
        with open(os.path.join(self.folder("blocked"), "profile_traces"), "w"):
            pass
        ranks = Ranks(self.folder("blocked"), 1, ["--training.steps", "2", "--profiling.enable_profiling", "--profiling.profile_freq", "1",
                                                  "--profiling.profiler_warmup", "0"])
        self.assertEqual([0], ranks.wait(), ranks.outputs)
        self.assertIn("the profiler's trace is lost: create", ranks.outputs[0])

    def test_colours_are_for_terminals(self):
        """Colours follow metrics.disable_color_printing, and are off without a terminal."""
        def printed(*extra):
            reader, writer = pty.openpty()
            words = [RANK, "--config", CONFIG, *SMALL, "--job.dump_folder", self.folder("colours%d" % len(extra)), "--training.steps", "1", *extra]
            environment = {**{name: value for name, value in os.environ.items() if name != "NO_COLOR"}, "TERM": "xterm"}
            with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.STDOUT, env=environment) as rank:
                os.close(writer)
                text = b""
                try:
                    while part := os.read(reader, 65536):
                        text += part
                except OSError:  # No process has the other end open any more.
                    pass
                os.close(reader)
                self.assertEqual(0, rank.wait(120), text)
            self.assertIn(b"step:", text)
            return text

        self.assertIn(b"\x1b[", printed())
        self.assertNotIn(b"\x1b[", printed("--metrics.disable_color_printing"))

    def test_unset_seed_is_drawn_and_saved(self):
        unset = ["--debug.seed", "None", "--training.steps", "5", "--lr_scheduler.total_steps", "12"]
        first = self.finish("unset", 2, unset)
        (drawn,) = self.saved_seeds("unset")
        self.assertEqual(first, self.finish("set", 2, [*unset, "--debug.seed", str(drawn)]))
        self.assertNotEqual(first[1], self.finish("other", 1, [*unset, "--training.steps", "1", "--checkpoint.no_enable"])[1])
        self.finish("unset", 1, [*unset, "--training.steps", "10"])
        self.assertEqual({drawn}, self.saved_seeds("unset"))

    def saved_seeds(self, name):
        seeds = set()
        for path in glob.glob(os.path.join(self.folder(name), "checkpoint", "step-*", "manifest.json")):
            with open(path) as file:
                seeds.add(json.load(file)["train_state"]["seed"])
        return seeds

    def test_non_finite_loss_by_policy(self):
        extra = ["--optimizer.lr", "1e30", "--training.steps", "6", "--checkpoint.no_enable"]
        failing = Ranks(self.folder("fail"), 1, extra)
        self.assertEqual(failing.wait(), [11], failing.outputs[0])
        error = failing.events(0, "error")[-1]
        self.assertEqual((error["class"], error["reason"]), ("user", "NONFINITE_LOSS"))
        skipping = Ranks(self.folder("skip"), 1, extra + ["--training.nonfinite_policy", "skip"])
        self.assertEqual(skipping.wait(), [0], skipping.outputs[0])
        self.assertTrue(any("skipped" in event["message"] for event in skipping.events(0, "warning")))
        self.assertTrue(all(math.isfinite(loss) for loss in losses(skipping.folder).values()))

    def test_a_step_that_is_read_late_is_the_same_step(self):
        seldom = ["--metrics.log_freq", "4"]
        late = [*seldom, "--training.read_step", "late"]
        at_once = self.finish("at once", 2, seldom)
        self.assertEqual(sorted(at_once), [1, 4, 8, 12])
        self.assertEqual(self.finish("late", 2, late), at_once)

        # A stop takes effect one step later, but at the same edge for all ranks, and nothing is lost.
        ranks = Ranks(self.folder("stopped late"), 2, late)
        ranks.wait_for_step(4)
        ranks.processes[1].send_signal(signal.SIGUSR2)  # Some schedulers warn by signals other than SIGTERM.
        self.assertEqual(ranks.wait(), [16, 16], "\n".join(ranks.outputs))
        stopped = [ranks.events(rank, "stopped")[0]["step"] for rank in (0, 1)]
        self.assertEqual(stopped[0], stopped[1])
        manifest_of(ranks.folder, stopped[0])
        self.assertEqual(self.finish("stopped late", 2, late), at_once)

    def test_a_step_that_is_read_late_and_not_finite(self):
        late = ["--optimizer.lr", "1e30", "--training.steps", "6", "--checkpoint.no_enable", "--metrics.log_freq", "100",
                "--training.read_step", "late"]  # fmt: skip
        failing = Ranks(self.folder("fail late"), 1, late)
        self.assertEqual(failing.wait(), [11], failing.outputs[0])
        error = failing.events(0, "error")[-1]
        self.assertEqual(error["reason"], "NONFINITE_LOSS")
        self.assertIn("step 2: loss", error["message"])
        skipping = Ranks(self.folder("skip late"), 1, [*late, "--training.nonfinite_policy", "skip"])
        self.assertEqual(skipping.wait(), [0], skipping.outputs[0])
        skipped = [event["message"].split(":")[0] for event in skipping.events(0, "warning") if "skipped" in event["message"]]
        self.assertEqual(skipped, ["step %d" % step for step in range(2, 7)])

    def test_launch_file_and_fence(self):
        folder, run = self.folder("launched"), self.folder("attempt-3")
        os.makedirs(run)
        launch = {
            "version": 1, "job": "default/tiny", "job_uid": "u-1", "attempt": 3, "threads_per_rank": 1,
            "nodes": [{"node": "n1", "host": "127.0.0.1", "ranks": 1}],
            "config": {"job": {"dump_folder": folder, "umask": "002"}, "training": {"steps": 2, "seq_len": 64, "local_batch_size": 1},
                       "lr_scheduler": {"warmup_steps": 1}, "activation_checkpoint": {"mode": "none"}},
        }
        path = os.path.join(run, "launch.json")

        def start(attempt):
            launch["attempt"] = attempt
            with open(path, "w") as file:
                json.dump(launch, file)
            ranks = Ranks(folder, 1, config=path)
            code = ranks.wait()[0]
            with open(os.path.join(run, "rank-0.events.jsonl")) as file:
                return code, [json.loads(line) for line in file], ranks.outputs[0]

        code, events, output = start(3)
        self.assertEqual(code, 0, output)
        self.assertEqual([events[0]["kind"], events[-1]["kind"]], ["started", "finished"])
        modes = {path.relative_to(folder).as_posix(): path.stat().st_mode & 0o777 for path in Path(folder).rglob("*")}
        self.assertIn("metrics.jsonl", modes)
        self.assertIn("fence.json", modes)
        self.assertEqual({}, {name: oct(mode) for name, mode in modes.items() if mode not in (0o664, 0o775)})
        code, events, output = start(2)  # Too late: its successor owns the folder.
        self.assertEqual(code, 15, output)
        self.assertEqual(events[-1]["class"], "fenced")

    def test_late_rank_of_another_job_or_attempt_cannot_join(self):
        # A port is free again as soon as its store has ended. The next store may get it while earlier ranks still look
        # for theirs.
        server = listening_socket()
        self.addCleanup(server.close)

        def start(uid, attempt, rank, **options):
            run = self.folder("%s-%d-%d" % (uid, attempt, rank))
            os.makedirs(run)
            launch = {
                "version": 1, "job": "default/tiny", "job_uid": uid, "attempt": attempt, "threads_per_rank": 1,
                "nodes": [{"node": "n1", "host": "127.0.0.1", "ranks": 2}],
                "config": {"job": {"dump_folder": self.folder(uid)}, "lr_scheduler": {"warmup_steps": 1},
                           "training": {"steps": 2, "seq_len": 64, "local_batch_size": 1, "mixed_precision_param": "float32"},
                           "comm": {"init_timeout_seconds": 60 if (uid, attempt) == ("u-1", 2) else 3}},
            }
            with open(os.path.join(run, "launch.json"), "w") as file:
                json.dump(launch, file)
            words = [RANK, "--config", os.path.join(run, "launch.json"), "--rank", str(rank), "--world", "2",
                     "--store", "127.0.0.1:%d" % server.getsockname()[1]]
            process = subprocess.Popen([*words, *options.pop("words", ())], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
            return process

        fd = server.fileno()
        first = start("u-1", 2, 0, words=["--listen-fd", str(fd)], pass_fds=(fd,))
        strangers = [start("u-2", 1, 1), start("u-1", 1, 1)]
        for late in strangers:
            output = late.communicate(timeout=120)[0]
            self.assertEqual(12, late.returncode, output)
        self.assertIsNone(first.poll(), "it waits for its own rank")
        second = start("u-1", 2, 1)
        for process in (first, second):
            output = process.communicate(timeout=120)[0]
            self.assertEqual(0, process.returncode, output)

    def test_a_job_reads_text_by_each_kind_of_tokenizer(self):
        # The job trains on exactly the tokens of the kind's package: a job that gets these tokens has the same losses.
        with open(os.path.join(ASSETS, "c4_test", "data.json")) as file:
            whole = [json.loads(line)["text"] for line in file][:12]
        texts = [one[at:at + 60] for one in whole for at in (100, 400)]  # Several of them, with their ends, in a row.
        text = self.folder("text.jsonl")
        with open(text, "w") as file:
            file.writelines(json.dumps({"text": one}) + "\n" for one in texts)
        for kind, make in (("sentencepiece", make_sentencepiece), ("tiktoken", make_tiktoken)):
            assets, tokens = self.folder(kind), self.folder(kind + "-tokens")
            os.mkdir(assets)
            write_megatron(tokens, make(assets, whole, texts))
            few = ["--training.steps", "2", "--checkpoint.no_enable", "--model.hf_assets_path", assets, "--training.dataset_path"]
            ours, theirs = (self.finish("%s-of-%d" % (kind, i), 1, [*few, path]) for i, path in enumerate((text, tokens)))
            self.assertEqual(sorted(ours), [1, 2])
            self.assertEqual(ours, theirs, kind)

    def test_errors_have_their_own_exit_codes_and_name_the_cause(self):
        def run(words):
            done = subprocess.run([RANK, *words], capture_output=True, text=True, timeout=90)
            return done.returncode, done.stderr

        code, text = run(["--bogus", "1"])
        self.assertEqual(code, 2)
        self.assertIn("--bogus", text)
        code, text = run(["--config", CONFIG, "--training.sept_len", "64"])
        self.assertEqual(code, 10)
        self.assertIn("training.seq_len", text)
        code, text = run(["--config", CONFIG, "--world", "2"])
        self.assertEqual(code, 10)
        self.assertIn("--store", text)
        code, text = run(["--config", CONFIG, "--rank", "3"])
        self.assertEqual(code, 10)
        self.assertIn("--rank 3", text)
        code, text = run(["--config", CONFIG, *SMALL, "--job.dump_folder", self.folder("nodata"),
                          "--training.dataset_path", "/nonexistent/data"])
        self.assertEqual(code, 11)
        self.assertIn("/nonexistent/data", text)
        code, text = run(["--config", CONFIG, *SMALL, "--job.dump_folder", self.folder("nowords"), "--model.hf_assets_path", "/nowhere"])
        self.assertEqual(code, 11)
        self.assertIn("model.hf_assets_path: /nowhere: no such folder; `titanctl assets get ORG/NAME --assets tokenizer`", text)
        blocked = self.folder("file")
        with open(blocked, "w"):
            pass
        code, text = run(["--config", CONFIG, *SMALL, "--job.dump_folder", blocked])
        self.assertEqual(code, 14)
        self.assertIn(blocked, text)


if __name__ == "__main__":
    unittest.main()
