// Headers that nearly every LibTorch file needs, precompiled. Each file pays, at its end, for every template that
// inline functions of these headers use. So headers that few files need are not here: custom autograd functions and
// backends of collectives would triple the cost of an empty file (docs/decisions/build.md), and <torch/torch.h> costs
// still more.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
