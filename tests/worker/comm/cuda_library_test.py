"""The CUDA device library links: every symbol resolves against LibTorch's CUDA half and its factory is exported.

Runs without a GPU: loading binds all symbols at once, and the factory must then refuse by name, since there is no device.
"""

import ctypes
import os
import sys

import torch  # noqa: F401  (brings LibTorch's CUDA libraries)

library = ctypes.CDLL(os.path.join(os.environ["TITAN_BIN"], "libtitan_cuda.so"), mode=os.RTLD_NOW)
assert library.titan_make_cuda_device, "the factory is not exported"
print("libtitan_cuda.so: all symbols bound")
sys.exit(0)
