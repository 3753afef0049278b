#pragma once

// The work of a job's ranks: they start together, load, step in lockstep, publish under the real fence of their dump
// folder and exit. The model knows for certain which attempt was healthy at which time.

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/io/storage/fence.h"
#include "tests/simulation/machine.h"
#include "tests/simulation/memory_files.h"
#include "tests/simulation/storage.h"
#include "tests/simulation/timeline.h"

namespace titan::simulation {

inline constexpr double kQuickestStep = 0.8, kSlowestStep = 1.2;  // Relative to a plan's step time.

// Plan of one job, by its dump folder.
struct JobPlan {
  int64_t steps = 20;
  int64_t save_every = 5;
  absl::Duration step_time = absl::Seconds(1);
  absl::Duration load_time = absl::Seconds(1);      // At most; no progress is visible meanwhile.
  absl::Duration save_time = absl::Seconds(1);      // At most; no progress is visible meanwhile.
  absl::Duration init_timeout = absl::Seconds(30);  // Timeout of the ranks themselves.
};

class SimTraining : public Training {
 public:
  SimTraining(Timeline& timeline, Storage& storage) : timeline_(timeline), storage_(storage), files_(timeline) {}

  std::map<std::string, JobPlan> plans;  // By dump folder.
  std::function<Machine&(const std::string& node)> machine;
  std::function<bool(const std::string& node)> reachable;  // Whether other ranks reach the node.
  std::function<bool()> may_be_outdated;                   // Whether the controller may act on outdated decisions now.
  std::function<void(const std::string& what)> violated;
  std::set<std::string> cancelled;  // Uids of jobs that somebody cancelled.
  std::set<std::string> full;       // Dump folders that are full now.
  std::set<node::AttemptKey>
      abandoned;  // Attempts that did not exit in time: they are killed whatever they do by then.

  void started(Machine& machine, const node::AttemptKey& key) override;
  void on_save_requested(const node::AttemptKey& key, bool leave) override;
  void on_rank_exit(const node::AttemptKey& key, const std::string& node) override;
  void killed(const node::AttemptKey& key, const std::string& reason) override;

  // Returns when its ranks last made progress together; nothing before they have begun.
  std::optional<absl::Duration> last_advance(const node::AttemptKey& key) const;
  // Returns whether all ranks run and nothing blocks them.
  bool is_healthy(const node::AttemptKey& key) const;
  // Sends an event that no version of a rank ever sent.
  void poison();

 private:
  struct Run {
    std::string folder;
    std::vector<v1::Placement> placements;
    std::set<std::string> nodes;  // Nodes on which the ranks have started.
    bool begun = false;
    bool over = false;
    bool save = false, leave = false;
    int64_t step = 0;
    absl::Duration advanced_at;
    bool blocked = false;         // It waited for a peer, and has made no progress since.
    absl::Duration unblocked_at;  // When the wait ended.
    bool lost_rank = false;       // A rank is gone, and the others will notice.
  };

  void begin(const node::AttemptKey& key);
  void step(const node::AttemptKey& key);
  void publish(const node::AttemptKey& key);
  void fail_to_save(Run& run, const node::AttemptKey& key);
  void resume(Run& run, const node::AttemptKey& key);
  void next_step(const node::AttemptKey& key);
  void peers_leave(const node::AttemptKey& key);
  void all_leave(const node::AttemptKey& key, int code);
  bool all_run(const Run& run, const node::AttemptKey& key) const;
  bool any_stuck(const Run& run, const node::AttemptKey& key) const;
  bool any_waits_for_storage(const Run& run) const;
  bool is_blocked(Run& run, const node::AttemptKey& key);
  template <typename Do>
  void for_each_rank(const Run& run, Do&& what) const;
  void write_event(const Run& run, const node::AttemptKey& key, const std::string& json);
  // The dump folder: rank 0 takes it, and publishes while no other attempt has taken it.
  storage::Fence fence_of(const Run& run) { return storage::Fence(run.folder, files_); }
  bool has_living_holder(const Run& run);
  absl::Status take_folder(Run& run, const node::AttemptKey& key);
  absl::Status publish_step(Run& run, const node::AttemptKey& key);
  void note_published(DumpFolder& folder, const node::AttemptKey& key, int64_t step);
  void leave_fenced(Run& run, const node::AttemptKey& key, const absl::Status& why);

  Timeline& timeline_;
  Storage& storage_;
  MemoryFiles files_;
  std::map<node::AttemptKey, Run> runs_;
};

}  // namespace titan::simulation
