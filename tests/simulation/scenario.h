#pragma once

// One simulated history: users who submit, cancel, drain and delete, faults of every kind, then rest; and what must
// hold throughout.

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
  // Of machines, ranks and their network.
  kRankKilled,
  kRankStuck,
  kShimKilled,
  kMachineCrash,
  kDataPartition,
  kHungStorage,
  kForGood,  // A machine that refuses every attempt, never ends a rank or is gone, for ever.
  kUnkillableRanks,
  kUnreadableState,
  kIdleDaemon,  // It beats, and does nothing that it is told.
  kPoisonEvent,
  kLyingNode,
  kTornRecord,      // Of an attempt, in the node's state folder.
  kNodeDiskFull,    // Of the state folder.
  kDumpFolderFull,  // Saves fail.
  // Of the control plane: no healthy job may notice.
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
  kStoreRecordLost,   // The controller comes back, and one of its records cannot be read.
  kClockJump,         // Of a node's time of day, or the controller's.
  kRepeatedMessages,  // What a node has said comes after its next session's first words, and a client asks again.
  kCount,
};
std::string name(Fault fault);

// Of an attempt, when a fault strikes.
enum class Phase { kPlaced, kPrepare, kStart, kRunning, kSaving, kStopping, kRecovering, kCount };
std::string name(Phase phase);
// A fault of ranks needs ranks; one of a node or of the control plane may strike at any time.
bool can_strike(Fault fault, Phase phase);

struct Size {
  int nodes = 4;
  int devices = 2;
  int jobs = 4;
  absl::Duration chaos = absl::Seconds(60);
  double faults_per_second = 0.15;
  bool one_bad_node =
      false;  // Nothing lasts but one node that is broken for good, and the restart policy is the default.
  bool is_large() const { return nodes >= 1000; }  // Then a second costs as much as a minute of a small one.
};

// Mostly small clusters: most of what can go wrong needs few nodes.
Size size_of(uint64_t seed);

using Hits = std::map<std::pair<Fault, Phase>, int64_t>;

struct Outcome {
  std::vector<std::string> violations;
  std::map<Fault, int> faults;           // How often each struck,
  Hits hits;                             // and what it found: one for each attempt.
  std::map<std::string, int> decisions;  // How often the controller's journal tells of each.
  int64_t events = 0;
  std::vector<std::set<std::string>> transactions;  // The kinds of the keys of each, where crash_after() was asked for.
  uint64_t digest = 0;                              // Of all that the controller decided, and when.
  absl::Duration simulated;
};

class Scenario {
 public:
  Scenario(uint64_t seed, const Size& size);
  // The controller dies besides once so many transactions are durable, and hears nothing of the last one.
  void crash_after(size_t transactions) { cluster_.crash_controller_after(transactions); }
  Outcome run();

 private:
  friend class RulesTest;
  // A job as watchers have been shown it.
  struct Shown {
    int64_t revision = 0;
    std::string dump_folder;
    std::string state;
    bool over = false;
    bool stops = false;
    int64_t committed = 0;
    std::string waits_for;
    bool has_reason = false;
    absl::Duration explained_at;  // When it last had one, or needed none.
    int attempts = 0;
    int attempt = 0;                  // The one that has not ended; 0: none.
    std::map<std::string, int> used;  // Its ranks by node.
    absl::Duration grace;             // For its nodes, when none can be reached.
    absl::Duration limit;             // Of its time; infinite where it has none.
    std::map<std::string, int> reserved;
    std::map<int, size_t> exits;  // How many of each attempt have been looked at.
    absl::Duration since;         // State and attempt are these.
  };

  void plan();
  void submit(int number);
  void create(const job::Spec& spec, const std::string& id, uint32_t fingerprint);
  void created(const std::string& id, const std::string& uid);
  void user_acts();
  void cancel(const std::string& uid);
  void remove();
  void delete_lost_node();
  void drain(const std::string& node, absl::Duration last);
  void ask_to_drain(const std::string& node);
  void when_it_answers(absl::Duration after, std::function<void()> ask);
  void rest();
  absl::Duration work_left() const;
  bool all_over() const;
  std::string some_node();
  absl::Duration for_a_while(double least, double most);

  // faults.cc
  void strike(Fault fault, const std::string& node);
  void strike_at_worst(const std::string& event, const std::string& uid, std::string node);
  Fault some_fault() { return static_cast<Fault>(random_.between(0, static_cast<int>(Fault::kCount) - 1)); }
  void strike_for_good(Machine& machine);
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
  void check_room(const std::string& node);
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
  std::set<std::string> acknowledged_;       // Uids,
  std::set<std::string> cancels_, deletes_;  // likewise.
  std::set<std::string> asked_to_delete_;
  std::vector<std::function<void()>>
      calls_;  // What clients have asked, each with its request's id: said again, at times.
  // Uids whose record is lost: the job may be unknown now; whose configuration is: no attempt follows the present one.
  std::set<std::string> lost_jobs_, lost_specs_;
  std::map<std::string, std::string> uids_;                         // By job id.
  std::map<std::string, absl::Duration> drains_;                    // By node: since when.
  std::set<std::tuple<std::string, int, std::string>> lost_parts_;  // Uid, attempt, node: it may hold nothing any more.
  std::set<std::pair<std::string, int>> adopted_;                   // Uid, attempt.
  std::map<std::string, absl::Duration> troubled_, registered_;     // By node: until when, and when.
  std::map<std::string, absl::Duration> unwelcomed_;                // By node that is connected: since when.
  std::map<std::string, absl::Duration> started_;                   // By attempt: when its nodes were told so.
  absl::Duration runs_since_;                                       // The controller.
  absl::Duration started_at_;                                       // The controller, last.
  std::vector<absl::Duration> paused_at_;                           // Seconds at which it stood still since.
  absl::Duration steady_since_;                                     // The controller runs, and its disk has room.
  std::optional<std::pair<std::string, absl::Duration>> fits_;      // The first in the queue that fits, and since when.
  int starts_ = 0;                                                  // Of the controller.
  bool for_good_ = false;
  bool clock_jumped_ = false;
  std::map<std::string, absl::Duration> created_, placed_;  // By uid: when first shown, and with an attempt.
  std::set<std::string> lost_folders_;                      // Of jobs whose record is lost, and whose ranks may run.
  std::set<std::string> deleted_nodes_;                     // And not back.
  std::vector<std::vector<store::Record>> backups_;
  bool restored_ = false;
  bool has_unknown_ranks_ = false;  // Of a job whose record is lost.
  bool resting_ = false;
};

}  // namespace titan::simulation
