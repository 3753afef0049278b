"""Tests comm.mode = "fake_backend": a dry run of one rank has exactly the traffic of that rank in a real step, call by call and
byte by byte."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
sys.path.insert(0, os.path.join(os.environ["TITAN_SOURCE"], "tests", "numerics"))
sys.path.insert(0, os.path.join(os.environ["TITAN_SOURCE"], "tests", "worker", "rank", "model", "flux"))
from tiny_flux import flags_of, write_archive, write_encoders
from rank_runs import small_model
from titan_rank_test import CONFIG, RANK

SHORT = ["--training.steps", "1", "--lr_scheduler.warmup_steps", "1", "--training.seq_len", "64", "--validation.no_enable",
         "--checkpoint.no_enable", "--metrics.no_enable_tensorboard", "--resources.threads_per_rank", "1",
         "--training.local_batch_size", "2", "--training.global_batch_size", "-1"]
DEGREE = {"pp": "pipeline_parallel_degree", "dp": "data_parallel_replicate_degree", "fsdp": "data_parallel_shard_degree",
          "cp": "context_parallel_degree", "tp": "tensor_parallel_degree", "ep": "expert_parallel_degree",
          "etp": "expert_tensor_parallel_degree"}


def small(family):
    """Returns flags for another family, with few layers and experts."""
    return [word for key, value in small_model(family).items() for word in ("--" + key, str(value))]


def balanced(family):
    """Returns the flags of small() with forced balance, because a dry run does not know a router's choices."""
    return [*small(family), "--debug.moe_force_load_balance"]


MOE = balanced("deepseek_v3")
SCHEDULE = "--parallelism.pipeline_parallel_schedule"


def tiny_flux(folder):
    """Returns flags for a tiny Flux with random encoders, whose configurations and pictures it writes."""
    folder = pathlib.Path(folder)
    write_archive(folder / "pictures/part.tar")
    return flags_of({"model.name": "flux", "model.flavor": "flux-tiny-debug", "training.dataset": "cc12m-test",
                     "training.dataset_path": folder / "pictures", "training.img_size": 32, **write_encoders(folder)})  # fmt: skip


