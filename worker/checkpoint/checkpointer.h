#pragma once

// Saves and loads a job's state in {dump}/{folder}/step-N: the one class of this folder that the trainer uses.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/config/job_config.h"
#include "common/models/model_spec.h"
#include "common/storage/file.h"
#include "common/trace/spans.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/copy_stream.h"
#include "worker/checkpoint/hf_mapper.h"
#include "worker/checkpoint/slice.h"

namespace titan::checkpoint {

enum class Kind {
  kFull,   // Model, optimizer, train state: a resume point.
  kModel,  // Model only: an export or a seed, never a resume point.
};

// What the trainer keeps besides tensors. `shared` is the same on every rank: {"step", "ntokens_seen", "lr_scheduler",
// "dataloader", ...}. `per_rank` is this rank's own (a per_rank data cursor); null when there is none.
struct TrainState {
  nlohmann::json shared = nlohmann::json::object();
  nlohmann::json per_rank = nullptr;
};

enum class Source {
  kCheckpoint,  // A full step of this job's own folder.
  kInitial,     // Seed checkpoint, initial_load_path or Hugging Face weights.
  kFresh,       // Nothing to load: the weights the caller drew are kept.
};
const char* name(Source source);  // "checkpoint", "initial", "fresh": the `source` of the loaded event.

struct LoadResult {
  Source source = Source::kFresh;
  int64_t step = 0;           // Finished steps; 0 unless the optimizer and train state came along.
  std::string path;           // Folder that was read; empty when fresh.
  bool model_only = true;     // No optimizer and no train state came along.
  bool model_loaded = false;  // Slices "model.*" were filled; if not, the caller draws the weights.
  // How far a step moved the loaded weights' balance biases (MoeSpec::load_balance_coeff); 0 too where the weights have
  // no such biases. None: a fresh start, a model without experts, or a folder that does not say.
  std::optional<double> load_balance_coeff;
  // The saved TrainState::shared, without what exclude_from_loading names ("lr_scheduler", "dataloader"; "train_state"
  // is the rest); an empty object when model_only.
  nlohmann::json train_state = nlohmann::json::object();
  std::vector<nlohmann::json>
      per_rank;  // Of all ranks that saved, in rank order; compare its size with the world size.
};

// True for the status of a load that found nothing where something was committed.
bool are_gone(const absl::Status& status);

// Events: (kind, members) as rank_protocol/launch.h lists them: checkpoint_rejected, checkpoint_staged,
// checkpoint_committed, checkpoint_failed {step, reason}, warning. Called on the training thread and on the writer
// thread: must be thread-safe.
using EventSink = std::function<void(const char* kind, nlohmann::json members)>;

struct Setup {
  std::string dump_folder;
  config::Checkpoint config;
  // model.hf_assets_path: where initial_load_in_hf looks when initial_load_path is not set, and the tokenizer whose
  // ids exports name.
  std::string hf_assets_path;
  int rank = 0;
  int world = 1;
  std::optional<models::ModelSpec> model;  // What the slices belong to; none: steps do not say it and none is checked.
  nlohmann::json job_config;               // Resolved, for the manifest.
  std::string job_uid;
  int attempt = 1;  // The fence of the dump folder must name (job_uid, attempt): rank 0 raises it before construction.
  // Rank 0: the newest full step that is known to have been committed in this folder, -1 when none is. Then a load that
  // finds no full step is an error (are_gone()) and nothing is begun anew, but for another job's steps: where they were
  // deleted, so that the folder is empty, it is a fresh start with a warning.
  int64_t committed_step = -1;
  bool committed_by_another_job = false;
  c10::intrusive_ptr<c10d::Store> store;  // May be null when world is 1. Keys used: "checkpoint/...".
  EventSink events;                       // May be empty.
  const HfMapper* hf = nullptr;           // Needed for Hugging Face import and export; not owned.
  storage::Files* files = nullptr;        // Null: posix_files(). Not owned.
  std::shared_ptr<trace::Spans> spans;    // Shows what the writer's thread does in traces; null: not.
  CopyStream* copies = nullptr;           // Null: a stream of the slices' device. Not owned.
  // Consecutive failed saves after which save() and wait() return the error; 0: every error is an event and training
  // goes on (fenced and last saves always return it).
  int64_t failed_saves_allowed = 0;
  // Before the first new try of a save whose failure would end the attempt; it doubles up to a minute.
  absl::Duration retry_pause = absl::Seconds(1);
  std::function<void()> still_trying;  // A sign of life of whoever waits before a new try; may be empty.
  // Once somebody asked this rank to stop: how long a save may be tried again from then on. On any thread; may be
  // empty.
  std::function<std::optional<absl::Duration>()> patience_after_stop;
  absl::Duration peer_timeout = absl::Minutes(30);  // For all ranks' reports on one save or load.
  absl::Duration peer_silence = absl::Seconds(15);  // Without a pulse: the rank's process is gone.
  absl::Duration peer_start = absl::Minutes(5);     // The same for a rank that never had one.
  int fan_out = 32;  // How many ranks' reports one rank joins (report_tree.h); another number for tests.
};

// What a load is about. A job that trains adapters on a model that stays as it is loads the two apart.
enum class Part {
  kAll,
  kResumed,  // From full steps of this job's own folder alone; none there: fresh.
  kInitial,  // Of a model that is not saved: from where a job begins, whatever the folder holds since.
};

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
  // "fenced: ..." when a newer attempt owns the folder: exit with
  // kExitFenced.
  absl::Status save(int64_t step, const std::vector<Slice>& slices, TrainState state, Kind kind = Kind::kFull);

  // Collective, synchronous: the save at training.steps by last_save_model_only, export_dtype, last_save_in_hf. When
  // storage fails (disk full, I/O error, ...) all ranks try again together, each time with a warning, for
  // last_save_retry_seconds, once a stop was asked for (rank 0's word counts) for patience_after_stop at most. Returns
  // any error.
  absl::Status save_last(int64_t step, const std::vector<Slice>& slices, TrainState state);

  // Collective, synchronous: a full step before the ranks leave, tried again like the last one, but for no longer than
  // `patience` (rank 0's counts). Returns any error.
  absl::Status save_before_stop(int64_t step, const std::vector<Slice>& slices, TrainState state,
                                absl::Duration patience);

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

}  // namespace titan::checkpoint
