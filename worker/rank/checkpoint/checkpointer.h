#pragma once

// Checkpointer saves and loads a job's state in {dump}/{folder}/step-N; of this folder the trainer uses no other class.
// model_of_start() finds, before the model is built, the numbers that it takes over from the weights of that load.

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
  // Errors: InvalidArgument naming the key (keep_latest_k = 1, unknown exclude_from_loading, ...), NotFound for a bad
  // path.
  static absl::StatusOr<std::unique_ptr<Checkpointer>> create(Setup setup);
  // Gives up a save in flight that waits for other ranks; call wait() first on a clean exit.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // Collective. Precedence: newest full step of the folder that every rank can read and verify; else its step-0 seed;
  // else initial_load_path; else Hugging Face weights under initial_load_in_hf; else fresh. load_step names one step
  // instead. What a rejected step leaves in live tensors is overwritten by the step that is loaded in its place; where
  // something else may follow, they are written only after all ranks verified what they need. After an error they are
  // undefined. Errors: NotFound (named step or path), FailedPrecondition (does not fit this model, unless another
  // reason; "MODEL_MISMATCH: ..." when it says that it is another model's), DataLoss (named step is corrupt),
  // Unavailable (a rank is gone).
  absl::StatusOr<LoadResult> load(std::vector<Slice>& slices, Part part = Part::kAll);

  // Collective; every rank calls it for the same steps. Waits for the save before. async_mode disabled: returns when
  // committed. Otherwise returns when the tensors are copied and a background thread does the rest; with
  // async_with_pinned_mem on a GPU when the GPU knows that it is to copy them (see before_update). A save that fails
  // (disk full, ...) on any rank fails on all: event checkpoint_failed, earlier checkpoints stay, Ok is returned (see
  // failed_saves_allowed). Errors: Unavailable, naming it, when another rank's process is gone; FailedPrecondition
  // "fenced: ..." when a newer attempt owns the folder: exit with kExitFenced.
  absl::Status save(int64_t step, const std::vector<Slice>& slices, TrainState state, Kind kind = Kind::kFull);

  // Collective, synchronous: the save at training.steps by last_save_model_only, export_dtype, last_save_in_hf. When
  // storage fails (disk full, I/O error, ...) all ranks try again together, each time with a warning, for
  // last_save_retry_seconds, once a stop was asked for (rank 0's word counts) for timeout_after_stop at most. Returns
  // any error.
  absl::Status save_last(int64_t step, const std::vector<Slice>& slices, TrainState state);

  // Collective, synchronous: a full step before the ranks leave, tried again like the last one, but for no longer than
  // `timeout` (rank 0's counts). Returns any error.
  absl::Status save_before_stop(int64_t step, const std::vector<Slice>& slices, TrainState state,
                                absl::Duration timeout);

  // To be called before work is queued that writes to a slice's tensor: on the device that work waits until the save in
  // flight has copied them. Never blocks.
  void before_update();

  // Waits until no save is in flight; the status of the last one under the rules of save().
  absl::Status wait();

  bool save_in_flight() const;
  int64_t last_committed_step() const;  // Full ones of this object, -1 before the first.

 private:
  class Impl;
  explicit Checkpointer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Rank 0, before the model is built: `spec` with the numbers of the weights that a load will most likely begin with
// (see keeps_to_weights). `taken` says which differ and where they come from; it stays empty where none does. Looks at
// names, a manifest or a config.json. What it cannot read changes nothing, and the load says why.
models::ModelSpec model_of_start(const Setup& setup, const models::ModelSpec& spec, std::string& taken);

}  // namespace titan::checkpoint
