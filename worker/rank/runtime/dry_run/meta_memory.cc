#include "worker/rank/runtime/dry_run/meta_memory.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <atomic>

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
  // No address, but a context whose end is the tensor's.
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

}  // namespace titan::runtime
