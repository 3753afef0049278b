#pragma once

// Tracer records training steps as Chrome traces, on the schedule of [profiling] or when a running rank is asked for
// one.

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

// What the profiler does in one training step, as torch.profiler's schedule and torchtitan have it: of every
// profiling.profile_freq steps the last profiler_active are recorded, those before them warm the profiler up
// (profiler_warmup), and the rest runs undisturbed. Steps count from 1 over the job's life, so an attempt that resumes
// records the steps that an undisturbed one would.
struct TraceWork {
  bool warms_up = false;
  bool records = false;
  bool saves = false;  // After this step.
};
TraceWork trace_work(const config::Profiling& config, int64_t step);

// Where somebody may ask a running rank for a trace: its end of the beacon's TraceRequest. While nobody does, a step
// costs two loads from memory that this rank has already.
class TraceDesk {
 public:
  struct Order {
    int64_t first_step = 0, last_step = 0;
    std::string path;  // For the file.
  };

  // The files go to the run folder, where the node's daemon fetches them.
  TraceDesk(rank_protocol::TraceRequest& words, std::string run_folder, int rank);

  // The order whose warm-up is `step`, which has not begun. One that comes too late for its steps gets the next ones.
  std::optional<Order> take(int64_t step);
  // Of the order that was taken last.
  void tell(rank_protocol::TraceState state);
  void written(int64_t last_step);

 private:
  rank_protocol::TraceRequest& words_;
  const std::string run_folder_;
  const int rank_;
  uint64_t taken_ = 0;
};

// LibTorch wants the profiler's first call in a process to come from the main thread: where ranks are threads, this is
// it. Elsewhere the Tracer does it.
void prepare_profiler();

// Records training steps as Chrome traces, for Perfetto and TensorBoard's profiler plugin: LibTorch's operations with
// their shapes, the kernels of a GPU, and Titan's own scopes (worker/rank/device/trace_scope.h): steps, phases, blocks,
// microbatches and collectives with their bytes.
//
// What LibTorch sees is the rank's own thread and those that work for it with its at::ThreadLocalState, as autograd's
// do, since the rank waits for them. It could record all threads, but stopping that while others are at work is a race
// that may end the process, and so would be to lend the state to a thread for whose work the rank does not wait: each
// thread writes to a queue of its own, which the profiler empties and frees when it stops, whoever is in the middle of
// an operation. What such threads do (data, checkpoints), and how long each collective was under way, Titan records
// itself (trace::Spans) and adds when the file is there. There is one profiler a process: of ranks that are threads,
// only rank 0 records.
//
// A trace that is asked for (TraceDesk) and the schedule share it. What records goes on to its end first; then an order
// that is due goes before the schedule, whose round loses the steps that the order takes.
class Tracer {
 public:
  // `folder`: profiling.save_traces_folder inside the dump folder. `records`: whether this rank is one that does.
  // `desk`: where traces may be asked for, if anywhere. `spans`: what this rank does beside its own thread; may be
  // null.
  Tracer(const config::Profiling& config, std::string folder, TraceOwner owner, bool records,
         std::optional<TraceDesk> desk = std::nullopt, std::shared_ptr<trace::Spans> spans = nullptr);
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  struct Saved {
    std::string path;  // On schedule iteration_{last step}/rank{rank}_trace.json.
    int64_t first_step = 0, last_step = 0;
    int64_t bytes = 0;
    bool asked_for = false;
  };

  void begin_step(int64_t step);  // Counted from 1.
  bool recording() const { return recording_; }
  // What was written; none: not due. An error leaves no file.
  absl::StatusOr<std::optional<Saved>> end_step(int64_t step);
  // The same when the training ends while it records.
  absl::StatusOr<std::optional<Saved>> finish(int64_t step);

 private:
  TraceWork work(int64_t step) const;
  absl::StatusOr<std::optional<Saved>> save(int64_t step);
  absl::StatusOr<int64_t> write(const std::string& path);
  void tell(rank_protocol::TraceState state);

  const config::Profiling config_;
  const std::string folder_;
  const TraceOwner owner_;
  const bool records_;
  const std::shared_ptr<trace::Spans> spans_;
  std::optional<TraceDesk> desk_;
  std::optional<TraceDesk::Order> order_;  // Taken, and not saved yet.
  bool prepared_ = false, recording_ = false;
  int64_t first_step_ = 0;  // Of what is being recorded.
};

}  // namespace titan::runtime
