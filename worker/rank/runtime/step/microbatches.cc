#include "worker/rank/runtime/step/microbatches.h"

#include <memory>

#include "worker/rank/device/host_waits.h"
#include "worker/rank/nn/attention_fused.h"
#include "worker/rank/nn/attention_pairs.h"
#include "worker/rank/nn/loss.h"

namespace titan::runtime {
namespace {

int64_t valid_on_host(const at::Tensor& labels) { return *nn::count_valid(labels).const_data_ptr<int64_t>(); }

}  // namespace

Microbatches make_microbatches(const data::Batch& batch, const MicrobatchOptions& options) {
  const int64_t rows = options.rows > 0 ? options.rows : batch.tokens.size(0);
  TORCH_CHECK(batch.tokens.size(0) % rows == 0, "a batch of ", batch.tokens.size(0),
              " rows cannot be divided into microbatches of ", rows);
  Microbatches made;
  for (int64_t first = 0; first < batch.tokens.size(0); first += rows) {
    nn::MicrobatchContext one;
    one.tokens = batch.tokens.narrow(0, first, rows);
    one.labels = batch.labels.narrow(0, first, rows);
    if (options.document_end) {  // Documents stay on the CPU, where attention reads them to find its blocks.
      one.documents = batch.documents.defined() ? batch.documents.narrow(0, first, rows)
                                                : nn::number_documents(one.tokens, *options.document_end);
      one.flash_calls = std::make_shared<nn::FlashCalls>();
    }
    if (options.context.group != nullptr) one = parallel::shard_microbatch(one, options.context);
    made.valid_tokens += valid_on_host(one.labels);
    one.tokens = device::copy_async(one.tokens, options.device);
    one.labels = device::copy_async(one.labels, options.device);
    one.positions = device::copy_async(one.positions, options.device);
    made.contexts.push_back(std::move(one));
  }
  return made;
}

}  // namespace titan::runtime
