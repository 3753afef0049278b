// What nearly every LibTorch file here needs, precompiled. Not <torch/torch.h>: its modules, optimizers and data
// loaders cost every file two seconds of templates that nobody uses.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
