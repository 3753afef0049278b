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

// Number of allocator events in a snapshot, like torchtitan's. On the CPU they take 4 MB while they are recorded.
inline constexpr size_t kMaxMemoryEvents = 100'000;

// Writes memory snapshots of this rank's device after every profiling.profile_freq steps, like torchtitan:
// FOLDER/iteration_STEP/rankR_memory_snapshot.pickle, for PyTorch's memory viewer. If the rank runs out of memory in a
// step, it writes FOLDER/iteration_STEP_exit, where STEP is the last finished step. Every allocation has the scopes in
// which it was made. Files are written atomically. One that cannot be written only causes a warning. Without
// profiling.enable_memory_snapshot nothing is recorded.
//
// A process has one allocator, so of ranks that are threads only rank 0 writes, and its file has the tensors of all.
// Construct, call and destroy it on the rank's own thread.
class MemorySnapshots {
 public:
  struct Setup {
    std::string folder;  // profiling.save_memory_snapshot_folder inside the dump folder.
    int rank = 0;
    bool writes = true;                            // Whether this rank writes snapshots.
    std::function<void(const std::string&)> say;   // Reports a written file.
    std::function<void(const std::string&)> warn;  // Reports a file that could not be written, and why.
    storage::Files* files = &storage::posix_files();
  };

  // Starts recording. `device` must outlive this.
  MemorySnapshots(const config::ProfilingSection& config, Setup setup, device::Device& device);

  void end_step(int64_t step);  // Counted from 1 over the job's life.

  // Call it inside a catch block after the number of finished steps: writes a last snapshot if memory ran out. Does not
  // throw.
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
