#pragma once

namespace titan::nn {

// Registers shape functions for the few operations of a training step that LibTorch lacks in C++ for tensors without
// memory (at::kMeta). PyTorch registers those in Python. A process that does a dry run calls this.
void use_meta_kernels();

}  // namespace titan::nn
