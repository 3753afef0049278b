#pragma once

#include "worker/rank/comm/group.h"

namespace titan::parallel {

// comm::reduce_scatter, whose result a recomputed block can keep (worker/rank/nn/kept_results.h).
at::Tensor scatter_sum(const at::Tensor& partial, int64_t dim, const comm::Group& group);

}  // namespace titan::parallel
