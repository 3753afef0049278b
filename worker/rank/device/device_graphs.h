#pragma once

#include <functional>
#include <memory>

namespace titan::device {

// Work that a device was told instead of given: it can be given to it as a whole, any number of times, by one launch.
// Every time it reads and writes the addresses of the time when it was captured. What the host did in between (choosing
// kernels, building autograd's graph) is not part of it.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  // Behind everything that the current stream was given.
  virtual void replay() = 0;
};

// Where the memory is that captured work allocates. It stays the device's while the graph lives, and what the work left
// in it stays until the next replay
enum class GraphMemory {
  kOwn,     // of this graph;
  kShared,  // of any graph with shared memory. A tensor there must not outlive its capture: its address may.
};

// A device::Device that has graphs is one of these as well.
class DeviceGraphs {
 public:
  virtual ~DeviceGraphs() = default;

  // Runs `work` with the device told, not given: the numbers in its tensors are undefined. What it reads and has not
  // allocated itself must stay at its address for as long as the graph is replayed. Throws what `work` throws, and
  // c10::Error for work that cannot be captured (what the host waits for); the device can be used afterwards.
  virtual std::unique_ptr<DeviceGraph> capture(const std::function<void()>& work, GraphMemory memory) = 0;
};

// Work is being captured on this thread while one lives.
class Capturing {
 public:
  Capturing();
  ~Capturing();
  Capturing(const Capturing&) = delete;
  Capturing& operator=(const Capturing&) = delete;
};

// For layers whose work depends on numbers that the host reads, `what`: another step's may be others, so this cannot be
// captured. Throws while something is.
void host_decides_by(const char* what);

}  // namespace titan::device
