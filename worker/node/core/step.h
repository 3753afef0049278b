#pragma once

// The context of one step and the functions that share it. Only worker/node/core includes this header.

#include "worker/node/core/node_core.h"

namespace titan::node {

struct Step {
  const NodeConfig& config;
  NodeState& state;
  const Now now;
  std::vector<Effect>& effects;

  void out(Effect effect) { effects.push_back(std::move(effect)); }
  void send(v1::WorkerMessage message) { out(Send{state.session, std::move(message)}); }
  void reset(std::string why) { out(ResetSession{state.session, std::move(why)}); }
  void log(journal::Level level, std::string event, std::string message) {
    out(Log{journal::Line{level, std::move(event), {}}.add("message", std::move(message))});
  }
  Op begin(Pending pending) {
    state.pending[++state.last_op] = std::move(pending);
    return state.last_op;
  }
  Attempt* find(const AttemptKey& key) {
    const auto found = state.attempts.find(key);
    return found == state.attempts.end() ? nullptr : &found->second;
  }
};

// node_core.cc
void note(Step& step, const AttemptKey& key, journal::Level level, const std::string& event,
          const std::string& message);
std::set<int> free_devices(const NodeConfig& config, const NodeState& state);
void on_state_folder_checked(Step& step, const StateFolderChecked& seen);
// Handles a failed write to the state folder. Reports the node as unusable before the caller refuses the attempt,
// because the fault is the node's. The next StateFolderChecked withdraws it.
void on_write_failed(Step& step, const std::string& error);

// commands.cc
void on_command(Step& step, const Command& command);
void obey(Step& step, const v1::ControllerMessage& message);
const v1::AttemptId* id_of(const v1::ControllerMessage& message);  // Null: the message names no attempt.
void on_joined(Step& step, const std::string& before, const std::string& error);
void on_epoch_written(Step& step, const std::string& error);
void on_disconnected(Step& step, const Disconnected& lost);

// attempt.cc: from Prepare to the first report.
void on_found(Step& step, const RecoveredAttempt& found);
void prepare(Step& step, const v1::Prepare& message);
void on_fence_raised(Step& step, const AttemptKey& key, const FenceRaised& done);
void prepare_waiting(Step& step);  // Continues attempts in kWaiting that no longer have to wait.
void on_recorded(Step& step, const AttemptKey& key, const std::string& error);
void on_prepared(Step& step, const Pending& what, const FolderPrepared& done);
void on_live_written(Step& step, Attempt& attempt, const std::string& error);
void start(Step& step, Attempt& attempt, const v1::Start& message);
void continue_starting(Step& step, Attempt& attempt);
void on_token_checked(Step& step, Attempt& attempt, const Refusal& refusal);
void preparation_overdue(Step& step, Attempt& attempt);
// Reports `phase` for an attempt of which this node keeps nothing, with the reason.
void answer_unknown(Step& step, const AttemptKey& key, v1::AttemptReport::Phase phase, const Refusal& why,
                    int highest = 0);
void erase_attempt(Step& step, const AttemptKey& key);

// stops.cc: from the first request to end an attempt to its last report.
void stop(Step& step, Attempt& attempt, bool save, int64_t grace_milliseconds, const std::string& reason,
          int64_t deadline_milliseconds = 0);
void refuse(Step& step, Attempt& attempt, const Refusal& why);
void send_to_shim(Step& step, Attempt& attempt, ShimCommand command);
void link_lost(Step& step, Attempt& attempt);
void look_for_shim(Step& step, Attempt& attempt);
void shim_is_done(Step& step, Attempt& attempt, Attempt::End how);
void check_ranks(Step& step, Attempt& attempt);
void finish(Step& step, Attempt& attempt, AttemptRecord::Phase phase);
void on_finish_written(Step& step, Attempt& attempt, const std::string& error);
void forget_if_over(Step& step, Attempt& attempt);
void take_status(Attempt& attempt, const ShimStatus& status);
void note_exits_damage(Step& step, Attempt& attempt, const std::string& damage);  // Logs the damage once.
void take_exits(Attempt& attempt, const std::vector<rank_protocol::RankExit>& exits);

// completions.cc: handles what shims and the disk report.
void on_shim_spawned(Step& step, Attempt& attempt, const ShimSpawned& done);
void on_shim_found(Step& step, Attempt& attempt, const ShimLookup& done);
void on_ranks_checked(Step& step, Attempt& attempt, const RanksChecked& done);
void on_shim_event(Step& step, const ShimEvent& said);
void on_shim_closed(Step& step, const ShimClosed& closed);
void run_deadlines(Step& step, Attempt& attempt);

// diagnosis.cc: what the ranks do, for the controller that requests it.
void diagnose(Step& step, const v1::Diagnose& request);
void on_stacks(Step& step, Attempt& attempt, const std::string& missing);
void answer_diagnosis_if_over(Step& step, Attempt& attempt);

// reports.cc
v1::AttemptReport::Phase phase_of(const Attempt& attempt);
void report(Step& step, Attempt& attempt);               // Immediately.
void report_after_events(Step& step, Attempt& attempt);  // After the ranks' events, which come before the exits.
void flush_reports(Step& step, Attempt& attempt);
void forward_events(Step& step, Attempt& attempt, RankState& rank);
void forward_all(Step& step, Attempt& attempt);
void on_spool_read(Step& step, const Pending& what, const SpoolRead& done);
// Reads the log ends of failed ranks before their exits are reported.
void read_log_tails(Step& step, Attempt& attempt);
void on_log_tail_read(Step& step, const Pending& what, const LogTailRead& done);
void acknowledge(Step& step, Attempt& attempt, int rank, int64_t sequence);
void on_places_written(Step& step, Attempt& attempt, const std::string& error);
void rewind(Attempt& attempt);
void send_beat(Step& step, bool is_late);
v1::RankStatus status_of(const RankState& rank, Now now);
void fill(const Attempt& attempt, Now now, google::protobuf::RepeatedPtrField<v1::RankStatus>* ranks);
RankState* find_rank(Attempt& attempt, int rank);
void report_stale_leader(Step& step, const v1::ControllerMessage& message);

}  // namespace titan::node
