#pragma once

namespace titan::runtime {

// Makes norms of tensors without memory keep what they keep on CUDA, where a norm is one operation: its input and one
// factor a row. LibTorch puts them together from smaller operations everywhere else, which keep their results as well.
// For a process that does a dry run and nothing else.
void use_fused_meta_norm();

}  // namespace titan::runtime
