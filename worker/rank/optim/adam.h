#pragma once

#include <memory>
#include <vector>

#include "worker/rank/optim/optimizer.h"

namespace titan::optim {

// Makes Adam or AdamW. Groups without slots may belong to another optimizer.
std::unique_ptr<Optimizer> make_adam(std::vector<OptimizerOptions> groups, std::vector<Slot> slots);

}  // namespace titan::optim
