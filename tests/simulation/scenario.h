#pragma once

// One simulated history: users who submit, cancel, drain and delete, faults of every kind, then a quiet phase; and the
// rules that must hold throughout.

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/simulation/cluster.h"

namespace titan::simulation {

enum class Fault {
  // Faults of machines, ranks and their network.
  kRankKilled,
  kRankStuck,
  kShimKilled,
  kMachineCrash,
  kDataPartition,
  kHungStorage,
  kForGood,  // A machine that refuses every attempt, never ends a rank or is gone, permanently.
  kUnkillableRanks,
  kUnreadableState,
  kIdleDaemon,  // It beats but ignores commands.
  kPoisonEvent,
  kLyingNode,
  kTornRecord,      // An attempt's record in the node's state folder.
  kNodeDiskFull,    // Disk of the state folder.
  kDumpFolderFull,  // Saves fail.
  // Faults of the control plane, which no healthy job may notice.
  kControllerCrash,
  kControllerPause,
  kStoreRestored,
  kDiskFull,
  kStreamReset,
  kPartition,
  kOneWayPartition,
  kSlowNetwork,
  kDaemonCrash,
  kSlowDisk,
  kEarlierLeader,
  kStoreRecordLost,   // The controller returns, and one of its records cannot be read.
  kClockJump,         // Jump of the time of day of a node or of the controller.
  kRepeatedMessages,  // A node's messages arrive after the registration of its next session, and a client repeats a
                      // request.
  kCount,
};
std::string name(Fault fault);

// Phase of an attempt when a fault strikes.
enum class Phase { kPlaced, kPrepare, kStart, kRunning, kSaving, kStopping, kRecovering, kCount };
std::string name(Phase phase);
// A fault of ranks needs ranks; one of a node or of the control plane may happen at any time.
bool can_inject(Fault fault, Phase phase);

struct Size {
  int nodes = 4;
  int devices = 2;
  int jobs = 4;
  absl::Duration chaos = absl::Seconds(60);
  double faults_per_second = 0.15;
  bool one_bad_node = false;  // Only one permanently bad node, no other lasting faults, and the default restart policy.
  bool is_large() const { return nodes >= 1000; }  // A second then costs as much as a minute of a small one.
};

// Returns mostly small clusters, because most failures need few nodes.
Size size_of(uint64_t seed);

using Hits = std::map<std::pair<Fault, Phase>, int64_t>;

struct Outcome {
  std::vector<std::string> violations;
  std::map<Fault, int> faults;           // How often each fault struck.
  Hits hits;                             // Attempts that each fault met, by phase.
  std::map<std::string, int> decisions;  // How often the controller's journal has each decision.
  int64_t events = 0;
  std::vector<std::set<std::string>> transactions;  // Kinds of keys of each transaction, if crash_after() was called.
  uint64_t digest = 0;                              // Digest of all decisions of the controller and their times.
  absl::Duration simulated;
};

class Scenario {
 public:
  Scenario(uint64_t seed, const Size& size);
  // Also kills the controller once this many transactions are durable, without the result of the last one.
  void crash_after(size_t transactions) { cluster_.crash_controller_after(transactions); }
  Outcome run();

 private:
  friend class RulesTest;
  // A job as watchers see it.
  struct Shown {
    int64_t revision = 0;
    std::string dump_folder;
    std::string state;
    bool over = false;
    bool stops = false;
    int64_t committed = 0;
    std::string waits_for;
    bool has_reason = false;
    absl::Duration explained_at;  // When it last had a reason, or needed none.
    int attempts = 0;
    int attempt = 0;                  // The attempt that has not ended; 0 if there is none.
    std::map<std::string, int> used;  // Ranks by node.
    absl::Duration grace;             // How long it waits for its nodes if none can be reached.
    absl::Duration limit;             // Time limit; infinite if it has none.
    std::map<std::string, int> reserved;
    std::map<int, size_t> exits;  // Number of exits of each attempt that were checked.
    absl::Duration since;         // Start of the present state and attempt.
  };

  void plan();
  void submit(int number);
  void create(const job::SchedulingSpec& spec, const std::string& id, uint32_t fingerprint);
  void created(const std::string& id, const std::string& uid);
  void user_acts();
  void cancel(const std::string& uid);
  void remove();
  void delete_lost_node();
  void drain(const std::string& node, absl::Duration last);
  void request_drain(const std::string& node);
  void when_it_answers(absl::Duration after, std::function<void()> action);
  void rest();
  absl::Duration work_left() const;
  bool all_over() const;
  std::string random_node();
  absl::Duration random_seconds(double low, double high);

