#pragma once

#include <string>

namespace titan::stacks {

// A symbol's name for people. Of a long C++ name the innermost of what stands in <> and () is folded, then more of it:
// "at::native::(...)::cpu_kernel<...>(at::TensorIteratorBase&, ...)".
std::string function_name(const std::string& symbol);

// The folding alone, of a name that is longer than `most`.
std::string shortened_name(const std::string& name, size_t most);

}  // namespace titan::stacks
