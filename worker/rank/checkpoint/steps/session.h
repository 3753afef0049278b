#pragma once

// What saving and loading share: the job's setup, its folder and fence, and the way to the other ranks.

#include <atomic>
#include <memory>
#include <string>

#include "common/io/storage/fence.h"
#include "worker/rank/checkpoint/shards/shard.h"
#include "worker/rank/checkpoint/steps/pulse.h"
#include "worker/rank/checkpoint/steps/rank_reports.h"
#include "worker/rank/checkpoint/steps/setup.h"
#include "worker/rank/checkpoint/steps/step_folders.h"

namespace titan::checkpoint {

class Session {
 public:
  // Throws what the pulse's own connection to the store throws.
  explicit Session(Setup setup);

  bool leader() const { return setup.rank == 0; }
  void emit(const char* kind, nlohmann::json members) const {
    if (setup.events) setup.events(kind, std::move(members));
  }
  // What the calling thread does from here to the end of the block, for traces. `name`: a literal.
  trace::ThreadSpanScope doing(const char* name) const { return {setup.spans.get(), "checkpoint writer", name}; }
  // A name for one exchange, the same on every rank because all of them make the same calls.
  std::string next_topic(const char* what);
  // What every manifest of this job says about where it comes from.
  Manifest manifest(int64_t step, Kind kind) const;
  // Rank 0's status becomes everybody's.
  absl::Status conclude(const std::string& topic, const absl::Status& leaders);
  // Does nothing for a while, or until `enough`. Cancelled once stopped.
  absl::Status rest(absl::Duration duration, const std::function<bool()>& enough) const;

  Setup setup;  // committed_step grows as rank 0 learns more.
  storage::Files& files;
  const std::string folder;  // Of all steps.
  const storage::Fence fence;
  std::atomic<bool> stop{false};  // Ends every wait for another rank.
  Exchange exchange;
  ShardReports shards{exchange};

 private:
  const std::unique_ptr<Janitor> kept_by_;

 public:
  Janitor& janitor;  // Rank 0 only; on the thread that saves.

  // Of a new shard of this rank.
  ShardName shard_name() const;
  // Rank 0, before it reads or writes anything of the folder.
  absl::Status take_folder();

 private:
  int64_t operations_ = 0;
  std::unique_ptr<Pulse> pulse_;
};

}  // namespace titan::checkpoint
