// What nearly every LibTorch file here needs, precompiled. A file pays for each template that these headers' inline
// functions use, at its end, so what few files need is not here: custom autograd functions and backends of collectives
// would triple what an empty file costs (docs/decisions/build.md), and <torch/torch.h> still more.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
