"""Exports debug models as GGUF and reads the files with ggml's own package and with transformers: names, values, types, the tokenizer, and what
is refused.

Only --long exports experts that are stored one by one, and GPT-OSS, whose debug model has the family's large vocabulary."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import gguf
import numpy
import torch
import transformers
from interop_models import DEPS, configs, drawn, run

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "testing"))
from paths import BIN

FLAVORS = [("llama3", "debugmodel"), ("qwen3", "debugmodel"), ("deepseek_v3", "debugmodel")]
LONG = [("qwen3", "debugmodel_moe"), ("gpt_oss", "debugmodel")]
ARCHITECTURES = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen3": gguf.MODEL_ARCH.QWEN3, "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE, "deepseek_v2": gguf.MODEL_ARCH.DEEPSEEK2,
                 "gpt_oss": gguf.MODEL_ARCH.GPT_OSS}
READ_BY_TRANSFORMERS = {"llama", "qwen3", "qwen3_moe"}
TOKENS = [i * 31 % 2048 for i in range(64)]
TOKENIZER = DEPS / "assets/tokenizer"
TEXT = "Once upon a time, 12345 little\n\n  birds' nests: don't!"


def export(step, out, *arguments, expect=0):
    return run(BIN / "titan-checkpoint", "export", step, out, "--format", "gguf", *arguments, expect=expect)


def field(reader, key):
    return reader.fields[key].contents()


def adjacent_pairs(weight, heads):
    """Returns rows of halves as rows of adjacent pairs, as llama.cpp rotates them for Llama."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def merged(config, state):
    """Returns transformers' tensors as ggml's names have them: experts stacked, fused ones split."""
    out = {}
    experts = {}
    for key, value in state.items():
        parts = key.split(".experts.")
        if len(parts) == 2 and parts[1].split(".")[0].isdigit():
            number, rest = parts[1].split(".", 1)
            experts.setdefault(f"{parts[0]}.experts.{rest}", {})[int(number)] = value
        elif key.endswith("kv_b_proj.weight"):
            heads = value.view(config["num_attention_heads"], -1, value.shape[1])
            keys, values = heads.split([config["qk_nope_head_dim"], config["v_head_dim"]], dim=1)
            out[key.replace("kv_b", "k_b")] = keys.transpose(1, 2).contiguous()
            out[key.replace("kv_b", "v_b")] = values.contiguous()
        elif "mlp.experts.gate_up_proj" in key:
            wide = value if key.endswith("bias") else value.transpose(1, 2)
            kind = "bias" if key.endswith("bias") else "weight"
            for part, name in enumerate(("gate_proj", "up_proj")):
                out[key.replace("gate_up_proj_bias", "gate_up_proj").replace("gate_up_proj", f"{name}.{kind}")] = wide[:, part::2].contiguous()
        elif "mlp.experts.down_proj" in key:
            kind = "bias" if key.endswith("bias") else "weight"
            name = key.replace("down_proj_bias", "down_proj").replace("down_proj", f"down_proj.{kind}")
            out[name] = value if kind == "bias" else value.transpose(1, 2).contiguous()
        else:
            out[key + ".weight" if key.endswith("sinks") else key] = value
    out.update({key: torch.stack([each[i] for i in range(len(each))]) for key, each in experts.items()})
    return out


def wanted(config, state):
    """Returns ggml's names and values of a model's tensors, by the package's table of names."""
    kind = config["model_type"]
    names = gguf.get_tensor_name_map(ARCHITECTURES[kind], config["num_hidden_layers"])
    out = {}
    for key, value in merged(config, state).items():
        if kind == "llama" and key.endswith(("q_proj.weight", "k_proj.weight")):
            value = adjacent_pairs(value, config["num_attention_heads" if "q_proj" in key else "num_key_value_heads"])
        if config["tie_word_embeddings"] and key == "lm_head.weight":
            continue
        out[names.get_name(key, try_suffixes=(".weight", ".bias"))] = value.contiguous().numpy()
    return out


