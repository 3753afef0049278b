"""Imports small folders of Meta's and Mistral's form: cut over 1 to 16 files, with Llama 2's, 3's and 4's names and cuts. Every number is the
uncut model's, bit for bit; and folders that are not whole are refused by name.

Only --long tries every number of files, views and Llama 4 in one file, and compares transformers' Llama on the uncut weights."""

import json
import pathlib
import shutil
import sys
import tempfile

import torch
from interop_models import run
from meta_folders import draw, fused_llama4, llama_shapes, slices, write
from safetensors.torch import load_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "testing"))
from paths import BIN

TINY = {"dim": 64, "n_layers": 2, "n_heads": 16, "n_kv_heads": 16, "vocab_size": 96, "multiple_of": 16, "norm_eps": 1e-5, "rope_theta": 500000.0}
HIDDEN = 176  # Of TINY: 170 rounded up to a multiple of 16.
DEBUG = {"dim": 256, "n_layers": 6, "n_heads": 16, "n_kv_heads": 16, "vocab_size": 2048, "multiple_of": 256, "ffn_dim_multiplier": 1.0,
         "norm_eps": 1e-6, "rope_theta": 400000.0, "use_scaled_rope": True, "rope_scaling_factor": 8.0}


def load(source, step, name="llama3", flavor="config.json", expect=0):
    return run(BIN / "titan-checkpoint", "import", source, step, "--model", name, "--flavor", flavor, expect=expect)


def check_step(step, state):
    """A step has exactly these tensors, in float32."""
    found = {}
    for path in step.glob("*.safetensors"):
        found |= {key.removeprefix("model."): value for key, value in load_file(path).items() if key.startswith("model.")}
    assert found.keys() == state.keys(), found.keys() ^ state.keys()
    for name, value in state.items():
        assert torch.equal(found[name].view(value.shape), value.float()), name


SERIES = [(2, torch.float16, 1), (16, torch.float32, 0)]
LONG = [(1, torch.float32, 0), (4, torch.bfloat16, 1), (8, torch.bfloat16, 0)]


def check_series(folder, series):
    """1 to 16 files, in every type; embeddings cut by rows (Llama 3) or columns (Llama 2), with and without rope.freqs."""
    for files, dtype, embedding_dim in series:
        state = draw(llama_shapes(64, 2, 64, HIDDEN, 96), dtype, seed=files)
        cut = slices(state, files, embedding_dim)
        params = dict(TINY)
        if embedding_dim == 1:  # As Llama 2.
            params["vocab_size"] = -1
            for part in cut:
                part["rope.freqs"] = torch.ones(2)
        source = write(folder / f"{files}", params, cut)
        reported = load(source, folder / f"{files}-step")
        assert f"weights in {files} file" in reported, reported
        check_step(folder / f"{files}-step", state)


def check_views(folder):
    """Llama 1 and 2 store views: a layer's tensors in one storage."""
    state = draw(llama_shapes(64, 2, 64, HIDDEN, 96), torch.float32)
    storage = torch.cat([value.flatten() for value in state.values()])
    views, at = {}, 0
    for name, value in state.items():
        views[name] = storage[at:at + value.numel()].view(value.shape)
        at += value.numel()
    views["layers.0.attention.wq.weight"] = state["layers.0.attention.wq.weight"].t().contiguous().t()
    load(write(folder / "views", TINY, [views]), folder / "views-step")
    check_step(folder / "views-step", state)


def check_heads(folder):
    """Llama 3.1 405B in 16 files stores each of its 8 key-value heads twice, and its params.json says 16."""
    small = draw(llama_shapes(64, 2, 16, HIDDEN, 96), torch.bfloat16)
    cut = slices(small, 8, head_rows=4)
    source = write(folder / "heads", TINY | {"n_kv_heads": 4}, cut)
    load(source, folder / "heads-step")
    check_step(folder / "heads-step", small)
    cut[3]["layers.1.attention.wk.weight"][0, 0] += 1
    refused = load(write(folder / "heads-differ", TINY | {"n_kv_heads": 4}, cut), folder / "no", expect=1)
    assert "consolidated.03.pth: layers.1.attention.wk.weight differs from the copy in" in refused and "consolidated.02.pth" in refused, refused


