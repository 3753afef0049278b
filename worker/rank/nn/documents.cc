#include "worker/rank/nn/documents.h"

namespace titan::nn {

at::Tensor number_documents(const at::Tensor& tokens, int64_t eos_id) {
  const at::Tensor ends = tokens.eq(eos_id).to(at::kLong);
  return ends.cumsum(1) - ends;  // The ends before a token.
}

}  // namespace titan::nn
