"""torchtitan 0.2.2's own recipes: each is accepted with exactly the listed warnings, or refused for exactly the listed keys.

RECIPES has what each recipe sets beyond defaults, learning rates and lengths. Recipes that quantize, or name quantization filters, are dry-run
with the converters on. `--files FOLDER` checks the files of a torchtitan checkout (FOLDER/llama3/train_configs/debug_model.toml, ...) instead;
`--write` writes docs/generated/torchtitan-recipes.md.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "testing"))
from paths import BIN, SOURCE

ASSETS = Path(os.environ["TITAN_DEPS"]) / "assets"
PAGE = SOURCE / "docs" / "generated" / "torchtitan-recipes.md"

# torchtitan gets these from torchrun and a download: the number of ranks, the tokenizer, a copy of C4.
ASSET_WORDS = ["--model.hf_assets_path", str(ASSETS / "tokenizer"), "--training.dataset_path", str(ASSETS / "c4_test")]

TRACES, FREQ, FILTER = "profiling.save_traces_folder", "profiling.profile_freq", "quantize.linear.float8.filter_fqns"
FLOAT8, MX = "quantize.grouped_mm.float8.fqns", "quantize.grouped_mm.mx.fqns"
EXPORT, SCHEDULE, COMPONENTS = "checkpoint.export_dtype", "parallelism.pipeline_parallel_schedule", "compile.components"
MX_FILTER, PROFILER, MODULE = "quantize.linear.mx.filter_fqns", "profiling.enable_profiling", "job.custom_config_module"
TENSOR, PIPELINE = "parallelism.tensor_parallel_degree", "parallelism.pipeline_parallel_degree"
EXPERT, EXPERT_TENSOR = "parallelism.expert_parallel_degree", "parallelism.expert_tensor_parallel_degree"
MODE, OPTION = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"

SMALL = {TRACES: "profile_trace", FILTER: "output"}
MEASURED = {**SMALL, FREQ: 100, "metrics.enable_tensorboard": True, "training.dataset": "c4"}
MOE = {**SMALL, FILTER: "output,router.gate", FLOAT8: "experts"}
QWEN = {**MEASURED, OPTION: "op", EXPORT: "float16", "checkpoint.last_save_model_only": False}
SCOUT = {**MEASURED, FILTER: "output,router.gate", MX_FILTER: "output,router.gate", TENSOR: 8, EXPERT_TENSOR: 8, MODE: "full"}
# What the recipes of flux have in common.
FLUX = {TRACES: "profile_trace", MODULE: "torchtitan.models.flux.job_config", "model.name": "flux", MODE: "full",
        "training.classifier_free_guidance_prob": 0.447, "training.img_size": 256, "encoder.t5_encoder": "google/t5-v1_1-xxl",
        "encoder.clip_encoder": "openai/clip-vit-large-patch14", "encoder.autoencoder_path": "assets/hf/FLUX.1-dev/ae.safetensors",
        "validation.dataset": "coco-validation", "validation.enable_classifier_free_guidance": True,
        "validation.classifier_free_guidance_scale": 5.0, "validation.save_img_folder": "img", "validation.all_timesteps": False}  # fmt: skip
FLUX_LARGE = {**FLUX, "training.dataset": "cc12m-wds", "validation.denoising_steps": 50, "validation.save_img_count": 50,
              "validation.freq": 1000}  # fmt: skip
WARNS = [TRACES, FILTER]
QWEN_WARNS = [*WARNS, FREQ, EXPORT]


def model(name, flavor):
    return {"model.name": name, "model.flavor": flavor}


# Recipe: (ranks, what it sets, keys that refuse it, keys that are warned about when nothing refuses it).
RECIPES = {
    "llama3/debug_model": (8, {**SMALL, **model("llama3", "debugmodel"), SCHEDULE: "Interleaved1F1B"}, [], [*WARNS, SCHEDULE]),
    "llama3/llama3_8b": (8, {**MEASURED, **model("llama3", "8B"), PROFILER: True, OPTION: "op"}, [], [FILTER]),
    "llama3/llama3_70b": (8, {**MEASURED, **model("llama3", "70B"), PROFILER: True, MODE: "full", TENSOR: 8}, [], [FILTER]),
    "llama3/llama3_405b": (16, {**MEASURED, **model("llama3", "405B"), PROFILER: True, MODE: "full", TENSOR: 8,
                               "parallelism.enable_async_tensor_parallel": True, "compile.enable": True, "model.converters": "float8",
                               "quantize.linear.float8.enable_fsdp_float8_all_gather": True,
                               "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp": True},
                           [], []),
    "llama3_ft/debug_model": (8, {**SMALL, **model("llama3", "debugmodel"), PROFILER: True, MODULE: "torchtitan.components.ft.config",
                                  "fault_tolerance.enable": True, "fault_tolerance.semi_sync_method": "diloco"},
                              [MODULE, "fault_tolerance.enable"], []),
    "llama4/debug_model": (8, {**MOE, **model("llama4", "debugmodel"), OPTION: "op", MX_FILTER: "output,router.gate", MX: "experts"}, [],
                           [*WARNS, FLOAT8, MX_FILTER, MX]),
    "llama4/llama4_17bx16e": (8, {**SCOUT, **model("llama4", "17bx16e")}, [], [*WARNS, FREQ, MX_FILTER]),
    "llama4/llama4_17bx128e": (32, {**SCOUT, **model("llama4", "17bx128e"), PIPELINE: 4, "training.local_batch_size": 1}, [],
                               [*WARNS, FREQ, MX_FILTER, "training.local_batch_size"]),
    "deepseek_v3/debug_model": (8, {**MOE, **model("deepseek_v3", "debugmodel"), OPTION: "op"}, [], [*WARNS, FLOAT8]),
    "deepseek_v3/deepseek_v3_16b": (8, {**MOE, **model("deepseek_v3", "16B"), OPTION: "op", EXPERT: 8, "training.dataset": "c4",
                                        SCHEDULE: "Interleaved1F1B", "compile.enable": True, COMPONENTS: "loss"}, [],
                                    [*WARNS, FLOAT8, SCHEDULE]),
    "deepseek_v3/deepseek_v3_671b": (8, {**MOE, **model("deepseek_v3", "671B"), OPTION: "op", "training.dataset": "c4",
                                         SCHEDULE: "Interleaved1F1B", "compile.enable": True, COMPONENTS: "loss"}, [],
                                     [*WARNS, FLOAT8, SCHEDULE]),
    "gpt_oss/debug_model": (8, {**MOE, **model("gpt_oss", "debugmodel"), MODE: "none"}, [], [*WARNS, FLOAT8]),
    "qwen3/qwen3_0.6b": (8, {**QWEN, **model("qwen3", "0.6B")}, [], QWEN_WARNS),
    "qwen3/qwen3_1.7b": (8, {**QWEN, **model("qwen3", "1.7B")}, [], QWEN_WARNS),
    "qwen3/qwen3_32b": (8, {**QWEN, **model("qwen3", "32B"), MODE: "full"}, [], QWEN_WARNS),
    "qwen3/qwen3_moe_debug": (8, {**QWEN, **model("qwen3", "debugmodel_moe"), "training.dataset": "c4_test"}, [], QWEN_WARNS),
    "flux/debug_model": (8, {**FLUX, "model.flavor": "flux-debug", "training.dataset": "cc12m-test", "encoder.max_t5_encoding_len": 256,
                             "validation.denoising_steps": 4, "validation.save_img_count": 1, "validation.steps": 48,
                             "checkpoint.last_save_model_only": False, "inference.save_img_folder": "inference_results",
                             "inference.prompts_path": "./torchtitan/models/flux/inference/prompts.txt", "inference.local_batch_size": 2},
                         [], [MODULE, TRACES]),
    "flux/flux_dev_model": (8, {**FLUX_LARGE, "model.flavor": "flux-dev", "encoder.max_t5_encoding_len": 512, "validation.steps": 12},
                            [], [MODULE, TRACES]),
    "flux/flux_schnell_model": (8, {**FLUX_LARGE, "model.flavor": "flux-schnell", FREQ: 100, "encoder.max_t5_encoding_len": 256,
                                    "validation.steps": 6},
                                [], [MODULE, TRACES, FREQ]),
    "vlm/debug_model": (8, {TRACES: "profile_trace", MODULE: "torchtitan.experiments.vlm.job_config", **model("vlm", "debugmodel"),
                            "training.dataset": "cc12m", "training.seq_len": 4096, "training.local_batch_size": 32,
                            "data.max_patches_per_image": 1024, "data.max_images_per_batch": 64},
                        [], [MODULE, TRACES]),
}  # fmt: skip


def words_of(flags):
    words = []
    for key, value in flags.items():
        section, name = key.rsplit(".", 1)
        words += [f"--{key}" if value else f"--{section}.no_{name}"] if isinstance(value, bool) else [f"--{key}", str(value)]
    return words


def keys_in(lines):
    """Returns the keys that the lines are about: "FILE:LINE: KEY = VALUE: ...", "command line: KEY has no effect ..." or "KEY: ..."."""
    return sorted({re.search(r"(?:^|: )([a-z_]+(?:\.[a-z0-9_]+)+)(?=[ :])", line).group(1) for line in lines})


def ask_program():
    command_lines = [[*words_of(flags), "--resources.ranks", str(ranks), *ASSET_WORDS] for ranks, flags, _, _ in RECIPES.values()]
    done = subprocess.run([BIN.parent / "tests" / "titan_decisions"], input="".join(json.dumps(words) + "\n" for words in command_lines),
                          text=True, capture_output=True, check=True, timeout=60)
    for name, line in zip(RECIPES, done.stdout.splitlines(), strict=True):
        answer = json.loads(line)
        yield name, answer.get("refused", "").splitlines(), answer.get("warnings", [])


def ask_titanctl(folder):
    for name, (ranks, *_) in RECIPES.items():
        family, recipe = name.split("/")
        place = folder if (Path(folder) / family).exists() else f"{folder}/../experiments"
        words = [BIN / "titanctl", "validate", f"{place}/{family}/train_configs/{recipe}.toml", "--nproc", str(ranks), *ASSET_WORDS]
        done = subprocess.run(words, text=True, capture_output=True)
        lines = [line.removeprefix("titanctl: ").removeprefix("error: ") for line in done.stderr.splitlines()]
        warnings = [line.removeprefix("warning: ") for line in lines if line.startswith("warning: ")]
        yield name, [line for line in lines if not line.startswith("warning: ")] if done.returncode else [], warnings


def dry_run(name):
    """Returns the error of a dry run of a recipe that quantizes, or that names filters (with converters on); None if it passes or is not dry-run."""
    ranks, flags, refused, _ = RECIPES[name]
    if refused or FILTER not in flags and "model.converters" not in flags:
        return None
    words = ["--resources.ranks", str(ranks), *ASSET_WORDS, "--comm.mode", "fake_backend"]
    if "model.converters" not in flags:
        grouped = ",quantize.grouped_mm.float8" if FLOAT8 in flags else ""
        words += ["--model.converters", "quantize.linear.float8" + grouped]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "empty.toml"
        config.touch()
        words = [BIN / "titan-rank", "--config", config, "--job.dump_folder", folder, *words_of(flags), *words]
        done = subprocess.run(words, text=True, capture_output=True, timeout=300)
    return f"{name}: its dry run ends with {done.returncode}: {(done.stdout + done.stderr)[-500:]}" if done.returncode else None


def page():
    lines = ["# torchtitan 0.2.2's recipes in Titan", "",
             "This page lists which of torchtitan's recipes Titan runs unchanged. Add `--nproc` and a tokenizer (`--model.hf_assets_path`); `c4` is read from",
             "a hub ([prepare-data.md](../howto/prepare-data.md)). An error names what to set instead. Generated by",
             "`tests/integration/keys/torchtitan_recipes_test.py --write`, which asks the programs.",
             "", "Expert biases move as in torchtitan: by 0.001 per step in DeepSeek V3, Llama 4 and GPT-OSS, not at all in Qwen3. After",
             "`checkpoint.initial_load_in_hf` of weights without biases they do not move, unless you set `model.load_balance_coeff`",
             "([experts.md](../howto/experts.md)).",
             "", "| recipe | verdict | keys |", "|---|---|---|"]  # fmt: skip
    for name, (_, _, refused, warned) in RECIPES.items():
        keys = ", ".join(f"`{key}`" for key in refused or warned)
        verdict = "refused for" if refused else "accepted, warns about" if warned else "accepted"
        lines.append(f"| {name} | {verdict} | {keys} |")
    return "\n".join(lines) + "\n"


def main():
    wrong = []
    if "--write" in sys.argv:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        wrong.append("docs/generated/torchtitan-recipes.md is not what the table gives: run torchtitan_recipes_test.py --write")
    answers = ask_titanctl(sys.argv[sys.argv.index("--files") + 1]) if "--files" in sys.argv else ask_program()
    for name, problems, warnings in answers:
        _, _, refused, warned = RECIPES[name]
        if keys_in(problems) != sorted(refused):
            wrong.append(f"{name}: refused for {keys_in(problems)}, not {sorted(refused)}: " + "\n".join(problems))
        if not refused and keys_in(warnings) != sorted(warned):
            wrong.append(f"{name}: warns of {keys_in(warnings)}, not {sorted(warned)}")
        for line in problems:
            if not any(word in line for word in ("; set ", "allowed values")):
                wrong.append(f"{name}: no remedy in: {line}")
    wrong += filter(None, map(dry_run, RECIPES))
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"{len(RECIPES)} recipes, {sum(not refused for _, _, refused, _ in RECIPES.values())} of them accepted; {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
