#pragma once

#include <functional>
#include <memory>

namespace titan::device {

// A captured graph of device work: one launch executes it, any number of times. Each replay reads and writes the
// addresses of the capture. Work of the host in between (choosing kernels, building autograd's graph) is not part of
// it.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  // Queues the work on the current stream.
  virtual void replay() = 0;
};

// Where captured work allocates its memory. The memory stays allocated while the graph lives, and its contents stay
// until the next replay.
enum class GraphMemory {
  kOwn,     // Memory of this graph.
  kShared,  // Memory of all graphs with this setting. A tensor in it must not outlive its capture; its address may.
};

// Additional base class of a device::Device that supports graphs.
class DeviceGraphs {
 public:
  virtual ~DeviceGraphs() = default;

  // Captures `work` without executing it: the contents of its tensors are undefined. Memory that it reads and has not
  // allocated must stay at its address while the graph is replayed. Throws what `work` throws, and c10::Error for work
  // that cannot be captured (when the host would wait); the device remains usable.
  virtual std::unique_ptr<DeviceGraph> capture(const std::function<void()>& work, GraphMemory memory) = 0;
};

// Marks that work is being captured on this thread, while it lives.
class CaptureGuard {
 public:
  CaptureGuard();
  ~CaptureGuard();
  CaptureGuard(const CaptureGuard&) = delete;
  CaptureGuard& operator=(const CaptureGuard&) = delete;
};

// Call this in layers whose work depends on numbers `what` that the host reads: they may differ in the next step, so
// the work cannot be captured. Throws during a capture.
void check_not_capturing(const char* what);

}  // namespace titan::device
