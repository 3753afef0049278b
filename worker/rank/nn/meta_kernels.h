#pragma once

namespace titan::nn {

// Tells LibTorch the shapes of the few operations of a training step that its C++ half does not know for tensors
// without memory (at::kMeta): torch itself registers those in Python. For a process that does a dry run.
void use_meta_kernels();

}  // namespace titan::nn
