#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/config/job_config.h"

namespace titan::runtime {

// LibTorch wants the profiler's first call in a process to come from the main thread: where ranks are threads, this is
// it. Elsewhere the Tracer does it.
void prepare_profiler();

// Records training steps as Chrome traces, for Perfetto and TensorBoard's profiler plugin: LibTorch's operations with
// their shapes, the kernels of a GPU, and Titan's own scopes (worker/comm/trace_scope.h): steps, phases, blocks,
// microbatches and collectives with their bytes.
//
// What is seen is the rank's own thread and those that work for it with its at::ThreadLocalState, as autograd's do.
// LibTorch could record all threads, but stopping that while others are at work is a race that may end the process.
// There is one profiler a process: of ranks that are threads, only rank 0 records.
class Tracer {
 public:
  // `folder`: profiling.save_traces_folder inside the dump folder. `records`: whether this rank is one that does.
  Tracer(const config::Profiling& config, std::string folder, int rank, bool records);
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  void begin_step(int64_t step);  // Counted from 1.
  // The file that was written, iteration_{step}/rank{rank}_trace.json; none: not due. An error leaves no file.
  absl::StatusOr<std::optional<std::string>> end_step(int64_t step);
  // The same when the training ends while it records.
  absl::StatusOr<std::optional<std::string>> finish(int64_t step);

 private:
  absl::StatusOr<std::optional<std::string>> save(int64_t step);

  const config::Profiling config_;
  const std::string folder_;
  const int rank_;
  const bool records_;
  bool prepared_ = false, recording_ = false;
};

}  // namespace titan::runtime
