#include "worker/node/core/node_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/node/core/step.h"

namespace titan::node {
namespace {

constexpr int64_t kCleanUpBeats = 600;
constexpr absl::Duration kSameSignal = absl::Milliseconds(300);
constexpr absl::Duration kFlushTime = absl::Milliseconds(200);

void on_written(Step& step, const Pending& what, const Written& done) {
  using Kind = Pending::Kind;
  Attempt* const attempt = step.find(what.key);
  switch (what.kind) {
    case Kind::kAddRecord:
      if (attempt != nullptr && attempt->op == done.op) return on_recorded(step, what.key, done.error);
      // The attempt was given up meanwhile, so nothing else removes the folder.
      if (attempt == nullptr) step.out(DeleteFolder{what.key});
      return;
    case Kind::kLive:
      if (attempt != nullptr && attempt->op == done.op) on_live_written(step, *attempt, done.error);
      return;
    case Kind::kFinish:
      if (attempt != nullptr && attempt->op == done.op) on_finish_written(step, *attempt, done.error);
      return;
    case Kind::kAgain:
      if (attempt == nullptr || attempt->writing_again != done.op) return;
      attempt->writing_again = 0;
      if (!done.error.empty()) attempt->write_again_at = step.now.monotonic + absl::Seconds(1);
      return;
    case Kind::kPlaces:
      if (attempt != nullptr && attempt->writing_places == done.op) on_places_written(step, *attempt, done.error);
      return;
    case Kind::kForget:
      if (!done.error.empty()) note(step, what.key, journal::Level::kError, "WriteFailed", done.error);
      if (attempt != nullptr && attempt->op == done.op) {
        const std::vector<v1::ControllerMessage> after = std::move(attempt->after);
        erase_attempt(step, what.key);
        for (const v1::ControllerMessage& message : after) obey(step, message);
      }
      if (step.state.cleaning == 0) step.out(CleanUp{step.state.cleaning = step.begin({.kind = Kind::kCleanUp})});
      return;
    case Kind::kCleanUp:
      if (step.state.cleaning == done.op) step.state.cleaning = 0;
      return;
    case Kind::kCluster: {
      const std::string before = step.state.cluster;
      if (done.error.empty()) step.state.cluster = what.cluster;
      if (step.state.joining == done.op) on_joined(step, before, done.error);
      return;
    }
    case Kind::kEpoch:
      if (done.error.empty()) step.state.durable_epoch = std::max(step.state.durable_epoch, what.epoch);
      if (step.state.raising == done.op) on_epoch_written(step, done.error);
      return;
    default:
      return;
  }
}

// Handles the completion of an effect. A completion of an effect that is not in progress is a duplicate and is ignored.
template <typename Done>
void on_done(Step& step, const Done& done) {
  const auto found = step.state.pending.find(done.op);
  if (found == step.state.pending.end()) return;
  const Pending what = std::move(found->second);
  step.state.pending.erase(found);
  Attempt* const attempt = step.find(what.key);
  if constexpr (std::is_same_v<Done, Written>) {
    on_written(step, what, done);
  } else if constexpr (std::is_same_v<Done, FolderPrepared>) {
    on_prepared(step, what, done);
  } else if constexpr (std::is_same_v<Done, SpoolRead>) {
    on_spool_read(step, what, done);
  } else if constexpr (std::is_same_v<Done, LogTailRead>) {
    on_log_tail_read(step, what, done);
  } else if constexpr (std::is_same_v<Done, FenceRaised>) {
    if (attempt != nullptr && attempt->op == done.op) on_fence_raised(step, what.key, done);
  } else if constexpr (std::is_same_v<Done, TokenChecked>) {
    if (attempt != nullptr && attempt->checking_token == done.op) on_token_checked(step, *attempt, done.refusal);
  } else if constexpr (std::is_same_v<Done, ShimSpawned>) {
    if (attempt != nullptr && attempt->link == done.op) on_shim_spawned(step, *attempt, done);
  } else if constexpr (std::is_same_v<Done, ShimLookup>) {
    if (attempt != nullptr && attempt->finding == done.op) on_shim_found(step, *attempt, done);
  } else if constexpr (std::is_same_v<Done, RanksChecked>) {
    if (attempt != nullptr && attempt->checking == done.op) on_ranks_checked(step, *attempt, done);
  }
}

void on_beacons(Step& step, const BeaconsRead& seen) {
  for (const BeaconsRead::Item& item : seen.items) {
    Attempt* const attempt = step.find(item.key);
    RankState* const rank = attempt == nullptr ? nullptr : find_rank(*attempt, item.status.rank());
    if (rank == nullptr) continue;
    rank->beacon = item.status;
    rank->phase_since = item.phase_since;
  }
}

void on_tick(Step& step) {
  NodeState& state = step.state;
  const absl::Duration now = step.now.monotonic;
  for (auto& [key, attempt] : state.attempts) run_deadlines(step, attempt);
  std::vector<AttemptKey> late;
  for (const auto& [key, attempt] : state.attempts) {
    if (now >= attempt.prepare_by) late.push_back(key);
  }
  for (const AttemptKey& key : late) preparation_overdue(step, *step.find(key));
  if (state.raising != 0 && now >= state.raise_by) on_epoch_written(step, "the state folder does not answer");
  if (now < state.beat_at) return;
  const absl::Duration interval = std::clamp(state.lease / kBeatsPerLease, kMinBeatInterval, kMaxBeatInterval);
  const bool is_late = now - state.beat_at > interval;
  state.beat_at = now + interval;
  send_beat(step, is_late);
  if (state.beat % kCleanUpBeats == 1 && state.cleaning == 0) {
    step.out(CleanUp{state.cleaning = step.begin({.kind = Pending::Kind::kCleanUp})});
  }
}

void on_shutdown(Step& step, const Shutdown& signal) {
  NodeState& state = step.state;
  // Batch systems send the signal to every process and repeat it through each parent. That must not kill ranks that are
  // saving.
  if (state.shutdowns > 0 && !signal.immediate) return;
  // A dying parent with many threads may send its death signal several times within a moment, which is one request.
  if (state.shutdowns > 0 && step.now.monotonic - state.shutdown_at < kSameSignal) return;
  state.shutdown_at = step.now.monotonic;
  ++state.shutdowns;
  if (!step.config.stop_ranks_on_exit) return step.out(Exit{});
  const bool save = state.shutdowns == 1;
  step.log(journal::Level::kInfo, "Stopping", save ? "stopping: the ranks save and stop" : "stopping at once");
  std::vector<AttemptKey> running;
  for (const auto& [key, attempt] : state.attempts) {
    if (!attempt.ending()) running.push_back(key);
  }
  for (const AttemptKey& key : running) {
    stop(step, *step.find(key), save, save ? absl::ToInt64Milliseconds(step.config.stop_grace) : 0, "WORKER_STOPPING");
  }
}

void exit_when_all_stopped(Step& step) {
  NodeState& state = step.state;
  if (state.shutdowns == 0 || !step.config.stop_ranks_on_exit || state.exiting) return;
  const bool busy = std::any_of(state.attempts.begin(), state.attempts.end(),
                                [](const auto& item) { return !item.second.over() || item.second.shim_may_live(); });
  if (busy) return;
  // Gives the last reports time to be sent.
  if (state.exit_at == kNever) state.exit_at = step.now.monotonic + kFlushTime;
  if (step.now.monotonic < state.exit_at) return;
  state.exiting = true;
  step.out(Exit{});
}

}  // namespace

// Reports a change with the next beat, which becomes due at once; otherwise the controller keeps placing ranks here.
void on_state_folder_checked(Step& step, const StateFolderChecked& seen) {
  NodeState& state = step.state;
  if (seen.unusable == state.unusable) return;
  const bool is_news = seen.unusable.empty() != state.unusable.empty();
  state.unusable = seen.unusable;
  if (!is_news) return;  // Only the text has changed, as with every KiB of a disk that fills up.
  if (state.unusable.empty()) {
    step.log(journal::Level::kInfo, "StateFolderUsable", "the state folder is usable again: this node accepts ranks");
  } else {
    step.log(journal::Level::kError, "StateFolderUnusable",
             absl::StrCat(state.unusable, "; this node accepts no ranks until that is fixed; running ranks continue"));
  }
  state.beat_at = step.now.monotonic;
}

void on_write_failed(Step& step, const std::string& error) {
  if (!step.state.unusable.empty()) return;
  on_state_folder_checked(step, {error});
  send_beat(step, /*is_late=*/false);
}

bool Attempt::announced() const { return stage != Stage::kForgetting && (was_live || stage == Stage::kOver); }

bool Attempt::holds_devices() const { return !record.devices.empty() && (!ending() || shim_may_live()); }

void note(Step& step, const AttemptKey& key, journal::Level level, const std::string& event,
          const std::string& message) {
  journal::Line line{level, event, {}};
  line.add("job_uid", key.job_uid).add("attempt", absl::StrCat(key.number)).add("message", message);
  step.out(Log{std::move(line)});
}

std::set<int> free_devices(const NodeConfig& config, const NodeState& state) {
  std::set<int> free;
  for (int device = 0; device < config.resources.devices(); ++device) free.insert(device);
  for (const auto& [key, attempt] : state.attempts) {
    if (!attempt.holds_devices()) continue;
    for (const int device : attempt.record.devices) free.erase(device);
  }
  return free;
}

NodeCore::NodeCore(NodeConfig config, std::string cluster, int64_t leader_epoch, Now now) : config_(std::move(config)) {
  state_.cluster = std::move(cluster);
  state_.leader_epoch = state_.durable_epoch = leader_epoch;
  state_.adopting = config_.adopt_cluster;
  state_.heard_at = now.monotonic;
  state_.beat_at = now.monotonic;
}

std::vector<Effect> NodeCore::step(const Input& input, Now now) {
  std::vector<Effect> effects;
  Step step{config_, state_, now, effects};
  std::visit(
      [&](const auto& given) {
        using Given = std::decay_t<decltype(given)>;
        if constexpr (std::is_same_v<Given, RecoveredAttempt>) {
          on_found(step, given);
        } else if constexpr (std::is_same_v<Given, Command>) {
          on_command(step, given);
        } else if constexpr (std::is_same_v<Given, Disconnected>) {
          on_disconnected(step, given);
        } else if constexpr (std::is_same_v<Given, SpoolChanged>) {
          Attempt* const attempt = step.find(given.key);
          RankState* const rank = attempt == nullptr ? nullptr : find_rank(*attempt, given.rank);
          if (rank == nullptr) return;
          rank->more = true;
          forward_events(step, *attempt, *rank);
        } else if constexpr (std::is_same_v<Given, ShimEvent>) {
          on_shim_event(step, given);
        } else if constexpr (std::is_same_v<Given, ShimClosed>) {
          on_shim_closed(step, given);
        } else if constexpr (std::is_same_v<Given, BeaconsRead>) {
          on_beacons(step, given);
        } else if constexpr (std::is_same_v<Given, StateFolderChecked>) {
          on_state_folder_checked(step, given);
        } else if constexpr (std::is_same_v<Given, Tick>) {
          on_tick(step);
        } else if constexpr (std::is_same_v<Given, Shutdown>) {
          on_shutdown(step, given);
        } else {
          on_done(step, given);
        }
      },
      input);
  prepare_waiting(step);
  for (auto& [key, attempt] : state_.attempts) {
    read_log_tails(step, attempt);
    flush_reports(step, attempt);
    answer_diagnosis_if_over(step, attempt);
    if (attempt.forget) forget_if_over(step, attempt);
  }
  exit_when_all_stopped(step);
  return effects;
}

absl::Duration NodeCore::next_deadline() const {
  absl::Duration next = state_.beat_at;
  const auto at = [&next](absl::Duration time) { next = std::min(next, time); };
  if (state_.raising != 0) at(state_.raise_by);
  if (!state_.exiting) at(state_.exit_at);
  for (const auto& [key, attempt] : state_.attempts) {
    for (const absl::Duration time : {attempt.prepare_by, attempt.start_by, attempt.find_at, attempt.check_at,
                                      attempt.kill_shim_at, attempt.stop_overdue_at, attempt.overdue_report_by,
                                      attempt.finish_by, attempt.write_again_at, attempt.diagnose_by}) {
      at(time);
    }
    // A full report includes the exits.
    at(attempt.report_by != kNever ? attempt.report_by : attempt.exits_report_by);
  }
  return next;
}

v1::Register NodeCore::make_register(Now now) const {
  v1::Register message;
  message.set_node(config_.node);
  message.set_address(config_.address);
  message.set_version(config_.version);
  message.set_instance(config_.instance);
  message.set_boot_id(config_.boot_id);
  message.set_boot_nanoseconds(absl::ToInt64Nanoseconds(now.monotonic));
  if (!state_.adopting) message.set_cluster(state_.cluster);
  message.set_leader_epoch(state_.leader_epoch);
  message.set_diagnoses(true);
  message.set_unusable(state_.unusable);
  message.set_unix_nanoseconds(now.wall_ns());
  message.mutable_labels()->insert(config_.labels.begin(), config_.labels.end());
  *message.mutable_resources() = config_.resources;
  for (const auto& [key, attempt] : state_.attempts) {
    if (attempt.stage == Stage::kForgetting) continue;
    v1::AttemptInventory* const item = message.add_inventory();
    item->mutable_id()->set_job_uid(key.job_uid);
    item->mutable_id()->set_number(key.number);
    item->set_phase(attempt.announced() ? phase_of(attempt) : v1::AttemptReport::PREPARING);
    item->set_job(attempt.facts.job);
    item->set_start_unix_nanos(attempt.facts.start_unix_nanos);
    item->set_threads_per_rank(attempt.facts.threads_per_rank);
    item->set_resumed_step(attempt.resumed_step.value_or(attempt.facts.committed_step));
    item->set_previous_end_cause(attempt.facts.previous_end_cause);
    item->set_previous_end_message(attempt.facts.previous_end_message);
    if (attempt.facts.nodes != nullptr) {
      item->mutable_nodes()->Assign(attempt.facts.nodes->begin(), attempt.facts.nodes->end());
    }
    if (attempt.holds_devices()) {
      item->set_devices(static_cast<int>(attempt.record.devices.size()));
      item->mutable_device_indices()->Assign(attempt.record.devices.begin(), attempt.record.devices.end());
    }
    fill(attempt, now, item->mutable_ranks());
  }
  return message;
}

std::set<int> NodeCore::free_devices() const { return node::free_devices(config_, state_); }

int NodeCore::devices_held() const {
  std::set<int> held;
  for (const auto& [key, attempt] : state_.attempts) {
    if (attempt.holds_devices()) held.insert(attempt.record.devices.begin(), attempt.record.devices.end());
  }
  return static_cast<int>(held.size());
}

int NodeCore::running_ranks() const {
  int running = 0;
  for (const auto& [key, attempt] : state_.attempts) {
    running += static_cast<int>(
        std::count_if(attempt.ranks.begin(), attempt.ranks.end(), [](const RankState& rank) { return rank.running; }));
  }
  return running;
}

int Attempt::memory_kills() const {
  return static_cast<int>(std::count_if(ranks.begin(), ranks.end(),
                                        [](const RankState& rank) { return rank.exit && rank.exit->out_of_memory; }));
}

int64_t NodeCore::memory_kills() const {
  int64_t kills = state_.memory_kills_of_forgotten;
  for (const auto& [key, attempt] : state_.attempts) kills += attempt.memory_kills();
  return kills;
}

int64_t NodeCore::log_bytes_dropped() const {
  int64_t bytes = state_.log_bytes_of_forgotten;
  for (const auto& [key, attempt] : state_.attempts) bytes += attempt.log_bytes_dropped;
  return bytes;
}

}  // namespace titan::node
