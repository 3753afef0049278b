#pragma once

// Checkpointer saves and loads a job's state in {dump}/{folder}/step-N. The trainer uses no other class of this folder.
// spec_for_load() finds, before the model is built, which of its numbers come from the weights of that load.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/plan/models/model_spec.h"
#include "worker/rank/checkpoint/shards/slice.h"
#include "worker/rank/checkpoint/steps/setup.h"

namespace titan::checkpoint {

class Checkpointer {
 public:
  // Errors: InvalidArgument, names the key (keep_latest_k = 1, unknown exclude_from_loading, ...); Unavailable if the
  // job's store cannot be reached.
  static absl::StatusOr<std::unique_ptr<Checkpointer>> create(Setup setup);
  // Abandons a save in flight that waits for other ranks. For a clean exit call wait() first.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // Collective. Loads the newest full step of the folder that every rank can read and verify; else its step-0 seed;
  // else initial_load_path or, with initial_load_in_hf, Hugging Face weights there or in hf_assets_path; else nothing
  // (fresh). load_step names one step instead.
  //
  // A rejected step may leave data in live tensors; the step that is loaded in its place overwrites it. Where something
  // other than a step may follow, tensors are written only after all ranks have verified what they need. After an error
  // they are undefined.
  //
  // Errors: NotFound (named step or path, or checkpoints_are_gone()), FailedPrecondition (does not fit this model,
  // unless the message says otherwise; "MODEL_MISMATCH: ..." if it is another model's), DataLoss (named step is
  // corrupt), Unavailable (a rank is gone).
  absl::StatusOr<LoadResult> load(std::vector<Slice>& slices, StatePart part = StatePart::kAll);

  // Collective; every rank calls it for the same steps. Waits for the previous save. With async_mode disabled it
  // returns when the step is committed. Otherwise it returns when the tensors are copied, and a background thread does
  // the rest; with async_with_pinned_mem on a GPU, when the copies are queued on the GPU (see before_update).
  //
  // A save that fails (disk full, ...) on any rank fails on all: event checkpoint_failed, earlier checkpoints stay, OK
  // is returned (see failed_saves_allowed). Errors: Unavailable, names the rank if its process is gone;
  // FailedPrecondition "fenced: ..." if a newer attempt owns the folder: exit with kExitFenced.
  absl::Status save(int64_t step, const std::vector<Slice>& slices, TrainState state,
                    CheckpointKind kind = CheckpointKind::kFull);

  // Collective, synchronous. Makes the save at training.steps, as last_save_model_only, export_dtype and
  // last_save_in_hf require. If storage fails (disk full, I/O error, ...), all ranks retry together, each time with a
  // warning, for last_save_retry_seconds. Once a stop was requested (rank 0 decides), they retry for at most
  // time_left_after_stop. Returns any error.
  absl::Status save_last(int64_t step, const std::vector<Slice>& slices, TrainState state);

  // Collective, synchronous. Saves a full step before the ranks exit. Retries like save_last(), but for at most
  // `timeout` (rank 0's value decides). Returns any error.
  absl::Status save_before_stop(int64_t step, const std::vector<Slice>& slices, TrainState state,
                                absl::Duration timeout);

  // Call it before queuing work that writes to a slice's tensor: on the device, that work waits until the save in
  // flight has copied the slices. Never blocks.
  void before_update();

  // Waits for the save in flight and returns its status by the rules of save(). Without one, returns OK or "fenced:
  // ...".
  absl::Status wait();

  bool save_in_flight() const;
  int64_t last_committed_step() const;  // Newest full step that this object committed; -1 before the first.

 private:
  class Impl;
  explicit Checkpointer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Rank 0, before the model is built: returns `spec` with the numbers of the weights that a load will most likely begin
// with (see takes_numbers_from_weights). `taken` says which numbers differ and where they come from; it is unchanged if
// none does. Reads names, a manifest or a config.json. What it cannot read changes nothing, and the load reports why.
models::ModelSpec spec_for_load(const Setup& setup, const models::ModelSpec& spec, std::string& taken);

}  // namespace titan::checkpoint
