"""Tests titan-checkpoint with the real Python libraries: imports their files, exports Titan's, and back."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

TOOL = os.path.join(os.environ["TITAN_BIN"], "titan-checkpoint")


def run(*arguments, expect=0):
    done = subprocess.run([TOOL, *arguments], capture_output=True, text=True)
    assert done.returncode == expect, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def tiny_llama():
    """Returns the llama3 debugmodel in transformers, with weights that reveal mistakes."""
    torch.manual_seed(1)
    config = LlamaConfig(hidden_size=256, num_hidden_layers=6, num_attention_heads=16, num_key_value_heads=16,
                         intermediate_size=768, vocab_size=2048, rms_norm_eps=1e-5, rope_theta=500000.0,
                         max_position_embeddings=2048, tie_word_embeddings=False,
                         rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                       "original_max_position_embeddings": 8192})
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.5 if parameter.dim() == 1 else 0.05))
    return model


def unpermuted(weight, heads):
    """Reorders the rows of Hugging Face's q or k for interleaved RoPE."""
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def shards(step):
    tensors = {}
    for name in sorted(os.listdir(step)):
        if name.endswith(".safetensors"):
            with safe_open(os.path.join(step, name), framework="pt") as file:
                for key in file.keys():
                    if key != "titan.index":
                        tensors[key] = file.get_tensor(key)
    return tensors


def check_import(model, folder, step):
    run("import", folder, step, "--model", "llama3", "--flavor", "debugmodel")
    tensors = shards(step)
    state = model.state_dict()
    assert len(tensors) == len(state), (len(tensors), len(state))
    assert torch.equal(tensors["model.tok_embeddings.weight"], state["model.embed_tokens.weight"].float())
    assert torch.equal(tensors["model.output.weight"], state["lm_head.weight"].float())
    assert torch.equal(tensors["model.layers.3.attention.wq.weight"],
                       unpermuted(state["model.layers.3.self_attn.q_proj.weight"].float(), 16))
    assert torch.equal(tensors["model.layers.5.feed_forward.w2.weight"], state["model.layers.5.mlp.down_proj.weight"].float())


def check_numbers_beyond_the_type(model, root):
    """No number becomes infinite unless that is allowed; the output names tensors with numbers that are not finite already."""
    state = {key: value.clone() for key, value in model.state_dict().items()}
    state["model.norm.weight"][:2] = torch.tensor([1e5, -7e4])
    state["model.layers.2.mlp.up_proj.weight"][0, 0] = float("nan")
    os.makedirs(f"{root}/large")
    save_file(state, f"{root}/large/model.safetensors")
    nan = "warning: model.layers.2.feed_forward.w3.weight: 1 number is NaN or infinite"
    assert nan in run("import", f"{root}/large", f"{root}/large/step-0", "--model", "llama3", "--flavor", "debugmodel")
    beyond = "model.norm.weight: 2 numbers, the largest 100000, are beyond float16, whose maximum is 65504"
    for form in ("hf", "torch", "dcp"):
        more = ["--format", form, "--dtype", "float16", *(["--model-only"] if form == "dcp" else [])]
        refused = run("export", f"{root}/large/step-0", f"{root}/refused", *more, expect=1)
        assert beyond in refused and "--allow-overflow" in refused and not os.path.exists(f"{root}/refused"), refused
        printed = run("export", f"{root}/large/step-0", f"{root}/allowed-{form}", *more, "--allow-overflow")
        assert beyond + " and infinite in the export" in printed and nan in printed, printed
    norm = load_file(f"{root}/allowed-hf/model-00001-of-00001.safetensors")["model.norm.weight"]
    assert norm[0] == float("inf") and norm[1] == float("-inf") and norm.isfinite().sum() == len(norm) - 2, norm
    printed = run("export", f"{root}/large/step-0", f"{root}/wide", "--dtype", "bfloat16")
    assert beyond not in printed and nan in printed, printed


def main():
    with tempfile.TemporaryDirectory() as root:
        model = tiny_llama()
        single, sharded, half = (f"{root}/{name}" for name in ("single", "sharded", "half"))
        model.save_pretrained(single)
        model.save_pretrained(sharded, max_shard_size="5MB")
        assert os.path.exists(f"{sharded}/model.safetensors.index.json")
        os.remove(f"{single}/config.json")  # Imports do not need it.

        check_import(model, single, f"{root}/a/step-0")
        check_import(model, sharded, f"{root}/b/step-0")
        rounded = {key: value.to(torch.bfloat16) for key, value in model.state_dict().items()}
        os.makedirs(half)
        save_file(rounded, f"{half}/model.safetensors")
        other = tiny_llama()
        other.load_state_dict({key: value.float() for key, value in rounded.items()})
        check_import(other, half, f"{root}/c/step-0")

        about = json.loads(run("inspect", f"{root}/a", "-o", "json"))
        assert about["kind"] == "model" and about["tensors"] == 57, about
        assert ": ok" in run("verify", f"{root}/a/step-0")

        # Exports again: bit for bit, and transformers opens the folder by itself.
        out = f"{root}/out"
        run("export", f"{root}/b/step-0", out, "--max-file-bytes", "4000000")
        again = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
        for key, value in model.state_dict().items():
            assert torch.equal(again.state_dict()[key], value), key
        tokens = torch.arange(64).reshape(1, 64) * 31 % 2048
        with torch.no_grad():
            assert torch.equal(again(tokens).logits, model(tokens).logits)
        assert (again.config.bos_token_id, again.config.eos_token_id) == (None, None), "no ids of another vocabulary"
        tokenizer = pathlib.Path(os.environ["TITAN_DEPS"]) / "assets" / "tokenizer"
        run("export", f"{root}/b/step-0", f"{root}/bf16", "--dtype", "bfloat16", "--tokenizer", tokenizer)
        exported, want = AutoConfig.from_pretrained(f"{root}/bf16"), AutoTokenizer.from_pretrained(tokenizer)
        assert (exported.bos_token_id, exported.eos_token_id) == (want.bos_token_id, want.eos_token_id) != (None, None), exported
        loaded = load_file(f"{root}/bf16/model-00001-of-00001.safetensors")
        assert torch.equal(loaded["lm_head.weight"], model.lm_head.weight.to(torch.bfloat16))

        for name in ("tokenizer.json", "tokenizer_config.json"):
            assert (tokenizer / name).read_bytes() == pathlib.Path(root, "bf16", name).read_bytes(), name
        assert GenerationConfig.from_pretrained(f"{root}/bf16").eos_token_id == want.eos_token_id
        check_numbers_beyond_the_type(model, root)

        # Errors name the mistake and have the right exit code.
        assert "exists already" in run("export", f"{root}/b/step-0", out, expect=1)
        assert "debugmodel" in run("import", single, f"{root}/d", "--model", "llama3", "--flavor", "debugmodle", expect=2)
        assert "does not fit" in run("import", single, f"{root}/e", "--model", "llama3", "--flavor", "8B", expect=1)
        assert "manifest.json" in run("inspect", f"{root}/nowhere", expect=3)
        run("export", expect=2)
        (shard,) = [name for name in os.listdir(f"{root}/a/step-0") if name.startswith("a1-00003")]
        with open(f"{root}/a/step-0/{shard}", "r+b") as file:
            file.seek(-100, os.SEEK_END)
            file.write(b"damage")
        assert "checksum mismatch" in run("verify", f"{root}/a", expect=1)
        shutil.rmtree(f"{root}/a")
    print("interoperates with safetensors and transformers")


main()
