#pragma once

#include <vector>

#include "worker/rank/data/loader/batch_source.h"
#include "worker/rank/model/objective.h"
#include "worker/rank/nn/block.h"

namespace titan::runtime {

using model::MicrobatchOptions;

// This rank's share of a batch as the blocks read it, on the device.
struct Microbatches {
  std::vector<nn::MicrobatchContext> contexts;
  int64_t loss_terms = 0;  // Over all contexts.
};

// Makes the microbatches of a batch that is on the CPU. Throws c10::Error if options.rows does not divide the batch.
Microbatches make_microbatches(const model::Objective& objective, const data::Batch& batch,
                               const MicrobatchOptions& options);

}  // namespace titan::runtime
