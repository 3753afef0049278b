#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "worker/kernels/level.h"

// Which kernels the layers of this process compute with. One choice for a process, made before it computes: its ranks,
// where they are threads, train one job.
namespace titan::kernels {

// The level of Titan's own CPU kernels; none: LibTorch's operations alone, which is also so before choose().
std::optional<Level> chosen_level();

// "reference": LibTorch's operations. "auto": the machine's best level; on one that has none as "reference". A level's
// name: that one; false if this machine lacks it.
bool choose(std::string_view written);

}  // namespace titan::kernels
