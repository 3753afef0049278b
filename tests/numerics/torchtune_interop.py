"""Tests weights between Titan and torchtune itself, in both directions, with each of its checkpointers. Run by hand: torchtune is
not among the tests' packages.

    pip install --no-deps --target FOLDER torchtune==0.6.1 torchao==0.9.0 omegaconf antlr4-python3-runtime==4.9.3 \\
        kagglehub kagglesdk blobfile pycryptodomex lxml
    TITAN_BIN=build/release/bin PYTHONPATH=FOLDER python tests/numerics/torchtune_interop.py [--flavor bench]

torchtune's Llama 3.1 loads Titan's weights, and its logits are compared with transformers'. torchtune trains it for some steps
and saves it; Titan imports the same weights, bit for bit. Prints a line for each checkpointer.
"""

import argparse
import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
from torchtune.models.convert_weights import tune_to_hf
from torchtune.models.llama3_1 import llama3_1
from torchtune.training import DistributedCheckpointer, FullModelHFCheckpointer, FullModelMetaCheckpointer, FullModelTorchTuneCheckpointer
from transformers import LlamaConfig, LlamaForCausalLM

TOOL = os.path.join(os.environ["TITAN_BIN"], "titan-checkpoint")
FLAVORS = {"debugmodel": dict(dim=256, layers=6, heads=16, kv_heads=16, hidden=768), "bench": dict(dim=1024, layers=8, heads=16, kv_heads=8, hidden=2816)}
VOCABULARY = 2048


def run(*arguments):
    subprocess.run([TOOL, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def transformers_model(size):
    torch.manual_seed(5)
    model = LlamaForCausalLM(LlamaConfig(
        hidden_size=size["dim"], num_hidden_layers=size["layers"], num_attention_heads=size["heads"], num_key_value_heads=size["kv_heads"],
        intermediate_size=size["hidden"], vocab_size=VOCABULARY, rms_norm_eps=1e-5, rope_theta=500000.0, max_position_embeddings=131072,
        tie_word_embeddings=False, rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                                 "original_max_position_embeddings": 8192}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(1 + 0.1 * torch.randn_like(parameter) if parameter.dim() == 1 else 0.05 * torch.randn_like(parameter))
    return model.eval()


def torchtune_model(size):
    return llama3_1(vocab_size=VOCABULARY, num_layers=size["layers"], num_heads=size["heads"], num_kv_heads=size["kv_heads"],
                    embed_dim=size["dim"], max_seq_len=4096, intermediate_dim=size["hidden"], rope_base=500000)


class Files:
    """A checkpointer of torchtune that reads and writes whole models. `form`: Titan's export format; `model`: the files of that
    export."""

    def __init__(self, kind, form, model, saved):
        self.kind, self.form, self.model, self.saved = kind, form, model, saved

    def open(self, given, out):
        return self.kind(checkpoint_dir=str(given), checkpoint_files=sorted(one.name for one in given.glob(self.model)), model_type="LLAMA3", output_dir=str(out))

    def load(self, given, out, tune):
        tune.load_state_dict(self.open(given, out).load_checkpoint()["model"])

    def save(self, given, out, tune):
        checkpointer = self.open(given, out)
        checkpointer.load_checkpoint()  # The checkpointer keeps the sizes of the loaded checkpoint.
        checkpointer.save_checkpoint({"model": dict(tune.state_dict())}, epoch=0)
        return out / "epoch_0" / self.saved


class Distributed:
    form = "torchtune"

    def load(self, given, out, tune):  # It starts from another checkpointer's files.
        Files(FullModelTorchTuneCheckpointer, self.form, "model.pt", "").load(given, out, tune)

    def save(self, given, out, tune):
        DistributedCheckpointer(checkpoint_dir=str(given), output_dir=str(out)).save_checkpoint({"model": tune.state_dict(), "steps_run": 3}, epoch=0)
        return out / "dist_epoch_0"


WAYS = {
    "FullModelHFCheckpointer": Files(FullModelHFCheckpointer, "hf", "*.safetensors", ""),
    "FullModelTorchTuneCheckpointer": Files(FullModelTorchTuneCheckpointer, "torchtune", "model.pt", "model-00001-of-00001.bin"),
    "FullModelMetaCheckpointer": Files(FullModelMetaCheckpointer, "torch", "model.pt", "model-00001-of-00001.bin"),
    "DistributedCheckpointer": Distributed(),
}


def train(tune):
    optimizer = torch.optim.AdamW(tune.parameters(), lr=1e-3)
    for step in range(3):
        torch.manual_seed(100 + step)
        tokens = torch.randint(VOCABULARY, (2, 65))
        loss = torch.nn.functional.cross_entropy(tune(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--flavor", choices=FLAVORS, default="debugmodel")
    flavor = parser.parse_args().flavor
    size = FLAVORS[flavor]
    logging.disable()
    peer = transformers_model(size)
    tokens = torch.randint(VOCABULARY, (2, 200))
    with torch.no_grad():
        expected = peer(tokens).logits
    worst = 0
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        peer.save_pretrained(root / "peer")
        run("import", root / "peer", root / "seed" / "step-0", "--model", "llama3", "--flavor", flavor)
        for name, way in WAYS.items():
            here = root / name
            run("export", root / "seed" / "step-0", here / "titan", "--format", way.form)
            tune = torchtune_model(size)
            way.load(here / "titan", here / "unused", tune)
            with torch.no_grad():
                difference = ((tune(tokens) - expected).abs().max() / expected.abs().max()).item()
            assert difference < 1e-5, (name, difference)
            train(tune)
            kept = {key: value.clone() for key, value in tune.state_dict().items()}
            saved = way.save(here / "titan", here / "tuned", tune)
            run("import", saved, here / "back" / "step-0", "--model", "llama3", "--flavor", flavor)
            run("export", here / "back" / "step-0", here / "hf")
            back = LlamaForCausalLM.from_pretrained(here / "hf", torch_dtype=torch.float32).state_dict()
            theirs = tune_to_hf(kept, num_heads=size["heads"], num_kv_heads=size["kv_heads"], dim=size["dim"])
            assert back.keys() == theirs.keys(), back.keys() ^ theirs.keys()
            changed = sum(not torch.equal(back[key], value) for key, value in theirs.items())
            assert changed == 0, (name, changed)
            worst = max(worst, difference)
            print(f"{name}: logits differ by {difference:.1e} of the largest from transformers'; {len(theirs)} tensors back, all equal")
    print(json.dumps({"flavor": flavor, "largest": worst}))


if __name__ == "__main__":
    main()
    sys.exit(0)
