#pragma once

#include <functional>
#include <optional>
#include <string>

namespace titan::device {

struct Variable {
  std::string name, value;
};
using EnvironmentLookup = std::function<std::optional<std::string>(const std::string& name)>;

// Returns the environment variable to set for a rank whose device is "cuda", before LibTorch's CUDA part is loaded, so
// that the caching allocator uses expandable segments or does not. With expandable segments, blocks of many sizes leave
// no unusable gaps. None: change nothing, because the user has set `expandable_segments` or another allocator. Other
// settings are kept; they are in the same variable, the first of LibTorch's three names that is set.
std::optional<Variable> segments_setting(const EnvironmentLookup& environment, bool expandable);

// Sets that variable.
void set_segments(bool expandable);

}  // namespace titan::device
