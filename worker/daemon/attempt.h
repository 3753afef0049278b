#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/rank_protocol/beacon.h"
#include "titan/v1/worker.pb.h"
#include "worker/daemon/file_watcher.h"
#include "worker/daemon/loop.h"
#include "worker/daemon/prepare_files.h"
#include "worker/daemon/shim_link.h"
#include "worker/daemon/spool_tail.h"
#include "worker/daemon/state_folder.h"
#include "worker/shim/exit_record.h"

namespace titan::daemon {

// What an attempt needs of its daemon.
struct AttemptHost {
  Loop* loop = nullptr;
  const StateFolder* state = nullptr;
  std::string shim_binary;
  std::string rank_binary;
  bool ipv6 = false;
  int64_t log_max_bytes = 256 << 20;
  double token_patience_seconds = 5;
  std::function<void(v1::WorkerMessage)> send;  // Dropped when no session is up; on_session() makes up for it.
  std::function<bool()> connected;
  std::function<void(const std::string&)> log;
  std::function<void(std::function<void()>)> aside;  // Runs file work beside the loop.
  std::function<void(const AttemptKey&)> on_over;    // The attempt has ended or was refused.
  std::function<void(int64_t)> count_events;
  FileWatcher* watcher = nullptr;
};

// One attempt on this node: its shim, its ranks' spools and beacons, and what the controller is told. On the loop
// thread.
class Attempt : public std::enable_shared_from_this<Attempt> {
 public:
  Attempt(AttemptHost& host, AttemptRecord record);
  ~Attempt();
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  // Commands of the controller; each may come again and then only reports what is.
  void prepare(const std::string& launch_json, const std::string& visible_devices);
  void start(const std::string& store_host, int store_port);
  void stop(bool save, int64_t grace_milliseconds, const std::string& reason);
  void checkpoint();
  void acknowledge(int rank, int64_t sequence);
  // Asks the rank for a trace, or says how far it is, with a piece of it once it is written (traces.cc).
  void answer_trace(const v1::ReadTrace& request, v1::TraceData* answer);

  // After a restart of the daemon: finds the shim again, or what it left.
  void adopt();
  void refuse(const Refusal& why);
  void say_state() { report(); }
  // A new session with the controller: says everything that it may have missed.
  void on_session();
  void renew_lease(int64_t silence_milliseconds);
  // Sends new events of this rank; of all ranks when negative.
  void forward_events(int rank = -1);

  const AttemptRecord& record() const { return record_; }
  const std::string& run_folder() const { return run_folder_; }
  bool over() const { return record_.phase >= AttemptRecord::Phase::kEnded; }
  bool preparing() const { return record_.phase == AttemptRecord::Phase::kPreparing; }
  int running_ranks() const;
  // False when the rank is gone, or will never be: its log is complete.
  bool may_print(int rank) const;
  int64_t log_bytes_dropped() const { return log_bytes_dropped_; }
  v1::AttemptReport::Phase phase() const;
  void fill(google::protobuf::RepeatedPtrField<v1::RankStatus>* ranks);
  void describe(v1::AttemptInventory* item);

 private:
  struct Rank {
    int rank = 0;
    int64_t pid = 0;
    int64_t start_ticks = 0;
    bool running = false;
    std::unique_ptr<shim::ExitRecord> exit;
    std::unique_ptr<rank_protocol::Beacon> beacon;
    SpoolTail tail;
    bool damaged = false;  // Said once.
  };

  ShimLink::Callbacks callbacks();
  void launch_shim();
  void tell(nlohmann::json request);
  void on_message(const nlohmann::json& message);
  void on_status(const nlohmann::json& status);
  void on_start_answer(const nlohmann::json& answer);
  void on_exit(const nlohmann::json& exit);
  void on_link_closed();
  void look_for_shim();
  void look_for_shim_again(const absl::Status& unknown);
  void shim_is_gone();
  void kill_shim_after(absl::Duration patience);
  void end_when_ranks_are_gone(bool shim_lost);
  void finish(AttemptRecord::Phase phase);
  void save_record();
  void watch_spools();
  void save_places() const;
  std::map<int, SpoolTail::Place> load_places() const;
  Rank* find(int rank);
  rank_protocol::Beacon* beacon_of(Rank& rank);  // Null before the rank has made it.
  void report(const shim::ExitRecord* one_exit = nullptr);
  void identify(v1::AttemptId* id) const;
  void note(const std::string& text) const;

  AttemptHost& host_;
  AttemptRecord record_;
  const std::string run_folder_;
  std::vector<Rank> ranks_;
  std::unique_ptr<ShimLink> link_;
  int64_t shim_pid_ = 0;
  int64_t shim_ticks_ = 0;
  std::string shim_boot_;  // Boot of the machine that the shim began in.
  int store_port_ = 0;
  bool started_ = false;                 // The shim has started the ranks.
  bool starting_ = false;                // A start is on its way.
  std::vector<nlohmann::json> pending_;  // For the shim, until there is a link to it.
  int looks_ = 0;                        // Tries to find the shim again.
  std::string unknown_;                  // Why it cannot be told whether the shim lives, as it was said last.
  int64_t log_bytes_dropped_ = 0;
  // Of launch.json, read when first asked for.
  bool placements_read_ = false;
  std::string job_;
  int64_t start_unix_nanos_ = 0;
  int threads_per_rank_ = 0;
  std::vector<v1::Placement> placements_;
};

// Grows with whatever the rank does.
int64_t progress_of(const rank_protocol::BeaconPage& page);

// Is there a shim in this run folder: the process that shim.json names, or one that holds the lock? Errors: the disk
// does not say, and it may live as well as not.
absl::StatusOr<bool> shim_lives(const std::string& run_folder);

}  // namespace titan::daemon
