#include "worker/rank/data/loader/batch_source.h"

#include <c10/util/Exception.h>

#include "absl/strings/str_join.h"

namespace titan::data {

const at::Tensor& Batch::at(const std::string& name) const {
  const auto found = tensors_.find(name);
  TORCH_CHECK(found != tensors_.end() && found->second.defined(), "the batch has no tensor \"", name, "\"; it has ",
              absl::StrJoin(tensors_, ", ", [](std::string* out, const auto& one) { out->append(one.first); }));
  return found->second;
}

bool Batch::has(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found != tensors_.end() && found->second.defined();
}

int64_t Batch::rows() const {
  for (const auto& [name, tensor] : tensors_) {
    if (tensor.defined()) return tensor.size(0);
  }
  return 0;
}

Batch Batch::narrow(int64_t first, int64_t count) const {
  Batch part;
  for (const auto& [name, tensor] : tensors_) {
    if (tensor.defined()) part.tensors_[name] = tensor.narrow(0, first, count);
  }
  return part;
}

}  // namespace titan::data
