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
  std::function<std::optional<absl::Duration>()> timeout_after_stop;
  absl::Duration peer_timeout = absl::Minutes(30);  // For all ranks' reports on one save or load.
  absl::Duration peer_silence = absl::Seconds(15);  // Without a pulse: the rank's process is gone.
  absl::Duration peer_start = absl::Minutes(5);     // The same for a rank that never had one.
  int fan_out = 32;  // How many ranks' reports one rank joins (rank_reports.h); another number for tests.
};

// What a load is about. A job that trains adapters on a model that stays as it is loads the two apart.
enum class Part {
  kAll,
  kResumed,  // From full steps of this job's own folder alone; none there: fresh.
  kInitial,  // Of a model that is not saved: from where a job begins, whatever the folder holds since.
};

}  // namespace titan::checkpoint
