#pragma once

// Saves a step: all ranks write their shards and report, and rank 0 publishes the manifest under the fence.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "worker/rank/checkpoint/saving/staging.h"
#include "worker/rank/checkpoint/steps/session.h"

namespace titan::checkpoint {

class Saver {
 public:
  explicit Saver(Session& session) : session_(session) {}
  // Abandons a save in flight that waits for other ranks.
  ~Saver();

  // See Checkpointer.
  absl::Status save(int64_t step, const std::vector<Slice>& slices, TrainState state, CheckpointKind kind);
  absl::Status save_last(int64_t step, const std::vector<Slice>& slices, TrainState state);
  absl::Status save_before_stop(int64_t step, const std::vector<Slice>& slices, TrainState state,
                                absl::Duration timeout);
  absl::Status wait();
  void before_update();
  bool in_flight() const { return running_; }
  int64_t last_committed() const { return last_committed_; }

 private:
  using Run = std::function<absl::Status(const Save& save)>;

  Save make_save(const char* topic, int64_t step, CheckpointKind kind, TrainState state);
  void open_copies(const std::vector<Slice>& slices);
  absl::Status stage_async(const std::vector<Slice>& slices, CheckpointKind kind);
  absl::Duration retry_time() const;
  absl::Status write(const Save& save);
  absl::Status persist(Save save, absl::Duration timeout, const Run& run);
  absl::Status settle(const Save& save, absl::Status status);
  absl::Status run(const Save& save);
  void remove_rest(const Save& save, const absl::StatusOr<WrittenShard>& shard);
  absl::Status publish(const Save& save, const std::string& words, bool& discard);
  void clean_up(const Manifest& manifest);
  absl::StatusOr<bool> already_full(const Save& save);

  Session& session_;
  std::unique_ptr<CopyStream> own_copies_;
  CopyStream* copies_ = nullptr;   // Null: asynchronous saves copy on the training thread.
  bool copies_in_flight_ = false;  // Copies are queued that later work must not overtake.
  std::vector<Staged> buffers_;    // Reused by asynchronous saves, so that a long job's memory stays flat.
  std::thread writer_;
  std::atomic<bool> running_{false};
  std::atomic<int64_t> last_committed_{-1};
  absl::Status written_;  // Set by writer_, read after join.
  absl::Status fenced_;   // Kept once it is set.
  int64_t failures_ = 0;  // Consecutive ones.
  bool warned_of_pinned_ = false;
};

}  // namespace titan::checkpoint
