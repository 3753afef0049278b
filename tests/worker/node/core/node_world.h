#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "worker/node/core/node_core.h"

namespace titan::node {

// Everything around a NodeCore: disk, shims, ranks and a controller's stream, with a clock that only the test moves. An
// effect happens when it is done; the test may delay, block or fail it. Its completion is an input like any other. A
// restart loses pending effects and keeps finished ones.
class NodeWorld {
 public:
  struct Rank {
    int rank = 0;
    int64_t pid = 0;
    bool running = false;
    bool killed = false;  // Killed, even if it has not died yet.
    std::optional<rank_protocol::RankExit> exit;
    int64_t events = 0;  // Number of events in its spool; 100 bytes each.
  };
  // A shim and its ranks. They survive the daemon.
  struct SimShim {
    int64_t pid = 0;
    bool alive = true;
    bool hangs = false;  // Accepts links and commands but does nothing.
    bool ended = false;
    Op link = 0;
    bool started = false;
    std::string stop_reason;
    absl::Duration kill_at = kNever;
    std::vector<Rank> ranks;
    std::vector<ShimCommand> got;          // Commands other than leases.
    std::vector<ShimCommand> unprocessed;  // Commands that arrived while it hangs.
    std::optional<ShimStatus> written;
  };
  struct Disk {
    std::map<AttemptKey, AttemptRecord> records;
    std::map<AttemptKey, std::map<int, SpoolTail::Place>> places;
    std::map<std::string, int> fences;
    std::string cluster;
    int64_t epoch = 0;
    std::set<AttemptKey> tokens;  // Keys of the tokens in dump folders.
  };
  using Waiting = std::variant<Effect, Input>;

  explicit NodeWorld(NodeConfig config = default_config());
  static NodeConfig default_config();  // Node n1 with four devices.

  // ---- The core ----
  NodeCore& core() { return *core_; }
  Now now() const { return now_; }
  void feed(const Input& input);
  // Runs pending effects and inputs in order until none may run.
  void settle();
  // Runs the first pending item that may run and that `wanted` accepts; returns false if there is none.
  bool run_one(const std::function<bool(const Waiting&)>& wanted = {});
  // Like run_one(), but the daemon dies before it gets the completion, and the next daemon starts.
  void run_one_and_crash(const std::function<bool(const Waiting&)>& wanted = {});
  // Moves the clock through every deadline of the core and of a shim, and settles at each.
  void advance(absl::Duration by);
  void move_clock(absl::Duration by) { now_.monotonic += by, now_.wall += by; }  // Only moves the clock.
  void tick() { feed(Tick{}); }
  // The daemon dies, and another one starts with the same disk.
  void restart();
  const std::deque<Waiting>& waiting() const { return waiting_; }
  bool exited() const { return exited_; }

  // Effects of this kind hang until they are released.
  template <typename E>
  void hang() {
    hung_.insert(index<E>());
  }
  template <typename E>
  void release() {
    hung_.erase(index<E>());
  }
  // Effects of this kind fail until clear_failure(), and have no effect.
  template <typename E>
  void fail(const std::string& error) {
    failing_[index<E>()] = error;
  }
  template <typename E>
  void clear_failure() {
    failing_.erase(index<E>());
  }
  void clear_all_faults();  // Ends all faults, including those of shims and ranks.
  // Returns how often the core requested an effect of this kind.
  template <typename E>
  int count() const {
    const auto found = requested_.find(index<E>());
    return found == requested_.end() ? 0 : found->second;
  }

