#include "worker/rank/checkpoint/saving/staging.h"

#include <ATen/ATen.h>

#include "absl/strings/match.h"
#include "worker/rank/checkpoint/shards/narrowing.h"
#include "worker/rank/device/trace_scope.h"

namespace titan::checkpoint {

bool is_model(const Slice& slice) { return absl::StartsWith(slice.key, "model."); }

void stage(const std::vector<Slice>& slices, CheckpointKind kind, std::optional<at::ScalarType> cast, Copy copy,
           std::vector<Staged>& parts, CopyStream* copies, std::vector<std::string>* warnings) {
  const device::TraceScope trace([] { return "stage checkpoint"; });
  const at::NoGradGuard no_grad;
  std::vector<Staged> old = std::move(parts);
  parts.clear();
  if (copies != nullptr) copies->follow();
  for (const Slice& slice : slices) {
    if (!slice.primary || slice.local.numel() == 0 || (kind == CheckpointKind::kModel && !is_model(slice))) continue;
    const at::ScalarType own = slice.local.scalar_type();
    const at::ScalarType dtype = narrowed_type(slice.key, own, cast.value_or(own));
    at::Tensor data = slice.local.detach();
    if (dtype != own) {
      Narrowing narrowing;
      data = narrowing.cast(data, dtype);
      if (warnings != nullptr) judge(slice.key, narrowing, Overflow::kWarn, *warnings).IgnoreError();
    }
    if (copy != Copy::kWhereNeeded || !data.is_cpu() || data.scalar_type() != dtype || !data.is_contiguous()) {
      const bool async = copies != nullptr && copies->takes(data);
      at::Tensor buffer;
      if (parts.size() < old.size()) buffer = old[parts.size()].data;
      if (!buffer.defined() || buffer.sizes() != data.sizes() || buffer.scalar_type() != dtype) {
        buffer = async ? copies->make_buffer(data.sizes(), dtype) : at::empty(data.sizes(), dtype);
      }
      if (async) {
        copies->copy(buffer, data);
      } else {
        buffer.copy_(data);
      }
      data = buffer;
    }
    parts.push_back({slice.key, slice.shape, slice.offset, std::move(data), slice.form});
  }
  if (copies != nullptr) copies->mark();
}

at::ScalarType export_type(const config::CheckpointSection& config) {
  if (config.export_dtype == "float16") return at::kHalf;
  if (config.export_dtype == "bfloat16") return at::kBFloat16;
  return at::kFloat;
}

}  // namespace titan::checkpoint
