#pragma once

// The parts of one step; only controller/core includes this.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "controller/core/core.h"
#include "controller/core/effect.h"
#include "controller/core/input.h"
#include "controller/core/options.h"
#include "controller/core/state.h"
#include "controller/core/view.h"
#include "controller/job/restart.h"
#include "controller/job/state.h"

namespace titan::core {

// What a step works on, and what it wants so far.
struct Step {
  State& state;
  const Options& options;
  const Now now;
  Effects& effects;
  std::set<std::string> touched = {};  // Nodes whose views this step publishes again.

  void commit(Change change);
  // A change has one continuation: what happens to several jobs is several changes.
  void expect(Change& change, Continuation continuation);
  // Sends to the node's session. Without one nothing is lost: every command is repeated to its next session.
  void send(const std::string& node, NodeCommand command);
  void refuse(RequestId request, const absl::Status& why);
  void measure(Measure::Kind kind, double value, std::string label = "");
  void touch(const std::string& node) { touched.insert(node); }
};

// Each by what it is about: requests.cc, sessions.cc and so on.
void take(Step& step, const CreateJob& input);
void take(Step& step, const UpdateJob& input);
void take(Step& step, const CancelJob& input);
void take(Step& step, const CheckpointJob& input);
void take(Step& step, const ProfileJob& input);
void take(Step& step, const DeleteJob& input);
void take(Step& step, const CordonNode& input);
void take(Step& step, const DrainNode& input);
void take(Step& step, const DeleteNode& input);
void take(Step& step, const StopUnknown& input);
void take(Step& step, const OpenSession& input);
void take(Step& step, Heard& input);  // Takes what it holds.
void take(Step& step, const CloseSession& input);
void take(Step& step, const Tick& input);
void take(Step& step, const Durable& input);
void take(Step& step, const SpecUnreadable& input);
void take(Step& step, const Compared& input);
// What was waited for is durable, or was refused.
void go_on(Step& step, const Created& what, const absl::Status& status);
void go_on(Step& step, const CancelAccepted& what, const absl::Status& status);
void go_on(Step& step, const UpdateAccepted& what, const absl::Status& status);
void go_on(Step& step, const Cordoned& what, const absl::Status& status);
void go_on(Step& step, const Deleted& what, const absl::Status& status);
void go_on(Step& step, const Dismissed& what, const absl::Status& status);
void go_on(Step& step, const Tell& tell, const absl::Status& status);

// attempt_end.cc
void conclude(Step& step, LiveJob& job, Change change, absl::Duration since_failure);
void carry_out_stop(Step& step, LiveJob& job, job::JobEvent over, Change change);
void add_error(LiveJob& job, job::ErrorReport error, Change& change);
void add_refusal(LiveJob& job, job::Refusal refusal, Change& change);
void erase_reports(const LiveJob& job, Change& change);

// attempt_progress.cc
void note_phase(Step& step, LiveJob& job, const std::string& phase, std::optional<absl::Duration> since);
void note_first_step(Step& step, LiveJob& job, Change& change);
void take_progress(Step& step, LiveJob& job, int64_t train_step, int64_t commit, Change& change);

// attempt_reports.cc, beats.cc
bool left_well(const job::RankExit& exit);  // It finished, or saved and left on request.
void on_report(Step& step, Node& node, const AttemptReport& report);
void on_beat(Step& step, Node& node, const Beat& beat);

// attempt_start.cc
void start_attempt(Step& step, LiveJob& job, std::vector<job::Placement> placements);
void set_attempt(Step& step, LiveJob& job, LiveAttempt attempt);
void drop_attempt(Step& step, LiveJob& job);
void start_when_prepared(Step& step, LiveJob& job, Change& change);

// blame.cc
void blame_nodes(Step& step, LiveJob& job, const job::AttemptEnd& end, const std::vector<std::string>& lost);
bool can_go_elsewhere(const Nodes& nodes, const LiveJob& job);
void cordon_by_controller(Step& step, Node& node, const std::string& why, Change& change);
bool may_cordon(const Nodes& nodes, const Node& node);

// changes.cc
void put_job(Change& change, LiveJob& job);
void put_attempt(Change& change, const LiveJob& job, const job::AttemptRecord& record);
void put_progress(Change& change, const LiveJob& job);
void put_node(Step& step, Change& change, const Node& node);
void add_event(const Step& step, Change& change, LiveJob& job, job::EventRecord event);
void add_node_event(const Step& step, Change& change, Node& node, absl::string_view reason, std::string message,
                    absl::string_view severity, std::string actor = "", std::string job = "");
JobViewPtr view_of(const LiveJob& job);
LiveJob ended_job(const JobView& view);  // One that is over, for as long as it is changed.
void show(Change& change, const LiveJob& job);
bool apply(LiveJob& job, job::JobEvent event);

// claims.cc
void tell_of(Step& step, const Node& node);
void lose(Step& step, LiveJob& job, const std::string& node);
void note_devices(Queue& queue, LiveJob& job, const std::string& node, const AttemptInventory& item);
void hold_back(Queue& queue, LiveJob& job);
void enter_queue(Step& step, LiveJob& job);
void give_up_wishes(Step& step);

// commands.cc
void send_prepare(Step& step, LiveJob& job, const std::vector<std::string>& nodes);
void send_start(Step& step, LiveJob& job, const std::string& name);
void send_checkpoint(Step& step, LiveJob& job, const std::string& name);
void send_stop(Step& step, LiveJob& job, const std::string& name);
void stop_everywhere(Step& step, LiveJob& job);
std::optional<Send> forget(const Nodes& nodes, const AttemptKey& key, const std::string& name);

// deadlines.cc
absl::Duration stop_time(const LiveJob& job);
void set_stop_deadline(const Now& now, LiveJob& job);
void restore_stop_deadline(const Now& now, LiveJob& job);
absl::Duration stop_deadline(const Now& now, const LiveJob& job, NodePart& part);
void add_stop_times(const Now& now, Stop& stop, const LiveJob& job, absl::Duration by);
absl::Duration prepare_time(const Options& options, const Now& now, const LiveAttempt& attempt);
void check_deadlines(Step& step);
void leave_devices(Step& step, LiveJob& job, const std::string& name);
void take_stop_timeout(Step& step, LiveJob& job, Node& node, const std::string& message);
void end_given_up(Step& step, LiveJob& job, const std::string& node, Change& change);

// deletions.cc
void bury(State& state, const Now& now, const std::string& uid, job::Tombstone tombstone);
void forget_deleted_jobs(Step& step);
absl::Status check_repeated(const State& state, const CreateJob& input, const std::string& uid);
void delete_old_jobs(Step& step);

// diagnosis.cc
bool ask_ranks(Step& step, LiveJob& job);
void ask_again(Step& step, LiveJob& job, const Node& node);
void on_diagnosis(Step& step, Node& node, Diagnosis answer);
void check_diagnoses(Step& step);
void restore_question(const Cycles& cycles, LiveJob& job);
void end_diagnosis(Step& step, LiveJob& job);

// drain.cc
bool is_draining(const Nodes& nodes, const std::string& name);
void empty_node(Step& step, const std::string& name);
void ask_to_leave(Step& step, const std::string& name, RequestId request);

// failed_logs.cc
bool keep_failed_log(Step& step, LiveJob& job, const job::FailedLog& said, job::RankExit& exit, Change& change);
void close_failed_logs(Step& step, LiveJob& job, Change& change);
bool make_room_for_logs(Step& step, int64_t bytes);
void count_kept_logs(KeptLogs& kept_logs, const JobView& view);

// folders.cc
absl::Status check_folder(const State& state, const job::Spec& spec);
void doubt_folder_id(Folders& folders, LiveJob& job);
bool take_folder_id(Step& step, LiveJob& job, const std::string& node, const std::string& id, Change& change);

// foreign.cc
const job::AttemptRecord* recorded(const Jobs& jobs, const AttemptKey& key);
bool is_elsewhere(const Jobs& jobs, const std::string& node, const AttemptKey& key);
bool may_tell(const State& state, const Node& node, const AttemptKey& key, int rank);
bool may_list(Step& step, Node& node, const AttemptKey& key);
void note_foreign(Step& step, Node& node, const std::string& what, const std::string& job = "");

// hangs.cc
void note_advance(const Pauses& pauses, const Now& now, LiveAttempt& attempt, bool quiet);
void note_beat(Step& step, LiveJob& job, NodePart& part, const AttemptBeat& beat);
void begin_watch(const Now& now, LiveAttempt& attempt);
std::vector<job::HungRank> hung_ranks(const LiveJob& job);
void check_hangs(Step& step);
void excuse_own_pause(Step& step);

// inventory.cc
void compare_inventory(Step& step, Node& node, const Registration& hello);
LiveJob* job_of(Jobs& jobs, const AttemptKey& key);  // With exactly this attempt alive, or nullptr.
NodePart* part_of(LiveJob* job, const std::string& node);

// left_behind.cc
void leave_behind(Step& step, LiveJob& job, const std::string& node);
void restore_left_behind(Step& step, const LiveJob& job);
void note_end_there(Step& step, const std::string& node, const AttemptKey& key);
void bound_left_behind(Step& step, const std::string& node);
std::string where_left(const State& state, const LiveJob& job);
void end_or_leave(Step& step, LiveJob& job, job::JobEvent over, Change& change);
void check_left_behind(Step& step);
void give_up_node(Step& step, const std::string& node);

// load.cc
void set_aside(Step& step, const store::Record& record, std::string why);
void load_all(Step& step, const std::vector<store::Record>& records, const std::vector<std::string>& lost);

// node_condition.cc
void note_condition(Step& step, Node& node, const std::string& unusable, int64_t unix_nanoseconds);

// nodes.cc
NodeView node_view(const State& state, const Node& node);
std::optional<NodeView> shown_node(const State& state, const std::string& name);
std::vector<NodeView> node_views(const State& state);
void touch_nodes_of(Step& step, const LiveJob& job);
void end_step(Step& step);
SessionId session_of(const Nodes& nodes, const std::string& name);  // 0: nobody speaks for it now.

// pace.cc
void estimate_ends(State& state, const Now& now);

// rank_events.cc
void on_rank_events(Step& step, Node& node, const RankEvents& events);
void take_finished_step(Step& step, LiveJob& job, int attempt, int64_t train_step, Change& change);

// refusals.cc
absl::Status check_cluster(const Options& options, const Registration& hello);
void note_refusal(Step& step, const Registration& hello, const absl::Status& why);
void forget_refusals(Step& step);

// requests.cc
// The checks of CreateJob without its effect; the job as it would be. Errors: those of CreateJob.
absl::StatusOr<JobViewPtr> would_create(const State& state, const Options& options, const job::Spec& spec);
void start_cancel(Step& step, const CancelAccepted& accepted);
void cordon(Step& step, const CordonNode& input, bool leave);

// scheduling.cc
void request_schedule(Step& step, bool urgent);
void say_who_is_awaited(Step& step);
void set_pending(LiveJob& job, const std::string& reason, const std::string& message, Change& change);
bool schedule_is_due(State& state, const Now& now);

// slow_ranks.cc
std::vector<SlowRank> slow_ranks_on(const LiveJob& job, const std::string& node);
std::vector<SlowRank> slow_ranks(const LiveJob& job);
void compare_ranks(Step& step, LiveJob& job);

// step.cc
// What is decided and not yet durable comes first.
void answer_when_shown(Step& step, RequestId request, const std::string& job);

// strays.cc
bool knows(const State& state, const std::string& uid);
Stray& stray_of(Step& step, Node& node, const AttemptKey& key);
void take_stray(Step& step, Node& node, const AttemptKey& key, PartPhase phase, bool holds = false,
                bool overdue = false);
void stop_lost(Step& step, const std::string& node);
void stop_dismissed(Step& step, const std::string& node, const AttemptKey& key);
void drop_stray(Step& step, const std::string& node, const AttemptKey& key);
void claim_stray(State& state, const std::string& node, const AttemptKey& key, Stray& stray);
std::vector<int> recorded_devices(const Jobs& jobs, const AttemptKey& key, const std::string& node);
std::set<std::string> jobs_that_still_save(const State& state, const Now& now);

// time_limit.cc
absl::Time scheduler_time(absl::Duration monotonic);
void note_time_limit(const Now& now, LiveJob& job);
absl::Duration time_left(const Now& now, const LiveJob& job);
absl::Time expected_end(const LiveJob& job);
void check_time_limits(Step& step);
bool is_out_of_time(const LiveJob& job);
void explain_time_limit(LiveJob& job);

// update.cc
// Likewise for UpdateJob.
absl::StatusOr<JobViewPtr> would_update(const State& state, const UpdateJob& input);
void load_update(Step& step, const store::Record& record);

// waits.cc
void explain_waits(Step& step);
void end_explanation(LiveJob& job);

// job_end.cc
void end_job(Step& step, LiveJob& job, Change& change);
void leave_queue(State& state, LiveJob& job);

// leases.cc
inline constexpr char kNodeUnreachable[] = "NODE_UNREACHABLE";  // Why a job waits.
void check_leases(Step& step);
void lose_part(Step& step, LiveJob& job, const std::string& node);

// sessions.cc
void note_steady(Step& step, Node& node);

}  // namespace titan::core
