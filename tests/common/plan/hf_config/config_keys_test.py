"""Every key that a configuration class of transformers writes is known to the readers of config.json, in both generations, and a file that
leaves out its defaults describes the same model as one that has them."""

import json
import os
import pathlib
import subprocess
import sys

import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "testing"))
from transformers_5 import run_again_with_5  # noqa: E402

PROGRAM = pathlib.Path(os.environ["TITAN_BIN"]).parent / "tests" / "read_config"
# Without defaults that transformers 4 and 5 give differently, or that no model can have.
TYPES = {"llama": {}, "mistral": {}, "mixtral": {}, "qwen2": {}, "qwen3": {}, "qwen3_moe": {"mlp_only_layers": []},
         "deepseek_v2": {"vocab_size": 200, "num_experts_per_tok": 6}, "deepseek_v3": {}, "gpt_oss": {}, "llama4_text": {},
         "smollm3": {}, "phi3": {}, "olmo2": {}, "glm4": {}, "gemma2": {}, "gemma3_text": {}, "granite": {}}


def main():
    written, short = [], []
    for kind, more in TYPES.items():
        config = transformers.AutoConfig.for_model(kind, **more)
        written.append(json.loads(config.to_json_string(use_diff=False)))
        short.append({"model_type": kind, **more, "transformers_version": transformers.__version__})
    done = subprocess.run([PROGRAM], input="\n".join(map(json.dumps, written + short)), capture_output=True, text=True, check=True)
    read = list(map(json.loads, done.stdout.splitlines()))
    wrong = []
    for kind, whole, left_out in zip(TYPES, read, read[len(written):]):
        if isinstance(whole, str) or isinstance(left_out, str):
            wrong.append(f"{kind}: {[one for one in (whole, left_out) if isinstance(one, str)]}")
        elif whole != left_out:
            wrong.append(f"{kind}: " + ", ".join(f"{key}: {whole[key]}, not {left_out[key]}" for key in whole if whole[key] != left_out[key]))
    if wrong:
        sys.exit(f"transformers {transformers.__version__}\n" + "\n".join(wrong))
    print(f"{len(written)} classes of transformers {transformers.__version__}")


main()
run_again_with_5()