def tiny_flux_flops(rows, passes):
    """Returns the FLOPs of products and of attention of rows with 4 tokens of an image and 12 of a text, in a step whose layers run
    forward `passes` times."""
    dim, img, txt, layers = 64, 4, 12, 2
    tokens = img + txt
    inputs = dim * (img * 64 + txt * 32 + 256 + 32)
    layers_forward = layers * (12 * dim**2 + 12 * dim**2 * tokens) + layers * (3 * dim**2 + 12 * dim**2 * tokens)
    ends = 2 * dim**2 + 2 * dim**2 + img * dim * 64  # The vector's second layers, the last modulation and projection.
    products = 2 * (passes + 2) * layers_forward + 6 * ends + 4 * inputs  # The model's inputs need no gradients.
    return rows * products, rows * 2 * layers * (2 * passes + 5) * 2 * dim * tokens**2


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

    def same_on_all(self, rows):
        for mesh, extra in rows:
            with self.subTest(mesh=mesh, extra=extra):
                self.same_traffic(mesh, *extra)

    def test_every_way_to_split_has_the_same_traffic(self):
        batch = ["--training.local_batch_size", "4"]
        self.same_on_all([({"dp": 2, "fsdp": 2}, []),
                          ({"cp": 2, "tp": 2}, []),
                          ({"tp": 2, "fsdp": 2}, ["--parallelism.enable_async_tensor_parallel"]),
                          ({"tp": 2, "fsdp": 2}, ["--parallelism.no_enable_sequence_parallel"]),
                          ({"cp": 2, "fsdp": 2}, ["--parallelism.context_parallel_rotate_method", "alltoall"]),
                          ({"pp": 2, "fsdp": 2}, [*batch, SCHEDULE, "Interleaved1F1B"]),
                          ({"pp": 2, "tp": 2}, [*batch, SCHEDULE, "ZBVZeroBubble"]),
                          ({"pp": 2, "fsdp": 2}, [*batch, SCHEDULE, "DualPipeV"]),
                          ({"pp": 2, "fsdp": 2}, [*batch, "--training.global_batch_size", "16"])])

    def test_ways_to_save_memory_have_the_same_traffic(self):
        mode = "--activation_checkpoint.mode"
        self.same_on_all([({"tp": 2, "fsdp": 2}, [mode, "full"]),
                          ({"tp": 2, "fsdp": 2}, [mode, "selective", "--activation_checkpoint.selective_ac_option", "op"]),
                          ({"fsdp": 2}, [mode, "memory_budget", "--activation_checkpoint.memory_budget", "0.4"]),
                          ({"fsdp": 2}, ["--training.enable_cpu_offload"]),
                          ({"fsdp": 2}, ["--optimizer.early_step_in_backward"]),
                          ({"fsdp": 2}, ["--parallelism.fsdp_reshard_after_forward", "never"]),
                          ({"fsdp": 2, "ep": 2}, [*MOE, mode, "selective", "--activation_checkpoint.selective_ac_option", "op"])])

    def test_experts_and_families(self):
        self.same_on_all([({"fsdp": 4, "ep": 2}, MOE),
                          ({"fsdp": 2, "tp": 2, "ep": 4, "etp": 1}, MOE),
                          ({"fsdp": 2, "tp": 2, "ep": 2, "etp": 2}, MOE),
                          ({"fsdp": 2, "cp": 2, "ep": 4}, MOE),
                          ({"pp": 2, "fsdp": 2, "ep": 2}, MOE + ["--training.local_batch_size", "4"]),
                          ({"fsdp": 2, "tp": 2}, balanced("llama4")),
                          ({"fsdp": 2, "tp": 2}, balanced("gpt_oss")),
                          ({"fsdp": 2, "pp": 2}, balanced("qwen3") + ["--training.local_batch_size", "4"])])

    def test_flux_has_the_same_traffic_and_the_flops_of_its_formula(self):
        with tempfile.TemporaryDirectory() as folder:
            flux = tiny_flux(folder)
            self.same_on_all([({"dp": 2, "fsdp": 2}, flux), ({"tp": 2, "cp": 2}, flux), ({"pp": 2}, flux)])
            for mode, passes in (("none", 1), ("full", 2)):
                result = dry(4, 0, SHORT + flags({"dp": 2, "fsdp": 2}) + flux + ["--activation_checkpoint.mode", mode])
                products, attention = tiny_flux_flops(rows=2, passes=passes)
                self.assertEqual((products, attention), (result["flops"]["products"], result["flops"]["attention"]))
                self.assertGreater(result["flops"]["encoders"], 0)

    # The estimate by `titanctl schedule show`, from a model's dimensions, equals what the dry run's layers hold.
    def test_activations_match_titanctls_estimate(self):
        modes = [["none"], ["full"], ["selective", "--activation_checkpoint.selective_ac_option", "2"],
                 ["selective", "--activation_checkpoint.selective_ac_option", "op"], ["memory_budget"],
                 ["full", "--activation_checkpoint.layers", "0,5,6"]]
        llama, deepseek = ["--model.flavor", "8B"], ["--model.name", "deepseek_v3", "--model.flavor", "236B"]
        float32 = ["--training.mixed_precision_param", "float32"]
        jobs = [({"fsdp": 2}, llama + ["--resources.device", "cuda"]), ({"fsdp": 2}, llama), ({"fsdp": 2}, llama + float32),
                ({"tp": 4, "cp": 2}, llama), ({"tp": 4, "pp": 2}, llama + ["--parallelism.no_enable_sequence_parallel"]),
                ({"pp": 4}, llama + ["--training.local_batch_size", "4", SCHEDULE, "ZBVZeroBubble"]),
                ({"fsdp": 8, "ep": 8}, deepseek), ({"fsdp": 4, "tp": 2, "ep": 2, "etp": 2}, deepseek),
                ({"fsdp": 4, "tp": 2, "ep": 8, "etp": 1}, deepseek), ({"fsdp": 4}, ["--model.name", "llama4", "--model.flavor", "17bx16e"]),
                ({"fsdp": 4, "ep": 4}, ["--model.name", "gpt_oss", "--model.flavor", "20b"]),
                ({"fsdp": 4}, ["--model.name", "qwen3", "--model.flavor", "0.6B"])]
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        flux = ["--training.test_mode", "--model.name", "flux", "--model.flavor", "flux-debug", "--training.dataset", "cc12m-test",
                "--training.dataset_path", folder.name, "--encoder.t5_encoder", "google/t5-v1_1-xxl"]
        jobs += [({"fsdp": 2}, flux), ({"pp": 2}, flux), ({"tp": 2, "cp": 2}, flux)]
        for index, (mesh, extra) in enumerate(jobs):
            chosen = modes if index == 0 else [modes[index % len(modes)], modes[(index + 3) % len(modes)]]
            for mode in modes[:4] if extra == flux else chosen:
                words = SHORT + flags(mesh) + extra + ["--training.seq_len", "512", "--activation_checkpoint.mode", *mode]
                ranks = world(mesh)
                shown = subprocess.run([os.path.join(os.environ["TITAN_BIN"], "titanctl"), "schedule", "show", CONFIG, "--nproc",
                                        str(ranks), *words, "-o", "json"], capture_output=True, text=True, timeout=60)
                self.assertEqual(0, shown.returncode, shown.stderr)
                estimates = json.loads(shown.stdout)["stage_bytes"]
                for stage, counted in dry(ranks, ranks - 1, words)["activations"].items():
                    with self.subTest(mesh=mesh, extra=extra, mode=mode, stage=stage):
                        ratio = estimates[int(stage)] / counted
                        print("%-28s %-60s stage %s: estimate / counted %.4f" % (mesh, " ".join(extra[1:] + mode)[:60], stage, ratio))
                        if mode == ["memory_budget"]:  # The optimal choice need not use the whole budget.
                            self.assertTrue(0.99 < ratio < 1.25, ratio)
                        else:
                            self.assertAlmostEqual(1, ratio, delta=0.01)

    # By default, only CPU ranks reduce tensorwise float8 scales over all ranks.
    def test_only_cpus_reduce_tensorwise_scales_over_all_ranks(self):
        words = SHORT + flags({"fsdp": 2}) + ["--model.converters", "quantize.linear.float8", "--resources.device"]
        over = "--quantize.linear.float8.scales_over"
        for device, extra, exchanged in (("cpu", [], True), ("cuda", [], False), ("cuda", [over, "all_ranks"], True),
                                         ("cpu", [over, "tensor_ranks"], False)):
            with self.subTest(device=device, extra=extra):
                # The end of a step needs two all-reduces.
                calls = dry(2, 0, [*words, device, *extra])["collectives"]["world/all_reduce"]["calls"]
                self.assertEqual(exchanged, calls > 2)

    def test_ranks_with_more_communicators_than_streams_are_refused(self):
        words = ["--config", CONFIG, *SHORT, "--comm.mode", "fake_backend", "--resources.ranks", "64", "--resources.device", "cuda",
                 "--model.name", "deepseek_v3", "--model.flavor", "671B", "--parallelism.tensor_parallel_degree", "32",
                 "--parallelism.enable_async_tensor_parallel"]
        done = subprocess.run([RANK, *words], capture_output=True, text=True, timeout=60)
        self.assertEqual(10, done.returncode, done.stderr)
        self.assertIn("needs 34 NCCL communicators, and 32 can have separate streams", done.stderr)

    def test_text_fits_a_wide_terminal(self):
        words = [RANK, "--config", os.path.join(os.environ["TITAN_SOURCE"], "configs", "llama3_405b.toml"), "--rank", "511",
                 "--comm.mode", "fake_backend", *flags({"pp": 16, "tp": 8}), SCHEDULE, "ZBVZeroBubble",
                 "--training.local_batch_size", "32"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn("Dry run of rank 511 of 512 (llama3 405B) at pp=15", done.stdout)
        self.assertIn("saved per microbatch until its backward pass:\n  stage 15 ", done.stdout)
        self.assertIn("ZBVZeroBubble: 16 ranks, 32 stages, 32 microbatches", done.stdout)
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 170)

    # A dry run of 405B, as rank 0 of 512, takes seconds and no memory. A rank of the first stage holds its share of
    # that stage.
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

    def test_json_output_needs_a_dry_run(self):
        done = subprocess.run([RANK, "--config", CONFIG, "--json"], capture_output=True, text=True, timeout=60)
        self.assertEqual(10, done.returncode, done.stdout)
        self.assertIn("--json: only a dry run", done.stderr)


if __name__ == "__main__":
    unittest.main()