  // faults.cc
  void inject(Fault fault, const std::string& node);
  void inject_at_worst(const std::string& event, const std::string& uid, std::string node);
  Fault random_fault() { return static_cast<Fault>(random_.between(0, static_cast<int>(Fault::kCount) - 1)); }
  void break_permanently(Machine& machine);
  void plan_restore();
  void restore_store();
  void lie(const std::string& node);
  void tear_record(Machine& machine);
  void lose_store_record();
  void note_lost_record(const std::string& key);
  void jump_clock(Machine& machine);
  void repeat_messages(const std::string& node);
  bool fill_dump_folder(const node::AttemptKey& running, absl::Duration last);
  void command_of_earlier_leader(Machine& machine, const node::AttemptKey& running);
  void note_hits(Fault fault, const std::string& node, const node::AttemptKey& running);
  std::optional<Phase> phase_of(const std::string& uid, const Shown& shown);
  void trouble(const std::string& node, absl::Duration last);

  // rules.cc
  void see(const reconcile::JobView& view);
  void check_capacity(const std::string& uid, const Shown& job);
  void check_exits(const std::string& uid, const job::AttemptRecord& attempt);
  void check_line(const journal::Line& line);
  void check_answers(const std::string& node);
  void check_device_count(const std::string& node);
  void controller_started();
  void check_cancels();
  void every_second();
  void check_welcomes();
  void check_waits();
  void check_drains();
  void check_limits();
  void check_limit(const job::JobRecord& job);
  void check_cut_off();
  void check_nodes();
  // placing.cc
  reconcile::JobViewPtr first_in_queue() const;
  int free_devices(const std::string& node, const std::string& uid) const;
  bool fits_now(const job::JobRecord& job) const;
  void check_placing();
  // rules.cc
  void check_all_over();

  Cluster cluster_;
  Random& random_;
  const Size size_;
  Outcome outcome_;
  std::map<std::string, Shown> shown_;       // By uid.
  std::set<std::string> acknowledged_;       // Uids.
  std::set<std::string> cancels_, deletes_;  // Uids.
  std::set<std::string> requested_deletes_;
  std::vector<std::function<void()>> calls_;  // Requests of clients with their ids, which are sometimes repeated.
  // Uids whose job record is lost, so that the job may be unknown now, and uids whose specification is lost, so that no
  // attempt follows the present one.
  std::set<std::string> lost_jobs_, lost_specs_;
  std::map<std::string, std::string> uids_;                         // By job id.
  std::map<std::string, absl::Duration> drains_;                    // By node: start of the drain.
  std::set<std::tuple<std::string, int, std::string>> lost_parts_;  // Uid, attempt, node: may have been given up.
  std::set<std::pair<std::string, int>> adopted_;                   // Uid and attempt.
  std::map<std::string, absl::Duration> troubled_, registered_;     // By node: end of trouble; last registration.
  std::map<std::string, absl::Duration> unwelcomed_;  // By connected node: since when it waits for a welcome.
  std::map<std::string, absl::Duration> started_;     // By attempt: when its nodes got the start.
  absl::Duration runs_since_;                         // Since when the controller runs without a pause.
  absl::Duration started_at_;                         // Newest start of the controller.
  std::vector<absl::Duration> paused_at_;             // Seconds in which the controller was paused since its start.
  absl::Duration steady_since_;                       // Since when the controller runs and its disk has space.
  std::optional<std::pair<std::string, absl::Duration>> fits_;  // The first job in the queue that fits, and since when.
  int starts_ = 0;                                              // Number of the controller's start.
  bool for_good_ = false;
  bool clock_jumped_ = false;
  std::map<std::string, absl::Duration> created_, placed_;  // By uid: first shown; first with an attempt.
  std::set<std::string> lost_folders_;   // Folders of jobs whose record is lost and whose ranks may run.
  std::set<std::string> deleted_nodes_;  // Deleted nodes that have not returned.
  std::vector<std::vector<store::Record>> backups_;
  bool restored_ = false;
  bool has_unknown_ranks_ = false;  // Ranks of a job whose record is lost.
  bool resting_ = false;
};

}  // namespace titan::simulation
