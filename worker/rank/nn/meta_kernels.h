#pragma once

namespace titan::nn {

// Registers the shapes of the few operations of a training step that LibTorch does not know in C++ for tensors without
// memory (at::kMeta). PyTorch registers those in Python. A process that does a dry run calls this.
void use_meta_kernels();

}  // namespace titan::nn
