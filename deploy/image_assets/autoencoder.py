"""The small autoencoder: its configuration, and its weights from the compact file that train_autoencoder.py writes."""

import struct

import tensors

CHANNELS = [16, 16, 32, 32]  # By level: each has half the resolution of the last.
LEVELS = len(CHANNELS)
CONFIG = {"_class_name": "AutoencoderKL", "act_fn": "silu", "block_out_channels": CHANNELS, "down_block_types": ["DownEncoderBlock2D"] * LEVELS,
          "in_channels": 3, "latent_channels": 16, "layers_per_block": 1, "mid_block_add_attention": True, "norm_num_groups": 4,
          "out_channels": 3, "up_block_types": ["UpDecoderBlock2D"] * LEVELS, "use_post_quant_conv": False, "use_quant_conv": False}  # fmt: skip


def is_identity(name):
    """Returns whether the parameter belongs to a block that stays the identity (x plus zero)."""
    return ".mid_block." in name or (name.startswith("decoder.up_blocks.") and ".resnets.1." in name)


def identity_parameters():
    """Returns the shapes of these parameters by name."""
    shapes = {}
    blocks = {f"{half}.mid_block.resnets.{i}": CHANNELS[-1] for half in ("encoder", "decoder") for i in range(2)}
    blocks |= {f"decoder.up_blocks.{i}.resnets.1": channels for i, channels in enumerate(reversed(CHANNELS))}
    for block, channels in blocks.items():
        for i in "12":
            shapes |= {f"{block}.norm{i}.weight": [channels], f"{block}.norm{i}.bias": [channels]}
            shapes |= {f"{block}.conv{i}.weight": [channels, channels, 3, 3], f"{block}.conv{i}.bias": [channels]}
    channels = CHANNELS[-1]
    for attention in [f"{half}.mid_block.attentions.0" for half in ("encoder", "decoder")]:
        shapes |= {f"{attention}.group_norm.weight": [channels], f"{attention}.group_norm.bias": [channels]}
        for part in ("to_q", "to_k", "to_v", "to_out.0"):
            shapes |= {f"{attention}.{part}.weight": [channels, channels], f"{attention}.{part}.bias": [channels]}
    return shapes


def expand(path):
    """Returns the weights in diffusers' names as {name: (shape, array of floats)}, and the configuration with the factors of the file."""
    stored, facts = tensors.read(path)
    weights = {}
    for name, (kind, shape, data) in stored.items():
        if name.endswith(".scale"):
            continue
        if kind == "F16":
            weights[name] = shape, tensors.floats(tensors.halves(data))
            continue
        scales = tensors.halves(stored[f"{name}.scale"][2])
        integers = struct.unpack(f"{len(data)}b", data)
        row = len(integers) // shape[0]
        weights[name] = shape, tensors.floats([scale * value for i, scale in enumerate(scales) for value in integers[i * row : (i + 1) * row]])
    for name, shape in identity_parameters().items():
        is_scale = "norm" in name and name.endswith("weight")
        weights[name] = shape, tensors.floats([1.0 if is_scale else 0.0]) * tensors.count(shape)
    return weights, {**CONFIG, **{key: float(value) for key, value in facts.items()}}
