#pragma once

#include <optional>
#include <vector>

#include "worker/rank/data/loader/loader.h"
#include "worker/rank/nn/block.h"
#include "worker/rank/parallel/context.h"

namespace titan::runtime {

// Settings for making the blocks' contexts from the batches that a data-parallel rank reads.
struct MicrobatchOptions {
  at::Device device = at::kCPU;
  int64_t rows = 0;                     // Rows of one microbatch. 0: a batch is one microbatch.
  parallel::ContextParallel context;    // Without a group rows stay whole.
  std::optional<int64_t> document_end;  // Token that ends a document, if attention is limited to documents.
};

// This rank's share of a batch's tokens, on the device.
struct Microbatches {
  std::vector<nn::MicrobatchContext> contexts;
  int64_t valid_tokens = 0;  // Labels that count in the loss, over all contexts.
};

// Makes the microbatches of a batch that is on the CPU. Throws c10::Error if options.rows does not divide the batch.
// Does not wait for the device.
Microbatches make_microbatches(const data::Batch& batch, const MicrobatchOptions& options);

}  // namespace titan::runtime