def check_sizes(reader, config):
    prefix = field(reader, "general.architecture")
    for name, key in {"block_count": "num_hidden_layers", "embedding_length": "hidden_size", "attention.head_count": "num_attention_heads",
                      "vocab_size": "vocab_size", "context_length": "max_position_embeddings"}.items():
        assert field(reader, f"{prefix}.{name}") == config[key], (name, field(reader, f"{prefix}.{name}"))
    assert abs(field(reader, f"{prefix}.rope.freq_base") / config["rope_theta"] - 1) < 1e-6


def check_values(path, config, state, stored):
    """Compares every tensor's bytes to ggml's own conversion. Returns the types that occur."""
    reader = gguf.GGUFReader(path)
    check_sizes(reader, config)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    want = wanted(config, state)
    assert set(tensors) - {"rope_freqs.weight"} == set(want), set(tensors) ^ set(want)
    types = set()
    for name, value in want.items():
        got = tensors[name]
        assert list(reversed(got.shape.tolist())) == list(value.shape), (name, got.shape, value.shape)
        small = value.ndim == 1 or name.endswith(".bias") or "ffn_gate_inp" in name
        kind = gguf.GGMLQuantizationType.F32 if small else stored
        if kind == gguf.GGMLQuantizationType.Q8_0 and value.shape[-1] % 32:
            kind = gguf.GGMLQuantizationType.F16
        assert got.tensor_type == kind, (name, got.tensor_type)
        assert numpy.array_equal(got.data.reshape(-1).view(numpy.uint8), gguf.quants.quantize(value, kind).reshape(-1).view(numpy.uint8)), name
        assert got.data_offset % 32 == 0, name
        types.add(kind)
    return types


def check_opens(folder, model, config):
    """transformers reads sizes, weights and the tokenizer of the file alone."""
    again = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf", dtype=torch.float32).eval()
    assert all(torch.equal(again.state_dict()[key], value) for key, value in model.state_dict().items())
    # transformers does not read Llama 3.1's frequencies, which check_frequencies() compares, and does not normalize the scores of experts.
    if not config.get("rope_scaling") and "num_experts" not in config:
        with torch.no_grad():
            got, want = again(torch.tensor([TOKENS])).logits, model(torch.tensor([TOKENS])).logits
        assert (got - want).abs().max() <= 1e-6 * want.abs().max(), config["model_type"]
    theirs = transformers.AutoTokenizer.from_pretrained(TOKENIZER)
    read = transformers.AutoTokenizer.from_pretrained(folder, gguf_file="model.gguf")
    assert read(TEXT)["input_ids"][-12:] == theirs(TEXT)["input_ids"][-12:], (read(TEXT), theirs(TEXT))


def check_frequencies(path, config):
    """llama.cpp divides each frequency by its factor."""
    factors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}.get("rope_freqs.weight")
    if not config.get("rope_scaling") or config["rope_scaling"]["rope_type"] != "llama3":
        assert factors is None
        return
    settings = transformers.LlamaConfig(**{key: config[key] for key in ("hidden_size", "num_attention_heads", "head_dim", "rope_theta",
                                                                         "rope_scaling", "max_position_embeddings")})
    scaled, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](settings, "cpu")
    plain = config["rope_theta"] ** -(torch.arange(0, config["head_dim"], 2) / config["head_dim"])
    numpy.testing.assert_allclose(plain / factors, scaled, rtol=1e-5)


def check_tokenizer(path):
    reader, file = gguf.GGUFReader(path), json.loads((TOKENIZER / "tokenizer.json").read_text())
    tokens, kinds = field(reader, "tokenizer.ggml.tokens"), field(reader, "tokenizer.ggml.token_type")
    added = {token["id"]: token["content"] for token in file["added_tokens"]}
    for text, number in {**file["model"]["vocab"], **{text: number for number, text in added.items()}}.items():
        assert tokens[number] == text and kinds[number] == (3 if number in added else 1), (number, text, tokens[number], kinds[number])
    unused = range(len(file["model"]["vocab"].keys() | set(added.values())), len(tokens))
    assert all(kinds[number] == 5 for number in unused), [tokens[number] for number in unused][:3]
    assert field(reader, "tokenizer.ggml.model") == "gpt2" and field(reader, "tokenizer.ggml.pre") == "llama-bpe"
    assert field(reader, "tokenizer.ggml.merges")[:2] == [" ".join(pair) for pair in file["model"]["merges"][:2]]
    assert field(reader, "tokenizer.ggml.bos_token_id") == 0 and field(reader, "tokenizer.ggml.add_bos_token") is True
    assert field(reader, "tokenizer.chat_template").startswith("{% for m")


