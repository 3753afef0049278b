#pragma once

// The folder of all steps: what is there, what may go.

#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/storage/fence.h"
#include "common/storage/file.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/policy.h"

namespace titan::checkpoint {

struct StepFolder {
  int64_t step = 0;
  std::string path;
  bool has_manifest = false;
  bool has_hf_index = false;  // A Hugging Face export lies there.
  bool has_dcp = false;       // Written by torch.distributed.checkpoint.
};

std::string step_path(const std::string& folder, int64_t step);  // {folder}/step-N

// Ascending by step; names other than step-N are skipped. An absent folder is empty.
absl::StatusOr<std::vector<StepFolder>> list_steps(storage::Files& files, const std::string& folder);

// Rank 0's housekeeping. Whatever disappears is renamed under the fence first, so that only the attempt that may
// publish deletes, and a crash leaves no half-deleted step; the bytes go on a background thread.
class Janitor {
 public:
  Janitor(storage::Files& files, std::string folder, storage::Fence fence, std::string job_uid, int attempt)
      : files_(files),
        folder_(std::move(folder)),
        fence_(std::move(fence)),
        job_uid_(std::move(job_uid)),
        attempt_(attempt) {}
  ~Janitor();

  // At the start of an attempt, before it saves: folders that never got a manifest, shards of dead attempts.
  absl::Status clean_leftovers();

  // After step `manifest.step` was published: its folder keeps what the manifest names (and a Hugging Face export).
  absl::Status clean_step(const Manifest& manifest);

  // After a save of `step` failed and every rank removed its part.
  absl::Status remove_if_empty(int64_t step);

  void note_loaded(int64_t step) { trust_[step] = StoredStep::kLoaded; }
  void note_committed(int64_t step, bool full);

  // Deletes what keep_latest_k no longer covers, except what someone is reading.
  absl::Status purge(int keep_latest_k);

  void wait();  // For the background thread.

 private:
  absl::Status retire(const std::vector<std::string>& names);  // Entries of folder_; call under the fence.
  absl::Status sweep(const StepFolder& step);
  bool is_full(const StepFolder& step);

  storage::Files& files_;
  std::string folder_;
  storage::Fence fence_;
  std::string job_uid_;
  int attempt_;
  std::map<int64_t, StoredStep::Trust> trust_;
  std::map<int64_t, bool> full_;  // Kinds that are known; a manifest is read once.
  std::thread deleter_;
};

}  // namespace titan::checkpoint
