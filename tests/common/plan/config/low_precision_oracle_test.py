"""torchtitan 0.2.2's own filters, on models on the meta device, choose the linear layers that Titan converts."""

import logging
import os
import pathlib
import subprocess
import sys
from functools import partial

import torch

logging.disable(logging.CRITICAL)
from torchao.float8 import _auto_filter_for_recipe  # noqa: E402
from torchtitan.components.quantization.utils import module_filter_fn  # noqa: E402
from torchtitan.models.deepseek_v3 import DeepSeekV3Model, deepseekv3_args  # noqa: E402
from torchtitan.models.gpt_oss import GptOssModel, gptoss_configs  # noqa: E402
from torchtitan.models.llama3 import Transformer as Llama3, llama3_args  # noqa: E402
from torchtitan.models.llama4 import Transformer as Llama4, llama4_args  # noqa: E402
from torchtitan.models.qwen3 import Qwen3Model, qwen3_args  # noqa: E402

PROGRAM = pathlib.Path(os.environ["TITAN_BIN"]).parent / "tests" / "list_conversions"
FAMILIES = {"llama3": (Llama3, llama3_args), "llama4": (Llama4, llama4_args), "qwen3": (Qwen3Model, qwen3_args),
            "deepseek_v3": (DeepSeekV3Model, deepseekv3_args), "gpt_oss": (GptOssModel, gptoss_configs)}
FLOAT8 = ["--model.converters", "quantize.linear.float8"]
FILTERS = "--quantize.linear.float8.filter_fqns"
RECIPE = "--quantize.linear.float8.recipe_name"
MX = ["--model.converters", "quantize.linear.mx"]


def whole_blocks(module, fqn):
    """torchtitan accepts multiples of 16 for MX too, but torchao then fails on rows that are not whole blocks of 32."""
    return module_filter_fn(module, fqn, ["output"]) and all(size % 32 == 0 for size in module.weight.shape)


# Titan's command line, and the filter that torchtitan's converter makes from the same keys.
CASES = [
    (FLOAT8, partial(module_filter_fn, filter_fqns=[])),
    ([*FLOAT8, FILTERS, "output,router.gate"], partial(module_filter_fn, filter_fqns=["output", "router.gate"])),
    ([*FLOAT8, FILTERS, "w", RECIPE, "rowwise_with_gw_hp"], partial(module_filter_fn, filter_fqns=["w"])),
    ([*FLOAT8, FILTERS, "auto_filter_small_kn,output"], _auto_filter_for_recipe("tensorwise", filter_fqns=["output"])),
    ([*FLOAT8, FILTERS, "auto_filter_small_kn", RECIPE, "rowwise"], _auto_filter_for_recipe("rowwise", filter_fqns=[])),
    (MX, whole_blocks),
]


def models():
    for family, (model_class, flavors) in FAMILIES.items():
        for flavor, arguments in flavors.items():
            arguments.max_seq_len = min(arguments.max_seq_len, 8192)
            arguments.moe_impl = "standard"  # Otherwise torchtitan sets it from the job's configuration.
            with torch.device("meta"):
                yield family, flavor, model_class(arguments)


def main():
    ours = []
    for words, _ in CASES:
        lines = subprocess.run([PROGRAM, *words], check=True, capture_output=True, text=True).stdout.splitlines()
        ours.append({tuple(line.split()[:3]) for line in lines})
    checked = 0
    for family, flavor, model in models():
        modules = dict(model.named_modules())
        for (words, takes), listed in zip(CASES, ours, strict=True):
            theirs = {f"{name}.weight" for name, module in modules.items() if takes(module, name)}
            mine = {name for of, kind, name in listed if (of, kind) == (family, flavor)}
            if mine != theirs:
                sys.exit(f"{family} {flavor} with {words}: differs in {sorted(mine ^ theirs)[:6]}")
            checked += len(theirs)
    print(f"{checked} layers are converted by both")


main()
