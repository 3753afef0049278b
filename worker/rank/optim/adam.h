#pragma once

#include <memory>
#include <vector>

#include "worker/rank/optim/optimizer.h"

namespace titan::optim {

// Adam and AdamW. Groups that no slot is of may be another optimizer's.
std::unique_ptr<Optimizer> make_adam(std::vector<Options> groups, std::vector<Slot> slots);

}  // namespace titan::optim
