"""Compares the frozen encoders with diffusers' AutoencoderKL and transformers' T5EncoderModel and CLIPTextModel.

Small random models are written in every naming and type that is read; one program computes all cases. In float64 the
oracle of T5 is its formula, because transformers computes its softmax in float32. A second run has transformers 5."""

import collections
import copy
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", TQDM_DISABLE="1")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[4] / "testing"))
from transformers_5 import is_second_run, run_again_with_5  # noqa: E402

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from transformers import (CLIPConfig, CLIPModel, CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel,  # noqa: E402
                          T5ForConditionalGeneration)

PROGRAM = pathlib.Path(os.environ["TITAN_BIN"]).parent / "tests" / "run_encoders"
LIMITS = {"float32": 1e-5, "float64": 1e-10, "bfloat16": 3e-2}


def error(ours, theirs):
    """Returns the largest difference relative to the largest number."""
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    assert torch.isfinite(theirs).all()
    return ((ours.double() - theirs.double()).abs().max() / theirs.abs().max()).item()


class Cases:
    """Collects cases for one run of the program, with a check for each result."""

    def __init__(self, folder):
        self.folder, self.cases, self.checks, self.worst = folder, [], [], collections.defaultdict(float)

    def path(self, name):
        return str(self.folder / f"{len(self.cases)}.{name}")

    def add(self, kind, path, inputs, check, dtype="float32", flops=None, int8=False):
        """`check` gets {name: tensor}. `inputs` is None for random weights."""
        file = ""
        if inputs is not None:
            file = self.path("in.safetensors")
            save_file({name: value.contiguous() for name, value in inputs.items()}, file)
        case = dict(kind=kind, path=str(path), dtype=dtype, int8=int8, inputs=file, output=self.path("out.safetensors"))
        self.cases.append(case)
        self.checks.append((check, flops))

    def compare(self, label, kind, path, inputs, want, dtype="float32", limit=None, **others):
        """`want` is {name: tensor}."""
        limit = LIMITS[dtype] if limit is None else limit

        def check(got):
            assert got.keys() == want.keys(), got.keys()
            for name, value in want.items():
                off = error(got[name], value)
                self.worst[label, dtype] = max(self.worst[label, dtype], off)
                assert off <= limit, f"{label} {dtype} {name} of {path}: relative error {off:.2e}, limit {limit:.0e}"

        self.add(kind, path, inputs, check, dtype, **others)

    def run(self):
        done = subprocess.run([PROGRAM], input=json.dumps(self.cases), capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
        wrong = []
        for case, (check, flops), line in zip(self.cases, self.checks, done.stdout.split(), strict=True):
            try:
                check(load_file(case["output"]))
                assert flops in (None, int(line)), f"{case['kind']} of {case['path']}: {line} FLOPs, not {flops}"
            except AssertionError as failure:
                wrong.append(str(failure))
        if wrong:
            sys.exit("\n".join(wrong))
        for (label, dtype), off in sorted(self.worst.items()):
            print(f"{label} {dtype}: relative error {off:.1e}")


def randomize(model, seed, scale=1.0):
    """Random values for all parameters, so that no zero or one hides a mistake."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        fan_in = parameter[0].numel() if parameter.dim() > 1 else 25
        parameter.data = scale * noise / math.sqrt(fan_in) + (1 if parameter.dim() == 1 else 0)
    return model.eval().requires_grad_(False)


def in_both_types(model, ids, result):
    """Returns a text encoder's result in float32 and in float64."""
    with torch.no_grad():
        single = model.float()(input_ids=ids)[result]
        torch.set_default_dtype(torch.float64)  # In which transformers 4 makes its mask.
        double = model.double()(input_ids=ids)[result]
        torch.set_default_dtype(torch.float32)
    model.float()
    return single, double


def eager(model, ids):
    """Encodes one text with separate products for attention, which are counted."""
    copied = type(model)._from_config(copy.deepcopy(model.config), attn_implementation="eager").float()
    return copied(input_ids=ids[:1])


def flops_of(run):
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


# T5


def t5_formula(weights, config, ids):
    """The encoder in plain operations of the weights' type (arXiv 1910.10683)."""
    eps, heads = config.layer_norm_epsilon, config.num_heads
    activation = {"gated-gelu": lambda x: torch.nn.functional.gelu(x, approximate="tanh"), "relu": torch.relu,
                  "gated-silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu}[config.feed_forward_proj]

    def norm(x, name):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weights[name + "layer_norm.weight"]

    def bucket(relative):
        half, exact = config.relative_attention_num_buckets // 2, config.relative_attention_num_buckets // 4
        distance, later = abs(relative), half * (relative > 0)
        if distance < exact:
            return later + distance
        above = math.log(distance / exact) / math.log(config.relative_attention_max_distance / exact) * (half - exact)
        return later + min(half - 1, exact + math.floor(above + 1e-9))

    length = ids.shape[1]
    table = weights["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    buckets = torch.tensor([bucket(relative) for relative in range(1 - length, length)])
    keys = torch.arange(length)
    bias = table[buckets[keys[None] - keys[:, None] + length - 1]].permute(2, 0, 1)
    x = weights["shared.weight"][ids]
    for layer in range(config.num_layers):
        name = f"encoder.block.{layer}.layer."
        normed = norm(x, name + "0.")
        q, k, v = ((normed @ weights[f"{name}0.SelfAttention.{one}.weight"].T).unflatten(-1, (heads, -1)).transpose(1, 2)
                   for one in "qkv")
        attended = torch.softmax(q @ k.transpose(2, 3) + bias, -1) @ v
        x = x + attended.transpose(1, 2).flatten(2) @ weights[name + "0.SelfAttention.o.weight"].T
        normed, name = norm(x, name + "1."), name + "1.DenseReluDense."
        if config.is_gated_act:
            hidden = activation(normed @ weights[name + "wi_0.weight"].T) * (normed @ weights[name + "wi_1.weight"].T)
        else:
            hidden = activation(normed @ weights[name + "wi.weight"].T)
        x = x + hidden @ weights[name + "wo.weight"].T
    return norm(x, "encoder.final_")


def rounded_to_int8(weights):
    """The matrices of linear layers as the program holds them: one scale for each row."""
    result = dict(weights)
    for name, value in weights.items():
        if value.dim() == 2 and "shared" not in name and "relative" not in name:
            scale = value.float().abs().amax(1, keepdim=True) / 127
            result[name] = torch.round(value.float() / scale).double() * scale.double()
    return result


def t5_cases(cases, folder):
    sizes = [dict(feed_forward_proj="gated-gelu"),
             dict(feed_forward_proj="relu", d_kv=5, num_heads=4),
             dict(feed_forward_proj="gated-silu", relative_attention_num_buckets=18, relative_attention_max_distance=41,
                  layer_norm_epsilon=1e-3),
             dict(feed_forward_proj="gelu", num_layers=1)]
    for seed, size in enumerate(sizes):
        config = T5Config(**{**dict(vocab_size=103, d_model=27, d_kv=7, d_ff=43, num_layers=2, num_heads=3), **size})
        model = randomize(T5EncoderModel._from_config(config), seed, scale=0.5)
        path = folder / f"t5.{seed}"
        model.save_pretrained(path)
        weights = {name: value.double() for name, value in model.state_dict().items()}
        for batch, length in ((3, 1), (2, 21), (2, 131), (1, 333)):
            ids = torch.randint(0, 103, (batch, length), generator=torch.Generator().manual_seed(length))
            ids[0, length // 2:] = 0  # Padding, which is attended.
            single, double = in_both_types(model, ids, "last_hidden_state")
            flops = flops_of(lambda: eager(model, ids))
            truth = t5_formula(weights, config, ids)
            assert error(double, truth) < 2e-6 and error(single, truth) < 1e-5, "the formula is not that of transformers"
            cases.compare("T5", "t5", path, {"ids": ids}, {"result": truth}, flops=flops)
            cases.compare("T5", "t5", path, {"ids": ids}, {"result": truth}, dtype="float64")
            cases.compare("T5", "t5", path, {"ids": ids}, {"result": truth}, dtype="bfloat16")
            rounded = t5_formula(rounded_to_int8(weights), config, ids)
            cases.compare("T5 int8, of its own weights,", "t5", path, {"ids": ids}, {"result": rounded}, dtype="float64",
                          int8=True)
            cases.compare("T5 int8, of the exact weights,", "t5", path, {"ids": ids}, {"result": truth}, limit=3e-2,
                          int8=True)
    return model, config, ids, path


def t5_files(cases, folder, model, config, ids):
    """The same weights in other files: narrow types, several files, a whole T5, the embedding under its other name."""
    truth = {torch.float32: t5_formula({n: v.double() for n, v in model.state_dict().items()}, config, ids)}
    for dtype in (torch.bfloat16, torch.float16):
        narrow = {name: value.to(dtype) for name, value in model.state_dict().items()}
        truth[dtype] = t5_formula({name: value.double() for name, value in narrow.items()}, config, ids)
        path = folder / f"t5.{dtype}"
        model.save_pretrained(path)
        save_file({name: value.clone() for name, value in narrow.items() if "embed_tokens" not in name},
                  path / "model.safetensors")
        cases.compare("T5 from narrow types", "t5", path, {"ids": ids}, {"result": truth[dtype]}, dtype="float64")
    path = folder / "t5.parts"
    model.save_pretrained(path, max_shard_size="4KB")
    assert len(list(path.glob("*.safetensors"))) > 2
    cases.compare("T5 from several files", "t5", path, {"ids": ids}, {"result": truth[torch.float32]}, dtype="float64")
    whole = T5ForConditionalGeneration._from_config(config)
    whole.load_state_dict(model.state_dict(), strict=False)
    path = folder / "t5.whole"
    whole.save_pretrained(path)
    cases.compare("T5 from a whole T5", "t5", path, {"ids": ids}, {"result": truth[torch.float32]}, dtype="float64")
    path = folder / "t5.alias"
    model.save_pretrained(path)
    weights = {name.replace("shared.", "encoder.embed_tokens."): value.clone() for name, value in model.state_dict().items()}
    save_file(weights, path / "model.safetensors")
    save_file(weights, path / "model.fp16.safetensors")  # A variant, which is ignored.
    cases.compare("T5 with encoder.embed_tokens", "t5", path, {"ids": ids}, {"result": truth[torch.float32]}, dtype="float64")


# CLIP


def clip_ids(batch, length, eos, largest, seed):
    """Texts with one eos, with padding by eos, with eos first and last, and with several."""
    ids = torch.randint(3, largest, (batch, length), generator=torch.Generator().manual_seed(seed))
    ids[ids == eos] = 3
    for row in range(batch):
        ids[row, (row * 5) % length:] = eos if row % 2 == 0 else ids[row, (row * 5) % length:]
        ids[row, (row * 7) % length] = eos
        ids[row, -1] = eos
    return ids


def clip_cases(cases, folder):
    sizes = [dict(eos_token_id=2), dict(eos_token_id=101, hidden_act="gelu"), dict(eos_token_id=50, num_hidden_layers=1)]
    for seed, size in enumerate(sizes):
        config = CLIPTextConfig(**{**dict(vocab_size=103, hidden_size=33, intermediate_size=47, num_hidden_layers=2,
                                          num_attention_heads=3, max_position_embeddings=23, bos_token_id=0), **size})
        model = randomize(CLIPTextModel(config), seed)
        path = folder / f"clip.{seed}"
        model.save_pretrained(path)
        eos = {2: 102}.get(config.eos_token_id, config.eos_token_id)
        for length in (23, 9, 1):
            ids = clip_ids(5, length, eos, 102, seed)
            flops = flops_of(lambda: eager(model, ids))
            single, double = in_both_types(model, ids, "pooler_output")
            cases.compare("CLIP", "clip", path, {"ids": ids}, {"result": single}, flops=flops)
            cases.compare("CLIP", "clip", path, {"ids": ids}, {"result": double}, dtype="float64")
            cases.compare("CLIP", "clip", path, {"ids": ids}, {"result": double}, dtype="bfloat16")
        bare = folder / f"clip.bare.{seed}"
        model.save_pretrained(bare)
        save_file({name.removeprefix("text_model."): value.clone() for name, value in model.state_dict().items()},
                  bare / "model.safetensors")
        cases.compare("CLIP without prefix", "clip", bare, {"ids": ids}, {"result": double}, dtype="float64")
    text = dict(hidden_size=32, num_attention_heads=2, num_hidden_layers=2, intermediate_size=40)  # The rest is left out.
    vision = dict(hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=16, image_size=8, patch_size=4)
    whole = randomize(CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)), 9)
    whole.logit_scale.data = torch.tensor(1.0)
    path = folder / "clip.whole"
    whole.save_pretrained(path)
    ids = clip_ids(4, 77, 49407, 49407, 1)
    _, pooled = in_both_types(whole.text_model, ids, "pooler_output")
    cases.compare("CLIP from a CLIPModel", "clip", path, {"ids": ids}, {"result": pooled}, dtype="float64")


# Autoencoder


OURS = [("down_blocks.", "down."), (".resnets.", ".block."), ("downsamplers.0", "downsample"), ("upsamplers.0", "upsample"),
        ("mid_block.block.", "mid.block_"), ("mid_block.attentions.0", "mid.attn_1"), ("group_norm", "norm"), ("to_q", "q"),
        ("to_k", "k"), ("to_v", "v"), ("to_out.0", "proj_out"), ("conv_shortcut", "nin_shortcut"), ("conv_norm_out", "norm_out")]
OLD = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}


def renamed(state, levels):
    """diffusers' weights under Black Forest Labs' names."""
    result = {}
    for name, value in state.items():
        if "up_blocks." in name:
            level = int(name.split("up_blocks.")[1].split(".")[0])
            name = name.replace(f"up_blocks.{level}.", f"up.{levels - 1 - level}.")
        for theirs, ours in OURS:
            name = name.replace(theirs, ours)
        name = name.replace("mid.block_1.", "mid.block_2.").replace("mid.block_0.", "mid.block_1.")
        square = ".attn_1." in name and name.endswith("weight") and value.dim() == 2
        result[name] = (value[:, :, None, None] if square else value).clone()
    return result


def old_names(state):
    for new, old in OLD.items():
        state = {name.replace(new, old): value.clone() for name, value in state.items()}
    return state


def autoencoder_wants(model, images, noise, latents):
    """What the oracle computes in its type: results of both halves, and FLOPs of one picture."""
    scale, shift = model.config.scaling_factor, model.config.shift_factor or 0.0
    from diffusers.models.attention_processor import AttnProcessor, AttnProcessor2_0
    with torch.no_grad():
        model.set_attn_processor(AttnProcessor2_0())
        moments = model._encode(images)
        mean, logvar = moments.chunk(2, 1)
        encoded = dict(mean=mean, logvar=logvar, latents=scale * (mean + torch.exp(0.5 * logvar) * noise - shift))
        decoded = dict(images=model._decode(latents / scale + shift).sample)
        model.set_attn_processor(AttnProcessor())  # Its products are counted, but its softmax is in float32.
        flops = (flops_of(lambda: model._encode(images[:1])), flops_of(lambda: model._decode(latents[:1])))
    return encoded, decoded, flops


def autoencoder_cases(cases, folder):
    from diffusers import AutoencoderKL
    sizes = [dict(block_out_channels=(32, 64, 96, 96), norm_num_groups=32, layers_per_block=2, latent_channels=16,
                  scaling_factor=0.3611, shift_factor=0.1159),
             dict(block_out_channels=(10, 25, 15), norm_num_groups=5, layers_per_block=1, latent_channels=3, shift_factor=0.3),
             dict(block_out_channels=(6, 12), norm_num_groups=2, layers_per_block=3, latent_channels=1, in_channels=4,
                  out_channels=4)]
    for seed, size in enumerate(sizes):
        levels = len(size["block_out_channels"])
        model = AutoencoderKL(down_block_types=("DownEncoderBlock2D",) * levels, up_block_types=("UpDecoderBlock2D",) * levels,
                              use_quant_conv=False, use_post_quant_conv=False, **size)
        model = randomize(model, seed)
        folders = {"diffusers": folder / f"ae.{seed}", "old": folder / f"ae.old.{seed}", "BFL": folder / f"ae.bfl.{seed}"}
        for path in folders.values():
            model.save_pretrained(path)
        file = "diffusion_pytorch_model.safetensors"
        save_file(old_names(model.state_dict()), folders["old"] / file)
        save_file(renamed(model.state_dict(), levels), folders["BFL"] / file)
        if seed == 0:  # Its sizes follow from the tensors.
            folders["BFL, one file"] = folder / "ae.safetensors"
            save_file(renamed(model.state_dict(), levels), folders["BFL, one file"])
            folders["diffusers, one file"] = folders["diffusers"] / file
            for half in ("encoder", "decoder"):
                path = folders[f"BFL, {half}"] = folder / f"{half}.safetensors"
                save_file({n: v for n, v in renamed(model.state_dict(), levels).items() if n.startswith(half)}, path)
        factor = 2 ** (levels - 1)
        generator = torch.Generator().manual_seed(seed)
        for batch, high, wide in ((2, 3, 5), (1, 1, 1), (1, 6, 2)):
            latent = (batch, size["latent_channels"], high, wide)
            images = torch.rand((batch, model.config.in_channels, factor * high, factor * wide), generator=generator) * 2 - 1
            noise, latents = torch.randn(latent, generator=generator), torch.randn(latent, generator=generator)
            single = autoencoder_wants(model.float(), images, noise, latents)
            double = autoencoder_wants(model.double(), images.double(), noise.double(), latents.double())
            model.float()
            for (label, path), (dtype, want) in [(one, two) for one in folders.items() for two in
                                                 (("float32", single), ("float64", double), ("bfloat16", double))]:
                if dtype != "float64" and label != "diffusers":
                    continue
                encoded, decoded, flops = want
                if label != "BFL, decoder":
                    cases.compare(f"autoencoder, {label},", "encoder", path, {"images": images, "noise": noise}, encoded,
                                  dtype, flops=flops[0], limit=0.1 if dtype == "bfloat16" else None)
                if label != "BFL, encoder":
                    cases.compare(f"autoencoder, {label},", "decoder", path, {"latents": latents}, decoded, dtype,
                                  flops=flops[1], limit=0.1 if dtype == "bfloat16" else None)


# Random weights


def same_spread(label, theirs):
    """Returns a check that drawn weights have the oracle's spread. Small tensors only have to be of the same kind."""

    def check(ours):
        assert ours.keys() == theirs.keys(), (label, ours.keys() ^ theirs.keys())
        for name, want in theirs.items():
            got = ours[name]
            assert got.shape == want.shape, (label, name)
            if want.numel() < 2 or want.std() == 0:
                assert torch.equal(got, want), f"{label}: {name} is not constant"
                continue
            tolerance = 5 / math.sqrt(want.numel())
            assert abs(math.log(got.std() / want.std())) < tolerance, f"{label}: {name}: {got.std()}, not {want.std()}"

    return check


def random_cases(cases, folder):
    torch.manual_seed(0)
    models = [("t5", T5EncoderModel._from_config(T5Config(vocab_size=103, d_model=48, d_kv=12, d_ff=96, num_layers=2, num_heads=5,
                                                          feed_forward_proj="gated-gelu"))),
              ("clip", CLIPTextModel._from_config(CLIPTextConfig(vocab_size=103, hidden_size=48, intermediate_size=96,
                                                                 num_hidden_layers=2, num_attention_heads=4)))]
    for kind, model in models:
        model.save_pretrained(folder / f"random.{kind}")
        state = {name: value for name, value in model.state_dict().items() if "embed_tokens" not in name}
        if kind == "clip":
            state = {"text_model." + name.removeprefix("text_model."): value for name, value in state.items()}
        cases.add(kind, folder / f"random.{kind}", None, same_spread(kind, state))
    if is_second_run():
        return
    from torchtitan.models.flux.model.autoencoder import AutoEncoder, AutoEncoderParams
    state = AutoEncoder(AutoEncoderParams(ch=32, ch_mult=(1, 2, 3, 3), z_channels=4)).state_dict()
    config = dict(_class_name="AutoencoderKL", block_out_channels=[32, 64, 96, 96], layers_per_block=2, latent_channels=4,
                  down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4, use_quant_conv=False,
                  use_post_quant_conv=False)
    path = folder / "random.ae"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    for half in ("encoder", "decoder"):
        part = {name: value.detach() for name, value in state.items() if name.startswith(half)}
        cases.add(half, path, None, same_spread(half, part))


def main():
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        cases = Cases(folder)
        model, config, ids, _ = t5_cases(cases, folder)
        t5_files(cases, folder, model, config, ids)
        clip_cases(cases, folder)
        if not is_second_run():
            autoencoder_cases(cases, folder)
        random_cases(cases, folder)
        cases.run()
    print(f"{len(cases.cases)} cases hold")


run_again_with_5()
main()
