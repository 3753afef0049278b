#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace titan::testing {

// Counts the live bytes that a thread, or a thread with its at::ThreadLocalState, allocated through LibTorch's CPU
// allocator, wherever they are freed. It measures from outside, so that no code reports about itself. Each thread may
// have one meter at a time; it must outlive the thread's tensors.
class AllocationMeter {
 public:
  // Counts the calling thread's allocations during its lifetime.
  class Scope {
   public:
    explicit Scope(AllocationMeter& meter) : guard_(c10::DebugInfoKind::TEST_INFO_2, std::make_shared<Current>(meter)) {
      install();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const c10::DebugInfoGuard guard_;
  };

  // Returns the live bytes and resets the peak to them.
  int64_t begin() {
    std::lock_guard lock(mutex_);
    peak_ = live_;
    return live_;
  }
  int64_t highest() {
    std::lock_guard lock(mutex_);
    return peak_;
  }

 private:
  struct Current final : c10::DebugInfoBase {
    explicit Current(AllocationMeter& one) : meter(&one) {}
    AllocationMeter* const meter;
  };

  void add(int64_t bytes) {
    std::lock_guard lock(mutex_);
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }

  class Allocator final : public c10::Allocator {
   public:
    explicit Allocator(c10::Allocator* inner) : inner_(inner) {}
    // The pointer is its own context, because LibTorch's raw allocations require it: oneDNN makes them on processors
    // with bf16.
    c10::DataPtr allocate(size_t bytes) override {
      Block block{inner_->allocate(bytes), static_cast<int64_t>(bytes), current()};
      void* const data = block.data.get();
      if (data == nullptr) return std::move(block.data);  // Nothing was allocated.
      if (block.meter != nullptr) block.meter->add(block.bytes);
      std::lock_guard lock(mutex_);
      blocks_.emplace(data, std::move(block));
      return {data, data, &release, c10::DeviceType::CPU};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &release; }
    void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

   private:
    struct Block {
      c10::DataPtr data;
      int64_t bytes;
      AllocationMeter* meter;
    };
    static void release(void* data) {
      std::unique_lock lock(mutex_);
      const auto freed = blocks_.extract(data);
      lock.unlock();
      if (freed.empty()) return;
      const Block& block = freed.mapped();
      if (block.meter != nullptr) block.meter->add(-block.bytes);
    }
    c10::Allocator* inner_;
    static inline std::mutex mutex_;
    static inline auto& blocks_ = *new std::unordered_map<void*, Block>;  // Never destroyed, because tensors are freed
                                                                          // until the end of the process.
  };

  static AllocationMeter* current() {
    auto* info = static_cast<Current*>(c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::TEST_INFO_2));
    return info == nullptr ? nullptr : info->meter;
  }
  static void install() {
    static Allocator* allocator = [] {
      auto* counting = new Allocator(c10::GetCPUAllocator());
      c10::SetCPUAllocator(counting, /*priority=*/1);
      return counting;
    }();
    (void)allocator;
  }

  std::mutex mutex_;
  int64_t live_ = 0;
  int64_t peak_ = 0;
};

}  // namespace titan::testing