def permuted(value, heads):
    """Returns rows of neighbouring pairs as rows of halves, as transformers rotates them."""
    return value.view(heads, value.shape[0] // heads // 2, 2, -1).transpose(1, 2).reshape(value.shape)


def check_logits(folder):
    """transformers' Llama on the uncut weights computes what it computes on an export, whose positions and epsilon are params.json's."""
    state = draw(llama_shapes(256, 6, 256, 768, 2048), torch.float32)
    reported = load(write(folder / "debug", DEBUG, slices(state, 4)), folder / "step-0", flavor="debugmodel")
    assert "taken from" in reported and "norm_eps 1e-06" in reported and "rope_theta 400000" in reported, reported
    run(BIN / "titan-checkpoint", "export", folder / "step-0", folder / "hf")
    config = json.loads((folder / "hf" / "config.json").read_text())
    assert (config["rope_theta"], config["rms_norm_eps"]) == (400000.0, 1e-6), config
    import transformers  # Takes seconds.

    names = {"attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attention.wq": "self_attn.q_proj", "attention.wk": "self_attn.k_proj",
             "attention.wv": "self_attn.v_proj", "attention.wo": "self_attn.o_proj", "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj",
             "feed_forward.w3": "mlp.up_proj"}
    theirs = {"model.embed_tokens.weight": state["tok_embeddings.weight"], "model.norm.weight": state["norm.weight"], "lm_head.weight": state["output.weight"]}
    for i in range(6):
        for ours, name in names.items():
            value = state[f"layers.{i}.{ours}.weight"]
            theirs[f"model.layers.{i}.{name}.weight"] = permuted(value, 16) if ours in ("attention.wq", "attention.wk") else value
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig.from_dict(config)).eval()
    model.load_state_dict(theirs)
    tokens = torch.arange(48)[None] * 37 % 2048
    exported = transformers.AutoModelForCausalLM.from_pretrained(folder / "hf").eval()
    with torch.no_grad():
        want, got = model(tokens).logits, exported(tokens).logits
    difference = float((want - got).abs().max() / want.abs().max())
    assert difference < 1e-5, difference
    # A Hugging Face folder's own numbers, without a flavor.
    load(folder / "hf", folder / "hf-step")
    check_step(folder / "hf-step", state)
    refused = load(folder / "hf", folder / "no", name="qwen3", expect=1)
    assert "its model is of family llama3, not qwen3" in refused, refused
    print(f"logits differ by {difference:.1e}")


def llama4_state():
    shapes = {name: shape for name, shape in llama_shapes(256, 6, 256, 768, 2048).items() if ".feed_forward." not in name}
    for i in range(6):
        if (i + 1) % 2:
            shapes |= {f"layers.{i}.feed_forward.{name}.weight": shape for name, shape in {"w1": (768, 256), "w2": (256, 768), "w3": (768, 256)}.items()}
            continue
        shapes |= {f"layers.{i}.moe.router.gate.weight": (8, 256)}
        shapes |= {f"layers.{i}.moe.shared_experts.{name}.weight": shape for name, shape in {"w1": (512, 256), "w2": (256, 512), "w3": (512, 256)}.items()}
        shapes |= {f"layers.{i}.moe.experts.{name}": shape for name, shape in {"w1": (8, 512, 256), "w2": (8, 256, 512), "w3": (8, 512, 256)}.items()}
    return draw(shapes, torch.bfloat16)


def check_llama4(folder, series):
    """Fused projections, stacked experts, the vision tower and other libraries' states."""
    state = llama4_state()
    params = DEBUG | {"norm_eps": 1e-5, "rope_theta": 500000.0, "ffn_exp": 4.0, "use_qk_norm": True, "nope_layer_interval": 4, "attention_chunk_size": 256,
                      "moe_args": {"num_experts": 8, "capacity_factor": 1.0, "auto_scale_F": True, "top_k": 1, "interleave_moe_layer_step": 2},
                      "vision_args": {"dim": 8}}
    del params["rope_scaling_factor"]
    for files in series:
        step = folder / f"llama4-{files}" / "step-0"
        load(write(folder / f"llama4-{files}-in", params, fused_llama4(state, files, 6, 2)), step, "llama4", "debugmodel_released")
        run(BIN / "titan-checkpoint", "export", step, folder / f"llama4-{files}-out", "--format", "torch")
        found = torch.load(folder / f"llama4-{files}-out" / "model.pt", weights_only=True)
        biases = {name for name in found if name.endswith("expert_bias")}
        assert found.keys() - biases == state.keys() and len(biases) == 3
        assert all(torch.equal(found[name], value.float()) for name, value in state.items())
    refused = load(folder / "llama4-8-in", folder / "no", "llama3", "debugmodel", expect=1)
    assert "params.json says" in refused and "llama4" in refused, refused
    refused = load(folder / "llama4-8-in", folder / "no", "llama4", "debugmodel", expect=1)
    assert "params.json says" in refused and "nope_layer_step 4, this model has 0" in refused, refused


