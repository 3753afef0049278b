#pragma once

#include <optional>
#include <vector>

#include "worker/data/loader.h"
#include "worker/nn/block.h"
#include "worker/parallel/context.h"

namespace titan::runtime {

// What makes contexts for the model's blocks out of the batches that a data-parallel rank reads.
struct MicrobatchOptions {
  at::Device device = at::kCPU;
  int64_t rows = 0;                     // Of one microbatch; 0: a batch is one microbatch.
  parallel::ContextParallel context;    // No group: rows stay whole.
  std::optional<int64_t> document_end;  // Token that ends a document, where documents do not see each other.
};

// The batch as microbatches on the device: this rank's share of its tokens. `rows` must divide the batch.
std::vector<nn::MicrobatchContext> make_microbatches(const data::Batch& batch, const MicrobatchOptions& options);

// Labels of these microbatches that count.
int64_t count_valid(const std::vector<nn::MicrobatchContext>& microbatches);

}  // namespace titan::runtime