  // ---- The controller ----
  void connect(const std::string& cluster = "c1", int64_t epoch = 0);  // A new session: registers and is welcomed.
  void disconnect(const std::string& reason = "");
  void command(v1::ControllerMessage message);  // Sends on the present session.
  const v1::Register& registered() const { return registered_; }
  const std::vector<v1::AttemptReport>& reports() const { return reports_; }
  const std::vector<v1::WorkerMessage>& messages() const { return messages_; }  // In this and earlier sessions.
  // Last report of an attempt of job u1; without an id and with PHASE_UNSPECIFIED if there is none.
  v1::AttemptReport last(int attempt) const;
  int64_t events_of(int attempt, int rank) const;  // Number of events without a gap.
  int gaps() const { return gaps_; }
  int64_t beats() const { return beats_; }
  const v1::Beat& last_beat() const { return last_beat_; }
  void clear_messages() { reports_.clear(), messages_.clear(); }
  bool acknowledge = true;  // Whether events are acknowledged.
  bool answer_beats = true;
  int64_t epoch = 0;  // Epoch of commands.
  std::vector<AnswerLog> logs;
  std::vector<AnswerTrace> traces;
  std::vector<AnswerDiagnosis> diagnoses;
  std::vector<std::string> resets;
  std::vector<std::string> log;

  // Commands for attempts of job u1.
  void prepare(int attempt, int ranks = 2, bool leader = true, int64_t deadline_milliseconds = 0);
  void start(int attempt);
  void stop(int attempt, bool save = false, int64_t grace_milliseconds = 0, int64_t deadline_milliseconds = 0,
            const std::vector<int>& named = {});
  void checkpoint(int attempt);
  void forget(int attempt);
  void read_log(int attempt, int rank);
  static v1::ControllerMessage make_prepare(int attempt, int ranks, bool leader = true);
  // Prepares, starts and settles.
  void launch(int attempt, int ranks = 2);

  // ---- The machine ----
  Disk disk;
  std::map<AttemptKey, SimShim> shims;
  std::string unreadable;        // Why the state of shims cannot be read; empty if it can.
  std::set<int64_t> unkillable;  // Pids that no signal ends.
  void end_unkillable();         // Lets them die of the signals that they got.
  std::string token_refusal;     // Reason with which the wait for the token is refused; empty: it is seen.
  std::string prepare_refusal;
  std::map<int, std::string> printed;           // By rank: the end of its log.
  std::map<int, std::deque<SpoolRead>> spools;  // By rank: results of the next reads of its events.
  std::vector<std::string> damage;              // Reported damage of spools.
  bool new_shims_hang = false;
  bool rebooted = false;
  SimShim& shim(int attempt) { return shims.at({"u1", attempt}); }
  void rank_exits(int attempt, int rank, int code, int signal = 0);
  void rank_emits(int attempt, int rank, int events = 1);
  void kill_shim(int attempt);
  void break_link(int attempt);
  void hang_shim(int attempt);
  void wake_shim(int attempt);
  int running_ranks(int attempt) const;
  std::set<int> devices_in_use() const;  // Devices of running ranks; fails the test if two attempts share one.

 private:
  template <typename E>
  static size_t index() {
    return Effect(E{}).index();
  }
  void apply(Effect effect);  // Applies an effect that has no completion.
  bool is_immediate(const Effect& effect) const;
  void perform(const Effect& effect);
  std::string error_of(size_t index) const;
  void receive(const v1::WorkerMessage& message);
  void make_core(int64_t start_session);
  void shim_does(const AttemptKey& key, const ShimCommand& command);
  void emit(const AttemptKey& key, ShimEvent event);
  void end_shim_if_over(const AttemptKey& key);
  void exit_rank(const AttemptKey& key, Rank& rank, int code, int signal);
  void kill_ranks(const AttemptKey& key);
  void run_shim_deadlines();
  ShimStatus status_of(const SimShim& shim) const;
  void write_status(SimShim& shim);

  const NodeConfig config_;
  Now now_{absl::Seconds(1000), absl::FromUnixSeconds(1'700'000'000)};
  std::unique_ptr<NodeCore> core_;
  std::deque<Waiting> waiting_;
  std::set<size_t> hung_;
  std::map<size_t, std::string> failing_;
  std::map<size_t, int> requested_;
  bool exited_ = false;
  bool dying_ = false;
  int64_t last_pid_ = 100;

  int64_t session_ = 0;
  bool open_ = false;
  v1::Register registered_;
  std::vector<v1::AttemptReport> reports_;
  std::vector<v1::WorkerMessage> messages_;
  std::map<std::pair<int, int>, int64_t> events_;
  int gaps_ = 0;
  int64_t beats_ = 0;
  v1::Beat last_beat_;
};

}  // namespace titan::node