def check_mistral(folder):
    """Mistral's params.json states heads and feed-forward of any size, and its weights may be safetensors."""
    shapes = llama_shapes(64, 2, 2 * 12, 100, 96)
    shapes |= {name: (96, 64) if name.endswith("wq.weight") else (64, 96) for name in shapes if name.endswith(("wq.weight", "wo.weight"))}
    state = draw(shapes, torch.bfloat16)
    params = {"dim": 64, "n_layers": 2, "head_dim": 12, "hidden_dim": 100, "n_heads": 8, "n_kv_heads": 2, "norm_eps": 1e-5, "vocab_size": 96, "rope_theta": 1e6}
    load(write(folder / "mistral", params, [state], safetensors=True), folder / "mistral-step")
    check_step(folder / "mistral-step", state)
    load(write(folder / "mistral-pth", params | {"sliding_window": None}, [state]), folder / "mistral-pth-step")
    check_step(folder / "mistral-pth-step", state)
    refused = load(write(folder / "window", params | {"sliding_window": 4096}, [state]), folder / "no", expect=2)
    assert "params.json: sliding_window is 4096; only null is supported" in refused, refused


def check_refusals(folder):
    state = draw(llama_shapes(64, 2, 64, HIDDEN, 96), torch.bfloat16)

    def refusal(what, files=4, change=None, params=TINY, after=None, expect=1):
        cut = slices(state, files)
        if change:
            change(cut)
        source = write(folder / "bad", params, cut)
        if after:
            after(source)
        reported = load(source, folder / "never", expect=expect)
        assert all(text in reported for text in what), (what, reported)
        assert not (folder / "never").exists() and not list(folder.glob("never.partial*"))
        shutil.rmtree(source)

    def truncate(source):
        path = source / "consolidated.02.pth"
        path.write_bytes(path.read_bytes()[:-200])

    refusal(["consolidated.02.pth: missing, but consolidated.03.pth is there"], after=lambda source: (source / "consolidated.02.pth").unlink(), expect=3)
    refusal(["consolidated.02.pth"], after=truncate)
    refusal(["params.json"], after=lambda source: (source / "params.json").unlink(), expect=3)
    refusal(["params.json: not a JSON object"], after=lambda source: (source / "params.json").write_text("{"))
    refusal(["params.json: alibi is true; a release without this key is supported"], params=TINY | {"alibi": True}, expect=2)
    refusal(["no consolidated.00.pth, consolidated.pth or consolidated.safetensors"], files=1,
            after=lambda source: (source / "consolidated.00.pth").unlink(), expect=3)

    def other_norm(cut):
        cut[1]["layers.0.ffn_norm.weight"] = cut[1]["layers.0.ffn_norm.weight"] + 1

    refusal(["consolidated.01.pth: layers.0.ffn_norm.weight differs from the copy in", "consolidated.00.pth", "not of one series"], change=other_norm)

    def short(cut):
        cut[2]["layers.1.feed_forward.w2.weight"] = cut[2]["layers.1.feed_forward.w2.weight"][:, :-1].clone()

    refusal(["consolidated.02.pth: layers.1.feed_forward.w2.weight is [64, 43], but this model in 4 files needs [64, 44]"], change=short)
    refusal(["consolidated.03.pth: has no norm.weight"], change=lambda cut: cut[3].pop("norm.weight"))
    refusal(["consolidated.01.pth: layers.0.lora.weight has no use in this model"], change=lambda cut: cut[1].update({"layers.0.lora.weight": torch.ones(1)}))
    refusal(["consolidated.01.pth: layers.0.attention.wo.weight is Half", "BFloat16"],
            change=lambda cut: cut[1].update({"layers.0.attention.wo.weight": cut[1]["layers.0.attention.wo.weight"].half()}))
    refusal(["a file is missing"], files=8, params=TINY, after=lambda source: [(source / f"consolidated.{i:02d}.pth").unlink() for i in range(4, 8)])
    refusal(["of [96, 64] cannot be cut over 7 files: one may be missing"], files=8, after=lambda source: (source / "consolidated.07.pth").unlink())


def main():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="titan-meta-") as root:
        folder = pathlib.Path(root)
        long = "--long" in sys.argv
        check_series(folder, SERIES + (LONG if long else []))
        check_heads(folder)
        check_llama4(folder, (8, 1) if long else (8,))
        check_mistral(folder)
        check_refusals(folder)
        if long:
            check_views(folder)
            check_logits(folder)


main()
