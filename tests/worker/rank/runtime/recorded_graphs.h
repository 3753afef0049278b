#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "worker/rank/comm/communicator_splits.h"
#include "worker/rank/device/device.h"
#include "worker/rank/device/device_graphs.h"

namespace titan::testing {

// Counts for all devices of a world.
struct GraphCounts {
  std::atomic<int> captures{0}, replays{0}, failures{0};
  std::atomic<int> recorded{0};  // Operations in all graphs, including those of repeat_on_replay().
};

// Registers work that this thread has just done outside LibTorch's dispatcher, as Titan's own kernels do. Each replay
// of the graph that the thread captures repeats it. `operation` may use only memory that belongs to the graph or does
// not move; what it writes during the capture is not restored.
void repeat_on_replay(std::function<void()> operation);
// Returns whether this thread captures.
bool is_captured();

// Memory that was allocated during a capture. It lives as long as the graph and all tensors that use it.
struct DeviceBlock {
  std::shared_ptr<c10::DataPtr> memory;
  size_t bytes = 0;
};

// The CPU as a device with graphs: the same contract as a GPU's, strictly enforced. CaptureGuard records each operation
// below LibTorch's autograd, with the memory that it reads and writes; a replay calls the same operations on the same
// memory, and no host code of the layers. As on a GPU
//  - a capture has no effects: what the work wrote outside is restored, its own memory holds garbage;
//  - memory that the work did not allocate belongs to others: a replay throws if it is gone or has moved;
//  - shared memory holds garbage when the next replay begins;
//  - operations that the host would have to wait for cannot be captured.
// A replay counts as one call (tests/testing/call_counter.h), regardless of its content.
class RecordingDevice final : public device::Device, public device::DeviceGraphs {
 public:
  RecordingDevice(std::unique_ptr<device::Device> cpu, std::shared_ptr<GraphCounts> counts);
  ~RecordingDevice() override;

  std::unique_ptr<device::DeviceGraph> capture(const std::function<void()>& work, device::GraphMemory memory) override;
  // Makes the captures from this number on (counted from 0) fail in the middle.
  void fail_from(int capture) { fail_from_ = capture; }

  at::Device torch_device() const override { return cpu_->torch_device(); }
  c10::intrusive_ptr<c10d::Backend> make_backend(const device::BackendOptions& options) override {
    return cpu_->make_backend(options);
  }
  std::optional<std::vector<c10::intrusive_ptr<c10d::Backend>>> open_groups(
      const std::vector<comm::Connection>& connections, const device::BackendOptions& world) override {
    return cpu_->open_groups(connections, world);
  }
  void resize_storage(c10::StorageImpl& storage, int64_t bytes) override { cpu_->resize_storage(storage, bytes); }
  int64_t peak_memory_bytes() const override { return cpu_->peak_memory_bytes(); }
  int64_t total_memory_bytes() const override { return cpu_->total_memory_bytes(); }

 private:
  const std::unique_ptr<device::Device> cpu_;
  const std::shared_ptr<GraphCounts> counts_;
  // The allocations of each graph with shared memory.
  const std::shared_ptr<std::vector<DeviceBlock>> shared_ = std::make_shared<std::vector<DeviceBlock>>();
  int captures_ = 0;
  int fail_from_ = -1;
};

}  // namespace titan::testing
