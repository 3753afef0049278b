#include "worker/rank/runtime/step/microbatches.h"

#include <c10/util/Exception.h>

#include <utility>

namespace titan::runtime {

Microbatches make_microbatches(const model::Objective& objective, const data::Batch& batch,
                               const MicrobatchOptions& options) {
  const int64_t all = batch.rows(), rows = options.rows > 0 ? options.rows : all;
  TORCH_CHECK(all % rows == 0, "a batch of ", all, " rows cannot be divided into microbatches of ", rows);
  Microbatches made;
  for (int64_t first = 0; first < all; first += rows) {
    model::Microbatch one = objective.microbatch(batch.narrow(first, rows), options);
    made.loss_terms += one.loss_terms;
    made.contexts.push_back(std::move(one.context));
  }
  return made;
}

}  // namespace titan::runtime
