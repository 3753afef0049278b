"""Lets an unmodified torchtitan 0.2.2 train on CPU with Gloo. Import before torchtitan.train.

torchtitan looks for an accelerator when it is imported and calls a few functions of its device module that torch.cpu lacks;
and FSDP2 asks for a reduction (PREMUL_SUM) that Gloo does not have, although torchtitan sets the factor to 1.
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


_install()
