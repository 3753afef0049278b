#include "worker/rank/runtime/dry_run/meta_tensors.h"

#include <c10/core/Allocator.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "worker/rank/nn/layers.h"

namespace titan::runtime {
namespace {

std::atomic<int64_t> live{0};
std::atomic<int64_t> peak{0};

void forget_block(void* context) {
  auto* bytes = static_cast<int64_t*>(context);
  live.fetch_sub(*bytes);
  delete bytes;
}

class MetaMemory final : public c10::Allocator {
 public:
  // Allocates no memory. The context counts the bytes until the tensor is freed.
  c10::DataPtr allocate(size_t count) override {
    const c10::Device device(c10::DeviceType::Meta);
    if (count == 0) return {nullptr, device};
    const auto bytes = static_cast<int64_t>(count);
    const int64_t now = live.fetch_add(bytes) + bytes;
    int64_t highest = peak.load();
    while (now > highest && !peak.compare_exchange_weak(highest, now)) continue;
    return {nullptr, new int64_t(bytes), &forget_block, device};
  }
  void copy_data(void* /*to*/, const void* /*from*/, size_t /*count*/) const override {}
};

}  // namespace

void use_meta_memory() {
  static MetaMemory allocator;
  c10::SetAllocator(c10::DeviceType::Meta, &allocator, /*priority=*/1);
}

MetaMemoryCounts meta_memory() { return {live.load(), peak.load()}; }

void reset_meta_peak() { peak.store(live.load()); }

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct FusedNorm : torch::autograd::Function<FusedNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const std::optional<at::Tensor>& weight,
                            int64_t size) {
    const at::Tensor factors =
        at::empty({input.numel() / size}, input.options().dtype(nn::accumulate_type(input.scalar_type())));
    context->save_for_backward({input, weight.value_or(at::Tensor()), factors});
    return at::empty(input.sizes(), input.options());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1];
    if (!gradients[0].defined()) return {{}, {}, {}};
    return {at::empty(input.sizes(), input.options()),
            weight.defined() ? at::empty(weight.sizes(), weight.options()) : at::Tensor(),
            {}};
  }
};

at::Tensor rms_norm(const at::Tensor& input, c10::SymIntArrayRef shape, const std::optional<at::Tensor>& weight,
                    std::optional<double> /*eps*/) {
  int64_t size = 1;
  for (const c10::SymInt& length : shape) size *= length.expect_int();
  return FusedNorm::apply(input, weight, size);
}

}  // namespace

void use_fused_meta_norm(bool fused) {
  static std::optional<torch::Library> library;  // Its end takes the function back.
  if (!fused) return library.reset();
  if (library.has_value()) return;
  library.emplace(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradMeta, __FILE__, __LINE__);
  library->impl("rms_norm", rms_norm);
}

}  // namespace titan::runtime
