#pragma once

// Tracer records training steps as Chrome traces, on the schedule of [profiling] or when a trace is requested from a
// running rank.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "common/rank_protocol/beacon.h"
#include "worker/rank/runtime/profiling/trace_file.h"
#include "worker/rank/trace/spans.h"

namespace titan::runtime {

// The profiler's work in one training step, as in torch.profiler's schedule and torchtitan. Of every
// profiling.profile_freq steps the last profiler_active are recorded, the profiler_warmup steps before them warm up the
// profiler, and the others run without it. Steps count from 1 over the job's life, so an attempt that resumes records
// the same steps as an uninterrupted one.
struct ProfilerAction {
  bool warms_up = false;
  bool records = false;
  bool saves = false;  // After this step.
};
ProfilerAction profiler_action(const config::ProfilingSection& config, int64_t step);

// The rank's end of the beacon's TraceRequest, through which traces are requested from a running rank. Without a
// request a step costs two loads from memory in this rank's cache.
class TraceRequestReader {
 public:
  struct Order {
    int64_t first_step = 0, last_step = 0;
    std::string path;  // Path of the file.
  };

  // The files go to the run folder, from which the node's daemon fetches them.
  TraceRequestReader(rank_protocol::TraceRequest& words, std::string run_folder, int rank);

  // Returns an order that warms up in `step`, which has not begun. An order that arrives too late for its steps gets
  // the next ones.
  std::optional<Order> take(int64_t step);
  // Publishes the state of the order that was taken last.
  void report(rank_protocol::TraceState state);
  void written(int64_t last_step);

 private:
  rank_protocol::TraceRequest& words_;
  const std::string run_folder_;
  const int rank_;
  uint64_t taken_ = 0;
};

// Call it on the main thread if ranks are threads: LibTorch requires that the profiler's first call in a process comes
// from the main thread. Otherwise the Tracer makes it.
void prepare_profiler();

// Records training steps as Chrome traces, for Perfetto and TensorBoard's profiler plugin: LibTorch's operations with
// their shapes, the kernels of a GPU, and Titan's scopes (worker/rank/device/trace_scope.h), which are steps, phases,
// blocks, microbatches, and collectives with their bytes.
//
// LibTorch records the rank's thread and the threads that work for it with its at::ThreadLocalState, such as
// autograd's, because the rank waits for them. Recording other threads would be a race that can crash the process: each
// thread writes to its own queue, which the profiler empties and frees when it stops, even in the middle of an
// operation. This also holds for lending the state to a thread for which the rank does not wait. So Titan itself
// records what such threads do (data, checkpoints) and how long each collective was in flight (trace::SpanRecorder),
// and adds it to the finished file. There is one profiler per process, so of ranks that are threads only rank 0
// records.
//
// Requested traces (TraceRequestReader) and the schedule share the profiler. A recording in progress is completed
// first. Then an order that is due precedes the schedule, whose cycle loses the steps that the order takes.
class Tracer {
 public:
  // `folder`: profiling.save_traces_folder inside the dump folder. `records`: whether this rank records. `requests`:
  // where traces are requested, if anywhere. `spans`: this rank's work outside its own thread; may be null.
  Tracer(const config::ProfilingSection& config, std::string folder, TraceOwner owner, bool records,
         std::optional<TraceRequestReader> requests = std::nullopt,
         std::shared_ptr<trace::SpanRecorder> spans = nullptr);
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  struct Saved {
    std::string path;  // On the schedule {folder}/iteration_{last step}/rank{rank}_trace.json.
    int64_t first_step = 0, last_step = 0;
    int64_t bytes = 0;
    bool on_request = false;
  };

  void begin_step(int64_t step);  // Counted from 1.
  bool recording() const { return recording_; }
  // Returns the written file, or none if none is due. An error leaves no file.
  absl::StatusOr<std::optional<Saved>> end_step(int64_t step);
  // Same, for when training ends while a trace is being recorded.
  absl::StatusOr<std::optional<Saved>> finish(int64_t step);

 private:
  ProfilerAction work(int64_t step) const;
  absl::StatusOr<std::optional<Saved>> save(int64_t step);
  absl::StatusOr<int64_t> write(const std::string& path);
  void report(rank_protocol::TraceState state);

  const config::ProfilingSection config_;
  const std::string folder_;
  const TraceOwner owner_;
  const bool records_;
  const std::shared_ptr<trace::SpanRecorder> spans_;
  std::optional<TraceRequestReader> requests_;
  std::optional<TraceRequestReader::Order> order_;  // Taken and not yet saved.
  bool prepared_ = false, recording_ = false;
  int64_t first_step_ = 0;  // First step of the current recording.
};

}  // namespace titan::runtime
