#pragma once

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
#include "common/io/storage/file.h"
#include "common/plan/config/job_config.h"
#include "common/plan/models/model_spec.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"
#include "worker/rank/checkpoint/shards/copy_stream.h"
#include "worker/rank/checkpoint/shards/slice.h"
#include "worker/rank/trace/spans.h"

namespace titan::checkpoint {

enum class CheckpointKind {
  kFull,   // Model, optimizer, train state: a resume point.
  kModel,  // Model only: an export or a seed, never a resume point.
};

// The trainer's state apart from tensors. `shared` is the same on every rank: {"step", "ntokens_seen", "lr_scheduler",
// "dataloader", ...}. `per_rank` belongs to this rank (a per_rank data cursor); null if there is none.
struct TrainState {
  nlohmann::json shared = nlohmann::json::object();
  nlohmann::json per_rank = nullptr;
};

enum class Source {
  kCheckpoint,  // A full step of this job's folder.
  kInitial,     // Seed checkpoint, initial_load_path or Hugging Face weights.
  kFresh,       // Nothing to load: the caller's initial weights stay.
};
const char* name(Source source);  // "checkpoint", "initial", "fresh": the `source` of the loaded event.

// The outcome of a load.
struct LoadResult {
  Source source = Source::kFresh;
  int64_t step = 0;           // Finished steps; 0 unless the optimizer and train state were loaded.
  std::string path;           // Folder that was read; empty when fresh.
  bool model_only = true;     // The optimizer and train state were not loaded.
  bool model_loaded = false;  // Slices "model.*" were filled; if not, the caller initializes the weights.
  // How far a step moved the balance biases of the loaded weights (MoeSpec::load_balance_coeff); also 0 if the weights
  // have no such biases. No value: a fresh start, a model without experts, or a folder that does not state it.
  std::optional<double> load_balance_coeff;
  // The saved TrainState::shared without the members that exclude_from_loading names ("lr_scheduler", "dataloader";
  // "train_state" is the rest). An empty object if model_only.
  nlohmann::json train_state = nlohmann::json::object();
  std::vector<nlohmann::json>
      per_rank;  // One per rank that saved, in rank order. Compare their number with the world size.
};

// Returns whether a load failed because it found no full step although one had been committed.
bool checkpoints_are_gone(const absl::Status& status);

// Receives (kind, members), as rank_protocol/launch.h lists them: checkpoint_rejected, checkpoint_staged,
// checkpoint_committed, checkpoint_failed {step, reason}, warning. Called on the training thread and on the writer
// thread: must be thread safe.
using EventSink = std::function<void(const char* kind, nlohmann::json members)>;

// All that a Checkpointer needs from its owner. Raw pointers have to outlive it.
struct Setup {
  std::string dump_folder;
  config::CheckpointSection config;
  // model.hf_assets_path: the source of initial_load_in_hf if initial_load_path is not set, and of the tokenizer ids in
  // exports.
  std::string hf_assets_path;
  int rank = 0;
  int world = 1;
  std::optional<models::ModelSpec> model;  // Model of the slices; no value: steps do not state it and it is not
                                           // checked.
  bool other_positions = false;            // The job changes RoPE: loaded weights may have another theta or scaling.
  bool larger_vocabulary = false;          // The job sets the vocabulary: loaded weights may have fewer rows.
  nlohmann::json job_config;               // Resolved configuration, for the manifest.
  std::string job_uid;
  int attempt = 1;  // The fence of the dump folder must name (job_uid, attempt): rank 0 raises it before construction.
  // Rank 0: the newest full step known to be committed in this folder, or -1. If there is one, a load that finds no
  // full step is an error (checkpoints_are_gone()) instead of a fresh start. Exception: if it was another job's and the
  // folder is empty, because its steps were deleted, it is a fresh start with a warning.
  int64_t committed_step = -1;
  bool committed_by_another_job = false;
  c10::intrusive_ptr<c10d::Store> store;       // May be null when world is 1. Keys used: "checkpoint/...".
  EventSink events;                            // May be empty.
  const HfMapper* hf = nullptr;                // Needed for Hugging Face import and export; not owned.
  storage::Files* files = nullptr;             // Null: s3::all_files(). Not owned.
  std::shared_ptr<trace::SpanRecorder> spans;  // Records the writer thread's work in traces; null: does not.
  CopyStream* copies = nullptr;                // Null: a stream of the slices' device. Not owned.
  // Consecutive failed saves after which save() and wait() return the error. 0: every error is only an event and
  // training continues (fenced and last saves always return it).
  int64_t failed_saves_allowed = 0;
  // Pause before the first retry of a save that must succeed for the attempt to continue. It doubles up to a minute.
  absl::Duration retry_pause = absl::Seconds(1);
  std::function<void()> still_trying;  // Called as a sign of life during retries; may be empty.
  // How long a save may still be retried once a stop was requested. Called on any thread; may be empty.
  std::function<std::optional<absl::Duration>()> time_left_after_stop;
  absl::Duration peer_timeout = absl::Minutes(30);  // For all ranks' reports on one save or load.
  absl::Duration peer_silence = absl::Seconds(15);  // Without a pulse for this long, a rank's process is gone.
  absl::Duration peer_start = absl::Minutes(5);     // The same for a rank that never had a pulse.
  int fan_out = 32;  // Number of ranks whose reports one rank joins (rank_reports.h); tests set another.
};

// The part of the state to load. A job that trains adapters on a frozen model loads the two separately.
enum class StatePart {
  kAll,
  kResumed,  // Only from full steps of this job's folder; fresh if there are none.
  kInitial,  // A frozen model that is not saved: loaded from where the job began, whatever the folder holds now.
};

}  // namespace titan::checkpoint
