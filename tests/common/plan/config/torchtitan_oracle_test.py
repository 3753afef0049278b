"""torchtitan's own parser and ours read the same configuration, key by key, from the same TOML and command line.

Keys that only we have (resources, training.nonfinite_policy, ...) keep their defaults; keys that only torchtitan has
are listed.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from torchtitan.config import ConfigManager

DUMP = pathlib.Path(os.environ["TITAN_BIN"]).parent / "tests" / "titan_config_dump"

# model.tokenizer_path is an older spelling of hf_assets_path for us; config_file is set by the loader; the modules that
# custom_config_module names are part of our configuration. inference.img_size is never read there, and ours is not set.
ONLY_TORCHTITAN = {"model.tokenizer_path", "job.config_file", "job.custom_config_module", "inference.img_size"}

CASES = [
    ("", []),
    (
        """
[job]
dump_folder = "./out"
description = "a \\"quoted\\" text, with # signs"
[profiling]
enable_profiling = true
profile_freq = 100
[metrics]
log_freq = 1
enable_tensorboard = true
[model]
flavor = "8B"
hf_assets_path = "./tests"
converters = ["quantize.linear.float8"]
[optimizer]
name = "Adam"
lr = 3e-4
eps = 1e-8
implementation = "for-loop"
[lr_scheduler]
warmup_steps = 2
decay_ratio = 0.8
decay_type = "cosine"
min_lr_factor = 0.1
[training]
local_batch_size = 8
global_batch_size = 32
seq_len = 2048
max_norm = 1
steps = 10
dtype = "bfloat16"
[training.dataloader]
num_workers = 2
prefetch_factor = 2
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 4
tensor_parallel_degree = 2
enable_async_tensor_parallel = true
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_layers_per_stage = 4
module_fqns_per_model_part = [["tok_embeddings", "layers.0"], ["layers.1", "norm", "output"]]
[checkpoint]
enable = true
interval = 10
initial_load_path = "/weights/step-0"
async_mode = "async_with_pinned_mem"
exclude_from_loading = ["lr_scheduler", "dataloader"]
[activation_checkpoint]
mode = "full"
[compile]
enable = true
components = ["loss"]
[quantize.linear.float8]
filter_fqns = ["output"]
recipe_name = "rowwise"
[fault_tolerance]
enable = true
semi_sync_method = "diloco"
[validation]
enable = true
steps = 10
[debug]
seed = 42
deterministic = true
""",
        [],
    ),
    (
        "[training]\nsteps = 10\nseq_len = 1024\n[checkpoint]\nenable = true\n",
        [
            "--training.steps", "20", "--training.local_batch_size=4", "--checkpoint.no_enable", "--metrics.enable_tensorboard",
            "--model.converters", "quantize.linear.float8,quantize.linear.mx", "--lr_scheduler.decay_ratio", "0.5",
            "--training.dataloader.num_workers", "3", "--quantize.linear.float8.recipe_name", "tensorwise",
            "--checkpoint.exclude_from_loading", "lr_scheduler,dataloader,optimizer", "--debug.seed", "7",
            "--checkpoint.load_step", "-1", "--parallelism.fsdp_reshard_after_forward", "always",
            "--checkpoint.no_last_save_model_only", "--optimizer.lr", "1e-3", "--training.max_norm", "2",
            "--activation_checkpoint.selective_ac_option", "op",
        ],
    ),
    (
        """
[job]
custom_config_module = "torchtitan.models.flux.job_config"
[model]
name = "flux"
flavor = "flux-debug"
[training]
dataset = "cc12m-test"
classifier_free_guidance_prob = 0.447
img_size = 512
[encoder]
t5_encoder = "google/t5-v1_1-xxl"
autoencoder_path = "assets/hf/FLUX.1-dev/ae.safetensors"
max_t5_encoding_len = 512
[validation]
dataset = "coco-validation"
enable_classifier_free_guidance = true
denoising_steps = 4
save_img_count = -1
[inference]
local_batch_size = 4
""",
        ["--training.test_mode", "--validation.all_timesteps", "--validation.classifier_free_guidance_scale", "2"],
    ),
    (
        """
[job]
custom_config_module = "torchtitan.experiments.vlm.job_config"
[model]
name = "vlm"
[training]
dataset = "cc12m"
[data]
max_patches_per_image = 1024
packing_buffer_size = 100
""",
        ["--data.max_images_per_batch", "64"],
    ),
]  # fmt: skip


def flatten(tree, prefix=""):
    leaves = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        leaves.update(flatten(value, name + ".") if isinstance(value, dict) else {name: value})
    return leaves


def main():
    only_ours, known = None, set()
    for number, (text, arguments) in enumerate(CASES):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "job.toml"
            path.write_text(text)
            theirs = flatten(ConfigManager().parse_args(["--job.config_file", str(path), *arguments]).to_dict())
            done = subprocess.run([DUMP, path, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, f"case {number}: {done.stderr}"
        ours = flatten(json.loads(done.stdout))
        missing = set(theirs) - set(ours) - ONLY_TORCHTITAN
        assert not missing, f"case {number}: keys of torchtitan that we lack: {sorted(missing)}"
        different = {key: (theirs[key], ours[key]) for key in theirs if key in ours and key not in ONLY_TORCHTITAN and theirs[key] != ours[key]}
        assert not different, f"case {number}: key: (torchtitan, ours): {different}"
        known = known | set(theirs)
        only_ours = sorted(set(ours) - known)
        assert len(theirs) > 140, len(theirs)
    print(f"{len(CASES)} configurations equal in {len(theirs) - len(ONLY_TORCHTITAN)} keys; only here: {', '.join(only_ours)}")


if __name__ == "__main__":
    sys.exit(main())
