#include "worker/runtime/step/microbatches.h"

#include "worker/nn/documents.h"
#include "worker/nn/loss.h"

namespace titan::runtime {

std::vector<nn::MicrobatchContext> make_microbatches(const data::Batch& batch, const MicrobatchOptions& options) {
  const int64_t rows = options.rows > 0 ? options.rows : batch.tokens.size(0);
  TORCH_CHECK(batch.tokens.size(0) % rows == 0, "a batch of ", batch.tokens.size(0), " rows in microbatches of ", rows);
  std::vector<nn::MicrobatchContext> microbatches;
  for (int64_t first = 0; first < batch.tokens.size(0); first += rows) {
    nn::MicrobatchContext whole;
    whole.tokens = batch.tokens.narrow(0, first, rows).to(options.device);
    whole.labels = batch.labels.narrow(0, first, rows).to(options.device);
    if (options.document_end) {  // They stay on the CPU, where attention reads them to find its blocks.
      whole.documents = nn::number_documents(batch.tokens.narrow(0, first, rows), *options.document_end);
    }
    microbatches.push_back(options.context.group == nullptr ? std::move(whole)
                                                            : parallel::take_share(whole, options.context));
  }
  return microbatches;
}

int64_t count_valid(const std::vector<nn::MicrobatchContext>& microbatches) {
  int64_t count = 0;
  for (const nn::MicrobatchContext& one : microbatches) count += nn::count_valid(one.labels).item<int64_t>();
  return count;
}

}  // namespace titan::runtime
