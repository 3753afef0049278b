"""Lets an unmodified torchtitan 0.2.2 train on CPU with Gloo. Import before torchtitan.train.

On import torchtitan looks for an accelerator and calls a few functions of its device module that torch.cpu lacks. FSDP2 requests
a reduction (PREMUL_SUM) that Gloo does not have, although torchtitan sets the factor to 1. Its mixture of experts counts tokens
with a histogram of integers and sorts them with a Triton kernel, which CPUs lack as well (install_models).

Three of its defects are fixed here, because with them it could not serve as an oracle: the names of Llama 4's dense feed-forward
are missing from its adapter, so that a load leaves them random; DeepSeek's last norm ignores the model's epsilon; and a named
float8 recipe ignores the emulation option (emulate_named_recipes).
"""

import functools
import os
import types

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

import torch
import torch._utils
import torch.distributed
from torch.distributed.fsdp import FSDPModule


def _device_module():
    module = types.ModuleType("cpu_as_accelerator")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    module.get_device_name = lambda *_: "CPU"
    module.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=memory)
    module.memory_stats = lambda *_: {}
    for name in ("reset_peak_memory_stats", "empty_cache", "set_device", "synchronize"):
        setattr(module, name, lambda *_: None)
    module.current_device = lambda: 0
    for name in dir(torch.cpu):
        if not hasattr(module, name):
            setattr(module, name, getattr(torch.cpu, name))
    return module


def _install():
    module = _device_module()
    torch._utils._get_available_device_type = lambda: "cpu"
    torch._utils._get_device_module = lambda _: module

    barrier = torch.distributed.barrier
    torch.distributed.barrier = lambda *_args, **_named: barrier()  # Gloo takes no device ids.

    set_factor = FSDPModule.set_gradient_divide_factor

    @functools.wraps(set_factor)
    def set_factor_by_sum(self, factor):
        self.set_force_sum_reduction_for_comms(True)
        return set_factor(self, factor)

    FSDPModule.set_gradient_divide_factor = set_factor_by_sum

    histc = torch.histc
    torch.histc = lambda x, *args, **named: histc(x.float(), *args, **named).to(x.dtype)


@functools.cache
def install_models():
    """Adapts models other than Llama 3. Separate, because it imports them all, which takes seconds."""
    import torchtitan.models.moe.kernels as kernels
    import torchtitan.models.moe.utils as utils
    from torchtitan.models.deepseek_v3.model.model import DeepSeekV3Model
    from torchtitan.models.llama4.model.state_dict_adapter import Llama4StateDictAdapter

    permute = functools.partial(kernels.generate_permute_indices, use_cpu=True)
    kernels.generate_permute_indices = utils.generate_permute_indices = permute

    initialize = Llama4StateDictAdapter.__init__

    def initialize_with_dense_layers(self, *args, **named):
        initialize(self, *args, **named)
        for hf, ours in (("gate_proj", "w1"), ("down_proj", "w2"), ("up_proj", "w3")):
            self.from_hf_map[f"language_model.model.layers.{{}}.feed_forward.{hf}.weight"] = (
                f"layers.{{}}.feed_forward.{ours}.weight")

    Llama4StateDictAdapter.__init__ = initialize_with_dense_layers

    build = DeepSeekV3Model.__init__

    def build_with_epsilon(self, model_args):
        build(self, model_args)
        self.norm.eps = model_args.norm_eps

    DeepSeekV3Model.__init__ = build_with_epsilon


class _WideProducts:
    """torch for a module with products of float32 matrices that must be summed in float64."""

    def __getattr__(self, name):
        return getattr(torch, name)

    @staticmethod
    def mm(a, b):
        return torch.mm(a.double(), b.double()).float() if a.dtype == torch.float32 else torch.mm(a, b)


def sum_float8_in_float64():
    """Rounds the sums of torchao's emulated products differently, to measure its distance from itself."""
    import torchao.float8.float8_ops as ops

    ops.torch = _WideProducts()


def emulate_named_recipes():
    """Emulates float8's recipes by name; imports torchao."""
    import dataclasses

    from torchao.float8 import Float8LinearConfig

    from_recipe_name = Float8LinearConfig.from_recipe_name
    Float8LinearConfig.from_recipe_name = staticmethod(lambda name: dataclasses.replace(from_recipe_name(name), emulate=True))


_install()