def check_family(folder, name, flavor, config):
    folder.mkdir()
    model = drawn(config)
    model.save_pretrained(folder / "in")
    step = folder / "step-0"
    run(BIN / "titan-checkpoint", "import", folder / "in", step, "--model", name, "--flavor", flavor)
    tokenizer = shutil.copytree(TOKENIZER, folder / "tokenizer")
    (tokenizer / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    kinds = gguf.GGMLQuantizationType
    types = {"float32": kinds.F32, "q8_0": kinds.Q8_0}
    if name == "llama3":
        types |= {"float16": kinds.F16, "bfloat16": kinds.BF16}
    for dtype, kind in types.items():
        out = folder / dtype
        said = export(step, out, "--dtype", dtype, "--tokenizer", tokenizer)
        assert "warning" not in said and f" as {dtype}" in said, said
        check_values(out / "model.gguf", config, model.state_dict(), kind)
    check_tokenizer(folder / "float32/model.gguf")
    check_frequencies(folder / "float32/model.gguf", config)
    if config["model_type"] in READ_BY_TRANSFORMERS:
        check_opens(folder / "float32", model, config)
    shutil.rmtree(folder / "in")
    return step


def check_refusals(folder, step):
    """Nothing is written, and the message names the cause and a way."""

    def refused(*arguments, says, expect):
        said = export(step, folder / "no", *arguments, expect=expect)
        assert says in said and not (folder / "no").exists(), said

    refused("--dtype", "q4_0", says="--dtype q4_0: use float32, float16 or bfloat16, or q8_0", expect=2)
    said = run(BIN / "titan-checkpoint", "export", step, folder / "no", "--dtype", "q8_0", expect=2)
    assert "q8_0 is for --format gguf" in said, said
    said = run(BIN / "titan-checkpoint", "export", step, folder / "no", "--gguf-pre", "gpt-2", expect=2)
    assert "--gguf-pre is for --format gguf" in said, said
    other = shutil.copytree(TOKENIZER, folder / "other")
    file = json.loads((other / "tokenizer.json").read_text())
    file["pre_tokenizer"] = {"type": "Whitespace"}
    (other / "tokenizer.json").write_text(json.dumps(file))
    refused("--tokenizer", other, says="its pre_tokenizer is none that llama.cpp has a name for", expect=1)
    export(step, folder / "named", "--tokenizer", other, "--gguf-pre", "tekken")
    assert field(gguf.GGUFReader(folder / "named/model.gguf"), "tokenizer.ggml.pre") == "tekken"
    file["added_tokens"].append({"id": 10**6, "content": "<far>", "special": True})
    (other / "tokenizer.json").write_text(json.dumps(file))
    refused("--tokenizer", other, "--gguf-pre", "tekken", says='token "<far>" has id 1000000, but the model\'s vocabulary is', expect=1)
    file["model"]["type"] = "Unigram"
    (other / "tokenizer.json").write_text(json.dumps(file))
    refused("--tokenizer", other, says="supports tokenizers of byte pairs", expect=1)


def check_other_family(folder, config):
    model = drawn(config)
    model.save_pretrained(folder / "llama4")
    run(BIN / "titan-checkpoint", "import", folder / "llama4", folder / "llama4-step", "--model", "llama4", "--flavor", "debugmodel")
    said = export(folder / "llama4-step", folder / "no", expect=1)
    assert "models of type llama4_text are not supported; use one of deepseek_v2" in said and not (folder / "no").exists(), said


def main():
    known = configs()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        steps = [check_family(folder / f"{family}-{flavor}", family, flavor, known[family, flavor]) for family, flavor in
                 FLAVORS + (LONG if "--long" in sys.argv else [])]
        check_refusals(folder, steps[0])
        check_other_family(folder, known["llama4", "debugmodel"])
        said = export(steps[0], folder / "bare")
        assert "warning: the file has no vocabulary" in said, said
        assert field(gguf.GGUFReader(folder / "bare/model.gguf"), "tokenizer.ggml.model") == "none"


main()
