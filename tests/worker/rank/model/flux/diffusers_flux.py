"""Small FluxTransformer2DModels of diffusers with random weights, for tests that compare Titan with them."""

import contextlib
import functools
import os
import pathlib
import re
from unittest import mock

import torch
from diffusers import FluxTransformer2DModel
from diffusers.models.transformers import transformer_flux
from diffusers.utils import logging

logging.disable_progress_bar()
PROGRAMS = pathlib.Path(os.environ["TITAN_BIN"]).parent / "tests"
HEADS, HEAD, CHANNELS, TXT, VEC = 3, 16, 8, 20, 10


def draw(model):
    """Fills all parameters so that every part has a visible effect."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = torch.randn(parameter.shape)
            if re.search(r"norm_(q|k|added_q|added_k)\.weight", name):
                value = 1 + 0.3 * value
            elif parameter.dim() == 2:
                value = value * 1.2 / parameter.shape[1] ** 0.5
            else:
                value = 0.3 * value
            parameter.copy_(value)


def diffusers_model(guidance):
    model = FluxTransformer2DModel(patch_size=1, in_channels=CHANNELS, num_layers=2, num_single_layers=3, attention_head_dim=HEAD,
                                   num_attention_heads=HEADS, joint_attention_dim=TXT, pooled_projection_dim=VEC,
                                   guidance_embeds=guidance, axes_dims_rope=(4, 6, 6))
    draw(model)
    return model


def exact(function):
    """The same function, in which Tensor.float() leaves fp64 as it is."""
    @functools.wraps(function)
    def wrapped(*args, **named):
        to_float = torch.Tensor.float
        with mock.patch.object(torch.Tensor, "float", lambda x: x if x.dtype == torch.float64 else to_float(x)):
            return function(*args, **named)
    return wrapped


@contextlib.contextmanager
def exact_rotation(others=()):
    """Lets diffusers, and `others` (module, name of a function), compute rotations in fp64 for models in fp64."""
    with contextlib.ExitStack() as stack:
        for module, name in ((transformer_flux, "apply_rotary_emb"), (transformer_flux, "get_1d_rotary_pos_embed"), *others):
            stack.enter_context(mock.patch.object(module, name, exact(getattr(module, name))))
        yield
