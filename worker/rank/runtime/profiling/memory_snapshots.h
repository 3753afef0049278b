#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/io/storage/file.h"
#include "common/plan/config/job_config.h"
#include "worker/rank/device/device.h"
#include "worker/rank/device/trace_scope.h"
#include "worker/rank/runtime/memory/device_memory.h"

namespace titan::runtime {

// So many of the allocator's events a snapshot goes back, as torchtitan's. On the CPU they take 4 MB while they are
// kept.
inline constexpr size_t kMaxMemoryEvents = 100'000;

// Where the memory of this rank's device goes, written down after every profiling.profile_freq steps as torchtitan
// does: FOLDER/iteration_STEP/rankR_memory_snapshot.pickle, for PyTorch's memory viewer, and when the rank runs out of
// memory in a step FOLDER/iteration_STEP_exit, of the steps before it. Every allocation carries the scopes that it was
// made in. Files appear whole. One that cannot be written is a warning and no more. Without
// profiling.enable_memory_snapshot nothing is recorded.
//
// A process has one allocator: of ranks that are threads only rank 0 writes, and its file holds the tensors of all.
// Made, called and destroyed by the rank's own thread.
class MemorySnapshots {
 public:
  struct Setup {
    std::string folder;  // profiling.save_memory_snapshot_folder inside the dump folder.
    int rank = 0;
    bool writes = true;                            // Whether this rank is one that does.
    std::function<void(const std::string&)> say;   // Which file was written.
    std::function<void(const std::string&)> warn;  // Which was not, and why.
    storage::Files* files = &storage::posix_files();
  };

  // Records from now on. `device` must outlive it.
  MemorySnapshots(const config::Profiling& config, Setup setup, device::Device& device);

  void end_step(int64_t step);  // Counted from 1 over the job's life.

  // Inside a catch block, after so many finished steps: writes a last one if the memory was too small. Does not throw.
  void failed(int64_t finished_steps);

 private:
  void save(const std::string& iteration);
  absl::Status write(const std::string& folder, const std::string& path) const;

  const int64_t steps_between_;
  const Setup setup_;
  std::optional<device::ScopeNames> names_;
  std::unique_ptr<MemoryHistory> history_;  // Null: this rank writes nothing.
};

}  // namespace titan::runtime
