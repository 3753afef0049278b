"""comm.mode = "fake_backend": a dry run of one rank sends what that rank sends in a real step, call by call and byte by byte."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from titan_rank_test import CONFIG, RANK

SHORT = ["--training.steps", "1", "--lr_scheduler.warmup_steps", "1", "--training.seq_len", "64", "--validation.no_enable",
         "--checkpoint.no_enable", "--metrics.no_enable_tensorboard", "--resources.threads_per_rank", "1",
         "--training.local_batch_size", "2", "--training.global_batch_size", "-1"]
DEGREE = {"pp": "pipeline_parallel_degree", "dp": "data_parallel_replicate_degree", "fsdp": "data_parallel_shard_degree",
          "cp": "context_parallel_degree", "tp": "tensor_parallel_degree", "ep": "expert_parallel_degree",
          "etp": "expert_tensor_parallel_degree"}
MOE = ["--model.name", "deepseek_v3", "--debug.moe_force_load_balance"]


def flags(mesh):
    return [word for axis, degree in mesh.items() for word in ("--parallelism." + DEGREE[axis], str(degree))]


def world(mesh):
    ranks = 1
    for axis in ("pp", "dp", "fsdp", "cp", "tp"):
        ranks *= mesh.get(axis, 1)
    return ranks


def dry(ranks, rank, extra, config=CONFIG):
    words = [RANK, "--config", config, *extra, "--comm.mode", "fake_backend", "--resources.ranks", str(ranks),
             "--rank", str(rank), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


class DryRun(unittest.TestCase):
    def same_traffic(self, mesh, *extra):
        ranks, words = world(mesh), SHORT + flags(mesh) + list(extra)
        with tempfile.TemporaryDirectory() as folder:
            real = subprocess.run(
                [RANK, "--config", CONFIG, *words, "--job.dump_folder", folder, "--comm.mode", "local_tensor",
                 "--resources.ranks", str(ranks)], capture_output=True, text=True, timeout=60)
            self.assertEqual(0, real.returncode, real.stderr)
            for rank in {0, ranks - 1}:
                with open(os.path.join(folder, "run", "rank-%d.ledger.json" % rank)) as file:
                    self.assertEqual(json.load(file)["last_step"], dry(ranks, rank, words)["collectives"], (mesh, rank))

    def test_sharded_and_replicated(self):
        self.same_traffic({"dp": 2, "fsdp": 2})

    def test_tensor_and_context(self):
        self.same_traffic({"cp": 2, "tp": 2})

    def test_pipeline(self):
        self.same_traffic({"pp": 2, "fsdp": 2}, "--training.local_batch_size", "4",
                          "--parallelism.pipeline_parallel_schedule", "Interleaved1F1B")

    def test_experts(self):
        self.same_traffic({"fsdp": 4, "ep": 2}, *MOE)

    @unittest.skipUnless(os.environ.get("TITAN_LONG"), "TITAN_LONG=1: a minute")
    def test_other_ways_to_split_and_to_save_memory(self):
        rows = ["--training.local_batch_size", "4"]
        schedule = "--parallelism.pipeline_parallel_schedule"
        for mesh, extra in [
                ({"tp": 2, "fsdp": 2}, ["--parallelism.enable_async_tensor_parallel"]),
                ({"tp": 2, "fsdp": 2}, ["--parallelism.no_enable_sequence_parallel"]),
                ({"tp": 2, "fsdp": 2}, ["--activation_checkpoint.mode", "selective",
                                        "--activation_checkpoint.selective_ac_option", "op"]),
                ({"fsdp": 4}, ["--activation_checkpoint.mode", "memory_budget", "--activation_checkpoint.memory_budget", "0.4"]),
                ({"fsdp": 4}, ["--training.enable_cpu_offload"]),
                ({"fsdp": 4}, ["--optimizer.early_step_in_backward"]),
                ({"pp": 2, "tp": 2}, [*rows, schedule, "ZBVZeroBubble"]),
                ({"pp": 2, "fsdp": 2}, [*rows, schedule, "DualPipeV"]),
                ({"cp": 2, "fsdp": 2}, ["--parallelism.context_parallel_rotate_method", "alltoall"]),
                ({"fsdp": 2, "tp": 2, "ep": 4, "etp": 1}, MOE),
                ({"fsdp": 2, "tp": 2, "ep": 2, "etp": 2}, MOE),
                ({"fsdp": 2, "cp": 2, "ep": 4}, MOE),
                ({"pp": 2, "fsdp": 2, "ep": 2}, MOE + rows),
                ({"fsdp": 2, "tp": 2}, ["--model.name", "llama4", "--debug.moe_force_load_balance"]),
                ({"fsdp": 2, "tp": 2}, ["--model.name", "gpt_oss", "--debug.moe_force_load_balance"]),
                ({"fsdp": 2, "pp": 2}, ["--model.name", "qwen3", *rows])]:
            with self.subTest(mesh=mesh, extra=extra):
                self.same_traffic(mesh, *extra)

    # 405B, rank 0 of 512, in seconds. A rank of the first stage holds its share of that stage.
    def test_a_large_job_needs_no_memory(self):
        result = dry(512, 0, ["--model.flavor", "405B", "--training.seq_len", "8192", "--training.local_batch_size", "16",
                              "--training.global_batch_size", "-1", "--validation.no_enable", "--checkpoint.no_enable",
                              *flags({"pp": 8, "tp": 8, "fsdp": 8})],
                     config=os.path.join(os.environ["TITAN_SOURCE"], "configs", "llama3_8b.toml"))
        print("405B, rank 0 of 512: %.2f s" % result["seconds"])
        self.assertLess(result["seconds"], 30)
        self.assertEqual(405853388800, result["parameters"]["model"])
        self.assertEqual([0], result["schedule"]["stages_here"])
        here, shard = result["parameters"]["here"], result["parameters"]["shard"]
        self.assertAlmostEqual(here / 8, shard, delta=here * 1e-3)
        self.assertEqual(4 * shard, result["bytes"]["parameters"])
        self.assertEqual(8 * shard, result["bytes"]["optimizer"])
        self.assertGreater(result["bytes"]["peak"], result["bytes"]["standing"] + result["bytes"]["block_edges"])
        self.assertEqual(16, result["collectives"]["pp/send"]["calls"])

    def test_a_mesh_that_does_not_fit_is_refused(self):
        words = [RANK, "--config", CONFIG, "--comm.mode", "fake_backend", "--resources.ranks", "3",
                 "--parallelism.tensor_parallel_degree", "2"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        self.assertEqual(10, done.returncode, done.stdout)


if __name__ == "__main__":
    unittest.main()
