#pragma once

// Manages the folder of all steps: what exists, and what may be deleted.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/storage/fence.h"
#include "common/io/storage/file.h"
#include "worker/rank/checkpoint/shards/manifest.h"
#include "worker/rank/checkpoint/steps/policy.h"

namespace titan::checkpoint {

// Prefix of folders that are being deleted. Cleaning up deletes them, and no reader looks at them.
inline constexpr char kPurgedPrefix[] = ".purged-";
// Prefix of folders in which Hugging Face exports are prepared.
inline constexpr char kExportPrefix[] = ".export-";

struct StepFolder {
  int64_t step = 0;
  std::string path;
  bool has_manifest = false;
  bool has_hf_index = false;  // Holds a Hugging Face export.
  bool has_dcp = false;       // Written by torch.distributed.checkpoint.
};

std::string step_path(const std::string& folder, int64_t step);  // {folder}/step-N
int64_t step_of(const std::string& name);                        // N of "step-N"; -1 for any other name.
// Returns whether the name looks like one of shard_name().
bool is_shard(const std::string& name);

// Lists the steps in ascending order; names other than step-N are skipped. Empty if the folder does not exist.
absl::StatusOr<std::vector<StepFolder>> list_steps(storage::Files& files, const std::string& folder);

// The newest full step that the folder's fence remembers.
struct Remembered {
  int64_t step = -1;
  bool by_another_job = false;
};

// Rank 0's work on the folder of all steps: publishes steps and cleans up. Whatever disappears is renamed under the
// fence first, so that only the attempt that may publish deletes, and a crash leaves no half-deleted step. A background
// thread then deletes the bytes. object_steps.h does this for an object store.
class StepStore {
 public:
  StepStore(storage::Files& files, std::string folder, storage::Fence fence, std::string job_uid, int attempt)
      : files_(files),
        folder_(std::move(folder)),
        fence_(std::move(fence)),
        job_uid_(std::move(job_uid)),
        attempt_(attempt) {}
  virtual ~StepStore();

  // Call it before anything else; after a success further calls do nothing. Takes the folder for this attempt where the
  // dump folder's fence does not cover it, and returns the step that its fence remembers. Errors: is_fenced() and
  // is_in_use() of fence.h.
  virtual absl::StatusOr<Remembered> take() { return Remembered{}; }

  // Publishes `text` as the step's manifest under the fence, which remembers a full step under `folder`. `discard` is
  // set if it failed and certainly no manifest names the new shards.
  virtual absl::Status publish(const Manifest& manifest, const std::string& text, const std::string& folder,
                               bool& discard);

  // Publishes `index` as the index of the step's Hugging Face files under the fence, after `place` has put the files
  // next to it. `discard` is set if it failed and certainly no index names them.
  virtual absl::Status publish_export(int64_t step, const std::string& index, absl::FunctionRef<absl::Status()> place,
                                      bool& discard);

  // Call it at the start of an attempt, before it saves. Deletes the shards of dead attempts, and step folders that
  // hold nothing else. A folder with any file that no attempt writes stays as it is. Returns the paths of those that
  // hold no checkpoint either: only their owner knows their purpose.
  virtual absl::StatusOr<std::vector<std::string>> clean_leftovers();

  // Call it after step `manifest.step` was published. Deletes shards and temporary files that the manifest does not
  // name.
  virtual absl::Status clean_step(const Manifest& manifest);

  // Call it after a save of `step` failed and every rank removed its part.
  virtual absl::Status remove_if_empty(int64_t step);

  // Mark the step as more trustworthy than steps that were only found (StoredStep::Trust).
  void note_loaded(int64_t step) { trust_[step] = StoredStep::kLoaded; }
  void note_committed(int64_t step, bool full);

  // Deletes the steps that keep_latest_k no longer covers, except those being read.
  virtual absl::Status purge(int keep_latest_k);

  void wait();  // Waits for the background thread.

 protected:
  bool is_full(const StepFolder& step);
  // Returns the steps that keep_latest_k does not cover.
  absl::StatusOr<std::vector<int64_t>> stale_steps(int keep_latest_k);
  void forget(int64_t step);
  // Runs `deleting` on a background thread, after the previous deletion has ended.
  void delete_in_background(std::function<void()> deleting);

  storage::Files& files_;
  const std::string folder_;
  const storage::Fence fence_;  // Fence of the dump folder.
  const std::string job_uid_;
  const int attempt_;

 private:
  absl::Status retire(const std::vector<std::string>& names);  // Entries of folder_; call under the fence.
  absl::Status sweep(const StepFolder& step);
  absl::StatusOr<bool> remove_from_shared(const std::string& path);

  std::map<int64_t, StoredStep::Trust> trust_;
  std::map<int64_t, bool> full_;  // Kinds of known steps: a manifest is read only once.
  std::thread deleter_;
};

}  // namespace titan::checkpoint
