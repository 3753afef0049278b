#pragma once

// The folder of all steps: what is there, what may go.

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

// Of what is on its way out: whoever keeps house deletes it, and nobody reads it.
inline constexpr char kPurgedPrefix[] = ".purged-";
// Of what Hugging Face files are made from.
inline constexpr char kExportPrefix[] = ".export-";

struct StepFolder {
  int64_t step = 0;
  std::string path;
  bool has_manifest = false;
  bool has_hf_index = false;  // A Hugging Face export lies there.
  bool has_dcp = false;       // Written by torch.distributed.checkpoint.
};

std::string step_path(const std::string& folder, int64_t step);  // {folder}/step-N
int64_t step_of(const std::string& name);                        // N of "step-N"; -1 for any other name.
bool is_shard(const std::string& name);

// Ascending by step; names other than step-N are skipped. An absent folder is empty.
absl::StatusOr<std::vector<StepFolder>> list_steps(storage::Files& files, const std::string& folder);

// What the fence of the folder remembers of full steps.
struct Remembered {
  int64_t step = -1;
  bool by_another_job = false;
};

// What rank 0 does to the folder of all steps: it makes steps visible and keeps house. Whatever disappears is renamed
// under the fence first, so that only the attempt that may publish deletes, and a crash leaves no half-deleted step;
// the bytes go on a background thread. Of an object store it is object_steps.h's.
class Janitor {
 public:
  Janitor(storage::Files& files, std::string folder, storage::Fence fence, std::string job_uid, int attempt)
      : files_(files),
        folder_(std::move(folder)),
        fence_(std::move(fence)),
        job_uid_(std::move(job_uid)),
        attempt_(attempt) {}
  virtual ~Janitor();

  // Before anything else; what comes after the first call that went well does nothing. Takes what the dump folder's
  // fence does not cover for this attempt. Errors: is_fenced() and is_in_use() of fence.h.
  virtual absl::StatusOr<Remembered> take() { return Remembered{}; }

  // Makes `text` the step's manifest, under the fence, which remembers a full one under `folder`. `discard`: it failed,
  // and for certain no manifest names the new shards.
  virtual absl::Status publish(const Manifest& manifest, const std::string& text, const std::string& folder,
                               bool& discard);

  // Makes `index` the index of the step's Hugging Face files, under the fence, after `place` has put these beside it.
  // `discard`: it failed, and for certain no index names them.
  virtual absl::Status publish_export(int64_t step, const std::string& index, absl::FunctionRef<absl::Status()> place,
                                      bool& discard);

  // At the start of an attempt, before it saves: deletes the shards of dead attempts, and step folders that hold
  // nothing else. A folder with any file that no attempt writes is left as it is; returns the paths of those that hold
  // no checkpoint either, which nobody but their owner knows the use of.
  virtual absl::StatusOr<std::vector<std::string>> clean_leftovers();

  // After step `manifest.step` was published: its folder keeps what the manifest names (and a Hugging Face export).
  virtual absl::Status clean_step(const Manifest& manifest);

  // After a save of `step` failed and every rank removed its part.
  virtual absl::Status remove_if_empty(int64_t step);

  void note_loaded(int64_t step) { trust_[step] = StoredStep::kLoaded; }
  void note_committed(int64_t step, bool full);

  // Deletes what keep_latest_k no longer covers, except what someone is reading.
  virtual absl::Status purge(int keep_latest_k);

  void wait();  // For the background thread.

 protected:
  bool is_full(const StepFolder& step);
  // What keep_latest_k does not cover.
  absl::StatusOr<std::vector<int64_t>> doomed_steps(int keep_latest_k);
  void forget(int64_t step);
  // On a thread of its own, once what goes already is gone.
  void delete_behind(std::function<void()> deleting);

  storage::Files& files_;
  const std::string folder_;
  const storage::Fence fence_;  // Of the dump folder.
  const std::string job_uid_;
  const int attempt_;

 private:
  absl::Status retire(const std::vector<std::string>& names);  // Entries of folder_; call under the fence.
  absl::Status sweep(const StepFolder& step);
  absl::StatusOr<bool> remove_from_shared(const std::string& path);

  std::map<int64_t, StoredStep::Trust> trust_;
  std::map<int64_t, bool> full_;  // Kinds that are known; a manifest is read once.
  std::thread deleter_;
};

}  // namespace titan::checkpoint
