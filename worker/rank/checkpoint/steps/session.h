#pragma once

// The state that saving and loading share: the job's setup, its folder and fence, and the exchange with other ranks.

#include <atomic>
#include <memory>
#include <string>

#include "common/io/storage/fence.h"
#include "worker/rank/checkpoint/shards/shard.h"
#include "worker/rank/checkpoint/steps/heartbeat.h"
#include "worker/rank/checkpoint/steps/rank_reports.h"
#include "worker/rank/checkpoint/steps/setup.h"
#include "worker/rank/checkpoint/steps/step_folders.h"

namespace titan::checkpoint {

// The state of one Checkpointer.
class Session {
 public:
  // Throws the store's exception if the heartbeat cannot connect to it.
  explicit Session(Setup setup);

  bool leader() const { return setup.rank == 0; }
  void emit(const char* kind, nlohmann::json members) const {
    if (setup.events) setup.events(kind, std::move(members));
  }
  // Records the calling thread's work in traces, from here to the end of the block. `name`: a literal.
  trace::ThreadSpanScope doing(const char* name) const { return {setup.spans.get(), "checkpoint writer", name}; }
  // Returns the name of the next exchange. The name is the same on every rank, because all ranks make the same calls.
  std::string next_topic(const char* what);
  // Returns a manifest with the members that state where it comes from.
  Manifest manifest(int64_t step, CheckpointKind kind) const;
  // Makes rank 0's status the status of every rank.
  absl::Status conclude(const std::string& topic, const absl::Status& leaders);
  // Sleeps for `duration`, or until `enough`. Cancelled once stopped.
  absl::Status rest(absl::Duration duration, const std::function<bool()>& enough) const;

  Setup setup;  // take_folder() updates committed_step.
  storage::Files& files;
  const std::string folder;  // Folder of all steps.
  const storage::Fence fence;
  std::atomic<bool> stop{false};  // Ends every wait for another rank.
  ReportExchange exchange;
  ShardReports shards{exchange};

 private:
  const std::unique_ptr<StepStore> own_step_store_;

 public:
  StepStore& step_store;  // Used by rank 0 only, on the thread that saves.

  // Returns the name of a new shard of this rank.
  ShardName shard_name() const;
  // Takes the folder (StepStore::take) and updates setup.committed_step. Rank 0 calls it before it reads or writes
  // anything in the folder.
  absl::Status take_folder();

 private:
  int64_t operations_ = 0;
  std::unique_ptr<Heartbeat> heartbeat_;
};

}  // namespace titan::checkpoint
