"""Every tensor of every flavor has torchtitan's name and shape (models on the meta device)."""

import collections
import logging
import os
import pathlib
import subprocess
import sys

import torch

logging.disable(logging.CRITICAL)
from torchtitan.experiments.vlm import Llama3Siglip2Transformer, llama3_siglip2_args  # noqa: E402
from torchtitan.models.deepseek_v3 import DeepSeekV3Model, deepseekv3_args  # noqa: E402
from torchtitan.models.flux import flux_args  # noqa: E402
from torchtitan.models.flux.model.model import FluxModel  # noqa: E402
from torchtitan.models.gpt_oss import GptOssModel, gptoss_configs  # noqa: E402
from torchtitan.models.llama3 import Transformer as Llama3, llama3_args  # noqa: E402
from torchtitan.models.llama4 import Transformer as Llama4, llama4_args  # noqa: E402
from torchtitan.models.qwen3 import Qwen3Model, qwen3_args  # noqa: E402

PROGRAM = pathlib.Path(os.environ["TITAN_BIN"]).parent / "tests" / "list_tensors"
FAMILIES = {"llama3": (Llama3, llama3_args), "llama4": (Llama4, llama4_args), "qwen3": (Qwen3Model, qwen3_args),
            "deepseek_v3": (DeepSeekV3Model, deepseekv3_args), "gpt_oss": (GptOssModel, gptoss_configs),
            "flux": (FluxModel, flux_args), "vlm": (Llama3Siglip2Transformer, llama3_siglip2_args)}
ONLY_TITAN = {("llama3", flavor) for flavor in ("bench", "1B", "3B")}
ONLY_TITAN |= {("flux", "flux-tiny-debug"), ("flux", "flux-tiny"), ("vlm", "tiny-debug")}
ONLY_TITAN |= {("qwen3_vl", flavor) for flavor in ("debugmodel", "2B", "4B", "8B")}
OTHER_FAMILIES = {"mistral", "mixtral", "qwen2", "smollm3", "phi3", "olmo2", "glm4", "gemma2", "gemma3", "granite"}  # hf_names_oracle_test.py
ONLY_TITAN |= {("llama4", flavor + "_released") for flavor in ("debugmodel", "17bx16e", "17bx128e")}


def main():
    listed = collections.defaultdict(dict)
    for line in subprocess.run([PROGRAM], check=True, capture_output=True, text=True).stdout.splitlines():
        family, flavor, name, *shape = line.split()
        listed[family, flavor][name] = tuple(map(int, shape))
    checked = 0
    for family, (model_class, flavors) in FAMILIES.items():
        for flavor, arguments in flavors.items():
            if hasattr(arguments, "max_seq_len"):
                arguments.max_seq_len = min(arguments.max_seq_len, 8192)
            arguments.moe_impl = "standard"  # Otherwise torchtitan sets it from the job's configuration.
            with torch.device("meta"):
                model = model_class(arguments)
            theirs = {name: tuple(p.shape) for name, p in model.named_parameters()}
            ours = listed.pop((family, flavor), None)
            if ours != theirs:
                difference = set((ours or {}).items()) ^ set(theirs.items())
                sys.exit(f"{family} {flavor}: differs in {sorted(difference)[:6]}")
            checked += len(theirs)
    listed = {key: tensors for key, tensors in listed.items() if key[0] not in OTHER_FAMILIES}
    if set(listed) != ONLY_TITAN:
        sys.exit(f"flavors that torchtitan lacks: {sorted(set(listed) - ONLY_TITAN)}")
    print(f"{checked} tensors have torchtitan's names and shapes")


main()
