"""Writes small folders as Meta and Mistral release them: params.json, and weights cut over several files by fairscale's rules."""

import io
import json

import torch
from safetensors.torch import save_file

# Dims along which the files cut a tensor, by the end of its name; None: every file has a copy. "experts": dim 1 of [experts, in, out].
CUTS = {
    "wq.weight": 0, "wk.weight": 0, "wv.weight": 0, "wo.weight": 1, "w1.weight": 0, "w2.weight": 1, "w3.weight": 0, "output.weight": 0, "norm.weight": None,
    "w_in_shared_FD.weight": 0, "w_out_shared_DF.weight": 1, "w_swiglu_FD.weight": 0, "router_DE": None, "layer_norm_weight": None,
    "moe_w_in_eD_F": 2, "moe_w_swiglu_eD_F": 2, "moe_w_out_eF_D": 1,
}


def cut_of(name, embedding_dim):
    if name == "tok_embeddings.weight":
        return embedding_dim
    return next(dim for end, dim in CUTS.items() if name.endswith(end))


def chunk(value, files, dim):
    return [value] * files if dim is None else list(value.chunk(files, dim))


def slices(state, files, embedding_dim=0, head_rows=0):
    """Returns each file's tensors. Keys and values of fewer heads than files are repeated: `head_rows` is the size of a head."""
    out = [{} for _ in range(files)]
    for name, value in state.items():
        if name.endswith(("wk.weight", "wv.weight")) and value.shape[0] < files * head_rows:
            heads = value.split(head_rows)
            parts = [heads[i * len(heads) // files] for i in range(files)]
        else:
            parts = chunk(value, files, cut_of(name, embedding_dim))
        for file, part in zip(out, parts):
            if ".experts." in name:  # Stored as matrices, experts along the rows.
                part = part.flatten(0, 1)
            file[name] = part.clone().contiguous()
    return out


def draw(shapes, dtype, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return {name: (torch.randn(shape, generator=generator) * 0.05).to(dtype) for name, shape in shapes.items()}


def llama_shapes(dim, layers, kv, hidden, vocab):
    """Returns the tensors of a Llama without experts. `kv`: rows of keys and of values."""
    shapes = {"tok_embeddings.weight": (vocab, dim), "norm.weight": (dim,), "output.weight": (vocab, dim)}
    for i in range(layers):
        shapes |= {f"layers.{i}.{name}.weight": shape for name, shape in {
            "attention_norm": (dim,), "ffn_norm": (dim,), "attention.wq": (dim, dim), "attention.wk": (kv, dim), "attention.wv": (kv, dim),
            "attention.wo": (dim, dim), "feed_forward.w1": (hidden, dim), "feed_forward.w2": (dim, hidden), "feed_forward.w3": (hidden, dim)}.items()}
    return shapes


def write(folder, params, files, safetensors=False):
    folder.mkdir(parents=True)
    (folder / "params.json").write_text(json.dumps(params))
    if safetensors:
        save_file(files[0], folder / "consolidated.safetensors")
        return folder
    for number, tensors in enumerate(files):
        torch.save(tensors, folder / f"consolidated.{number:02d}.pth")
    return folder


def fused_llama4(state, files, layers, experts_every):
    """Returns the files of a Llama 4 under its release's names, from names and orientations of Titan. Each file has a slice of the queries, keys
    and values of a layer in one tensor, and of the gate and the up projection of a dense layer in another; and states of another library."""
    out = [{} for _ in range(files)]
    plain = {name: value for name, value in state.items() if not name.startswith("layers.")}
    for file, part in zip(out, slices(plain, files)):
        file.update(part)
    for i in range(layers):
        of = {name.removeprefix(f"layers.{i}."): value for name, value in state.items() if name.startswith(f"layers.{i}.")}
        fused = [[of[f"attention.w{letter}.weight"].chunk(files)[f] for letter in "qkv"] for f in range(files)]
        renamed = {"attention.wo.weight": of["attention.wo.weight"], "attention.wqkv.layer_norm_weight": of["attention_norm.weight"]}
        if (i + 1) % experts_every == 0:
            renamed |= {"feed_forward.norm.weight": of["ffn_norm.weight"],
                        "feed_forward.router_DE": of["moe.router.gate.weight"].t(),
                        "feed_forward.w_in_shared_FD.weight": of["moe.shared_experts.w1.weight"],
                        "feed_forward.w_out_shared_DF.weight": of["moe.shared_experts.w2.weight"],
                        "feed_forward.w_swiglu_FD.weight": of["moe.shared_experts.w3.weight"],
                        "feed_forward.experts.moe_w_in_eD_F": of["moe.experts.w1"].transpose(1, 2),
                        "feed_forward.experts.moe_w_out_eF_D": of["moe.experts.w2"].transpose(1, 2),
                        "feed_forward.experts.moe_w_swiglu_eD_F": of["moe.experts.w3"].transpose(1, 2)}
        else:
            renamed |= {"feed_forward.mlp.layer_norm_weight": of["ffn_norm.weight"]}
        for f, (file, part) in enumerate(zip(out, slices({f"layers.{i}.{name}": value for name, value in renamed.items()}, files))):
            file.update(part)
            file[f"layers.{i}.attention.wqkv.weight"] = torch.cat(fused[f])
            file[f"layers.{i}.attention.wqkv._extra_state"] = io.BytesIO(b"state of another library")
            if (i + 1) % experts_every == 0:
                file[f"layers.{i}.feed_forward.global_gate_stats_3E"] = torch.zeros(3, 8)
            else:
                pair = [of[f"feed_forward.{name}.weight"].chunk(files)[f] for name in ("w1", "w3")]
                file[f"layers.{i}.feed_forward.mlp.fc1_weight"] = torch.cat(pair)
                file[f"layers.{i}.feed_forward.mlp.fc2_weight"] = of["feed_forward.w2.weight"].chunk(files, 1)[f].clone()
    for file in out:
        file["vision_embeddings.vision_adapter.mlp.c_fc.weight"] = torch.ones(2, 2)
        file["rope.freqs"] = torch.ones(8)
    return out
