#include "worker/rank/runtime/step/frozen_base.h"

#include <ATen/Parallel.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/rank/nn/nf4.h"
#include "worker/rank/nn/random.h"

namespace titan::runtime {
namespace {

constexpr int64_t kElementsAtOnce = int64_t{1} << 22;

// Finaliser of SplitMix64.
uint64_t mix(uint64_t hash) {
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111eb;
  return hash ^ (hash >> 31);
}

// A box of a tensor as rows of its last dim, with the index of each row's start in the whole tensor.
class Rows {
 public:
  Rows(const std::vector<int64_t>& whole, std::vector<int64_t> offset, const at::Tensor& box)
      : whole_(whole), offset_(std::move(offset)), sizes_(box.sizes().vec()) {}

  int64_t length() const { return sizes_.empty() ? 1 : sizes_.back(); }
  uint64_t begin(int64_t row) const {
    uint64_t index = 0, stride = 1;
    for (size_t d = sizes_.size(); d-- > 0;) {
      const bool last = d + 1 == sizes_.size();
      const int64_t place = offset_[d] + (last ? 0 : row % sizes_[d]);
      if (!last) row /= sizes_[d];
      index += stride * static_cast<uint64_t>(place);
      stride *= static_cast<uint64_t>(whole_[d]);
    }
    return index;
  }

 private:
  const std::vector<int64_t>& whole_;
  std::vector<int64_t> offset_;
  std::vector<int64_t> sizes_;
};

// Computes a sum, so that the split over ranks does not matter. Every storage type is exact in double precision.
uint64_t digest_of_rows(uint64_t key, const Rows& rows, int64_t first_row, const at::Tensor& numbers) {
  const at::Tensor wide = numbers.to(at::kCPU).to(at::kDouble).contiguous();
  const double* values = wide.const_data_ptr<double>();
  const int64_t length = rows.length();
  std::atomic<uint64_t> total = 0;
  at::parallel_for(0, wide.numel() / length, /*grain_size=*/16, [&](int64_t from, int64_t to) {
    uint64_t sum = 0;
    for (int64_t row = from; row < to; ++row) {
      const uint64_t begin = rows.begin(first_row + row);
      for (int64_t i = 0; i < length; ++i) {
        const auto bits = std::bit_cast<uint64_t>(values[row * length + i]);
        sum += mix(mix(key + (begin + static_cast<uint64_t>(i)) * 0x9e3779b97f4a7c15) ^ bits);
      }
    }
    total += sum;
  });
  return total;
}

uint64_t digest_of_box(const std::string& name, const std::vector<int64_t>& whole, const std::vector<int64_t>& offset,
                       const at::Tensor& box, bool packed) {
  const at::Tensor shape = packed ? nn::nf4_unpack(box.narrow(0, 0, 0), at::kFloat) : box;
  std::vector<int64_t> sizes = shape.sizes().vec();
  if (packed) sizes[0] = box.size(0);
  const Rows rows(whole, offset, at::empty(sizes, at::TensorOptions(at::kFloat).device(at::kMeta)));
  const at::Tensor flat = packed ? box : box.reshape({-1, rows.length()});
  const int64_t step = std::max<int64_t>(1, kElementsAtOnce / std::max<int64_t>(1, rows.length()));
  uint64_t sum = 0;
  for (int64_t first = 0; first < flat.size(0); first += step) {
    const at::Tensor some = flat.narrow(0, first, std::min(step, flat.size(0) - first));
    sum += digest_of_rows(nn::stream_key(0, name), rows, first, packed ? nn::nf4_unpack(some, at::kFloat) : some);
  }
  return sum;
}

}  // namespace

std::string digest_of_base(ShardedModel& model, const comm::DeviceMesh& mesh) {
  at::NoGradGuard no_grad;
  uint64_t sum = 0;
  for (const checkpoint::Slice& slice : model.base_slices()) {
    if (!slice.primary || slice.store || slice.local.numel() == 0) continue;
    sum += digest_of_box(slice.key, slice.shape, slice.offset, slice.local, /*packed=*/false);
  }
  for (const parallel::ShardedParameter* placed : model.parameters()) {
    const nn::Parameter& parameter = *placed->parameter;
    if (parameter.packed_row == 0 || !placed->primary || placed->value.numel() == 0) continue;
    sum += digest_of_box("model." + parameter.fqn, parameter.global_shape, placed->global_offset(), placed->value,
                         /*packed=*/true);
  }
  // Gathers the ranks' sums, because a backend may add integers in a type that cannot hold all their digits.
  const comm::Group& world = mesh.group(mesh::Axis::kWorld);
  const at::Device device = model.device();
  const at::Tensor mine = at::scalar_tensor(static_cast<int64_t>(sum), at::kLong).view({1}).to(device);
  const at::Tensor all = at::empty({world.size()}, mine.options());
  world.all_gather(all, mine).wait();
  const at::Tensor here = all.cpu();
  uint64_t total = 0;
  for (int64_t rank = 0; rank < here.numel(); ++rank) total += static_cast<uint64_t>(here[rank].item<int64_t>());
  return absl::StrFormat("%016x", total);
}

nlohmann::json describe_base(const std::string& digest, const std::string& path, const models::AdapterSpec& adapters) {
  return {{"base", digest}, {"base_path", path}, {"rank", adapters.rank}, {"alpha", adapters.alpha}};
}

absl::Status check_base(const nlohmann::json& saved, const nlohmann::json& here) {
  if (!saved.is_object()) return absl::OkStatus();
  if (saved.value("alpha", 0.0) != here.value("alpha", 0.0)) {
    return absl::FailedPreconditionError(absl::StrCat("lora.alpha is ", here.value("alpha", 0.0),
                                                      ", but the checkpoint's adapters were trained with ",
                                                      saved.value("alpha", 0.0)));
  }
  const std::string before = saved.value("base", ""), now = here.value("base", "");
  if (before == now) return absl::OkStatus();
  const auto place = [](const nlohmann::json& one) {
    const std::string path = one.value("base_path", "");
    return path.empty() ? std::string("drawn") : absl::StrCat("loaded from ", path);
  };
  return absl::FailedPreconditionError(
      absl::StrCat("the base model of the adapters is not the one on which they were trained: its digest was ", before,
                   " (", place(saved), ") and is ", now, " (", place(here),
                   "). Give the job the same initial weights, debug.seed and "
                   "lora.base as before, or another job.dump_folder to train new adapters"));
}

}  // namespace titan::runtime
