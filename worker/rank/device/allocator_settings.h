#pragma once

#include <functional>
#include <optional>
#include <string>

namespace titan::device {

struct Variable {
  std::string name, value;
};
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

// What to put into the environment of a rank whose device is "cuda", before LibTorch's CUDA half is loaded, so that the
// caching allocator maps memory into segments that grow, or does not. Blocks of many sizes then leave no holes that
// none of them fits. None: nothing; who has set `expandable_segments`, or another allocator, knows better. Other
// settings stay: they are in the same variable, the one of LibTorch's three names that it reads.
std::optional<Variable> segments_setting(const Environment& environment, bool expandable);

// Puts it there.
void set_segments(bool expandable);

}  // namespace titan::device
