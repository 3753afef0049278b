#pragma once

// Internal interface between the files of controller/core. Nothing else includes it.

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

// The state that a step works on, and the effects that it has collected so far.
struct Step {
  State& state;
  const CoreOptions& options;
  const Now now;
  Effects& effects;
  std::set<std::string> touched = {};  // Nodes whose views this step publishes again.

  // Appends the change to the effects, unless it is empty.
  void commit(Change change);
  // Sets what to do once the change's outcome is known. A change has one continuation: effects on several jobs need
  // several changes.
  void expect(Change& change, Continuation continuation);
  // Sends to the node's session, if it has one. A command that still matters is sent again to its next session.
  void send(const std::string& node, NodeCommand command);
  // Answers the request with an error.
  void refuse(RequestId request, const absl::Status& why);
  void measure(MetricSample::Kind kind, double value, std::string label = "");
  void touch(const std::string& node) { touched.insert(node); }
};

// Handle one input each. Each is defined in the file of its subject: requests.cc, sessions.cc and so on.
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
void take(Step& step, MessageReceived& input);  // Moves out of `input`.
void take(Step& step, const CloseSession& input);
void take(Step& step, const Tick& input);
void take(Step& step, const Durable& input);
void take(Step& step, const SpecUnreadable& input);
void take(Step& step, const Compared& input);
// Continue once the awaited change is durable or was refused.
void on_outcome(Step& step, const Created& what, const absl::Status& status);
void on_outcome(Step& step, const CancelAccepted& what, const absl::Status& status);
void on_outcome(Step& step, const UpdateAccepted& what, const absl::Status& status);
void on_outcome(Step& step, const Cordoned& what, const absl::Status& status);
void on_outcome(Step& step, const Deleted& what, const absl::Status& status);
void on_outcome(Step& step, const Dismissed& what, const absl::Status& status);
void on_outcome(Step& step, const SendCommand& sent, const absl::Status& status);

// attempt_end.cc
// Call it last for everything that may end the attempt. It stops the rest once a part has failed, decides what follows
// once all parts have ended, and commits `change`. `since_failure`: time since a part failed.
void conclude(Step& step, LiveJob& job, Change change, absl::Duration since_failure);
// Stops the job as its record's intent says and commits `change`. A job without an attempt ends at once by `over`,
// unless end_or_leave() finds ranks left.
void carry_out_stop(Step& step, LiveJob& job, job::JobEvent over, Change change);
// Add the report to the attempt, and its record to the change.
void add_error(LiveJob& job, job::ErrorReport error, Change& change);
void add_refusal(LiveJob& job, job::Refusal refusal, Change& change);
// Erases the records of the attempt's exits, errors and refusals, also those that `change` itself writes.
void erase_reports(const LiveJob& job, Change& change);

// attempt_progress.cc
// Records how long the phase took that began at `since`. Does nothing if that is not known.
void note_phase(Step& step, LiveJob& job, const std::string& phase, std::optional<absl::Duration> since);
// Marks the job as running when its attempt finishes its first step. Does nothing later.
void note_first_step(Step& step, LiveJob& job, Change& change);
// Takes a finished step of the attempt and a full commit (0: none).
void take_progress(Step& step, LiveJob& job, int64_t train_step, int64_t commit, Change& change);

// attempt_reports.cc, beats.cc
bool left_well(const job::RankExit& exit);  // True if it finished, or saved and left on request.
void on_report(Step& step, Node& node, const AttemptReport& report);
void on_beat(Step& step, Node& node, const Beat& beat);

// attempt_start.cc
// Begins the job's next attempt. Its nodes are sent Prepare once its record is durable.
void start_attempt(Step& step, LiveJob& job, std::vector<job::Placement> placements);
// Makes `attempt` the job's attempt and claims its devices.
void set_attempt(Step& step, LiveJob& job, LiveAttempt attempt);
// Removes the job's attempt. Its devices stay claimed for the job.
void drop_attempt(Step& step, LiveJob& job);
// Starts the ranks once every node is prepared and the store's port is known.
void start_when_prepared(Step& step, LiveJob& job, Change& change);

// blame.cc
// Makes the job avoid the nodes that failed it, and records which nodes failed by themselves or were lost.
void blame_nodes(Step& step, LiveJob& job, const job::AttemptEnd& end, const std::vector<std::string>& lost);
// True if a node outside the attempt could take ranks of the job.
bool can_go_elsewhere(const NodeTable& nodes, const LiveJob& job);
// Cordons the node and adds the event to `change`. The caller writes the node's record.
void cordon_by_controller(Step& step, Node& node, const std::string& why, Change& change);
// True if the controller may take the node out of service without an operator.
bool may_cordon(const NodeTable& nodes, const Node& node);

// changes.cc
// Add the record to the change. put_job() also publishes the job's view, put_node() the node's.
void put_job(Change& change, LiveJob& job);
void put_attempt(Change& change, const LiveJob& job, const job::AttemptRecord& record);
void put_progress(Change& change, const LiveJob& job);
void put_node(Step& step, Change& change, const Node& node);
// Add an event to the change. The caller writes the job's or node's record afterwards, since it counts the events.
void add_event(const Step& step, Change& change, LiveJob& job, job::EventRecord event);
void add_node_event(const Step& step, Change& change, Node& node, absl::string_view reason, std::string message,
                    absl::string_view severity, std::string actor = "", std::string job = "");
JobViewPtr view_of(const LiveJob& job);
LiveJob ended_job(const JobView& view);  // Returns a copy of an ended job, to be changed.
// Publishes the job's view with the change.
void show(Change& change, const LiveJob& job);
// Moves the job to its next state. False: the event has no meaning in this state, and nothing changes.
bool apply(LiveJob& job, job::JobEvent event);

// claims.cc
// Passes the node's present properties to the scheduler.
void update_scheduler_node(Step& step, const Node& node);
// Gives up the part and releases its devices.
void release_part(Step& step, LiveJob& job, const std::string& node);
// Takes over the devices that the node reports for its part.
void note_devices(SchedulingQueue& queue, LiveJob& job, const std::string& node, const AttemptInventory& item);
// Holds the job back, for instance until its backoff is over. Its held devices stay reserved.
void hold_back(SchedulingQueue& queue, LiveJob& job);
// Lets the job wait for devices.
void enter_queue(Step& step, LiveJob& job);
// Ends reservations and avoidances that are older than CoreOptions::reserve_grace.
void drop_expired_preferences(Step& step);

// commands.cc
// Send the attempt's command to its nodes, except to those without a session.
void send_prepare(Step& step, LiveJob& job, const std::vector<std::string>& nodes);
void send_start(Step& step, LiveJob& job, const std::string& name);
void send_checkpoint(Step& step, LiveJob& job, const std::string& name);
void send_stop(Step& step, LiveJob& job, const std::string& name);
void stop_everywhere(Step& step, LiveJob& job);
// Returns the command to forget the attempt. Nothing if the node has no session.
std::optional<Send> forget(const NodeTable& nodes, const AttemptKey& key, const std::string& name);

// deadlines.cc
// Returns the longest time that a stop of the attempt takes: to save, if it may, and to be killed.
absl::Duration stop_time(const LiveJob& job);
// Set attempt.stop_by, when the stop begins or after a restart of the controller.
void set_stop_deadline(const Now& now, LiveJob& job);
void restore_stop_deadline(const Now& now, LiveJob& job);
// Returns the monotonic time by which the node must have stopped its part. Sets part.stop_by if it is not set.
absl::Duration stop_deadline(const Now& now, const LiveJob& job, NodePart& part);
// Sets the grace and the deadline of `stop`, so that the part ends by `by`.
void add_stop_times(const Now& now, Stop& stop, const LiveJob& job, absl::Duration by);
// Returns the time limit to send with a Prepare. It passes before the controller's own deadline.
absl::Duration prepare_time(const CoreOptions& options, const Now& now, const LiveAttempt& attempt);
// Gives up parts that missed a deadline although their node is connected.
void check_deadlines(Step& step);
// Gives up the part. It becomes a stray that keeps its devices until the node reports them free.
void abandon_part(Step& step, LiveJob& job, const std::string& name);
// Handles a node's report that ranks do not end.
void take_stop_timeout(Step& step, LiveJob& job, Node& node, const std::string& message);
// Handles the end of a part that was given up before.
void end_abandoned_part(Step& step, LiveJob& job, const std::string& node, Change& change);

// deletions.cc
// Remembers a deleted job and the request that created it.
void remember_deleted(State& state, const Now& now, const std::string& uid, job::Tombstone tombstone);
// Forgets jobs that were deleted more than a day ago, once every node is READY.
void forget_deleted_jobs(Step& step);
// Checks a repeated request against job `uid`, which it created before. Ok: that job is the answer.
absl::Status check_repeated(const State& state, const CreateJob& input, const std::string& uid);
// Deletes jobs that ended longer ago than CoreOptions::keep_finished.
void delete_old_jobs(Step& step);

// diagnosis.cc
// Queries the attempt's nodes for what its ranks do, if its end leaves that open. False: nothing was sent.
bool begin_diagnosis(Step& step, LiveJob& job);
// Repeats the query to a node's new session.
void ask_again(Step& step, LiveJob& job, const Node& node);
void on_diagnosis(Step& step, Node& node, Diagnosis answer);
// Ends diagnoses that have all answers, or no more time.
void check_diagnoses(Step& step);
// Continues the diagnosis of a loaded attempt.
void restore_diagnosis(const Cycles& cycles, LiveJob& job);
// Hands the findings out for comparison.
void end_diagnosis(Step& step, LiveJob& job);

// drain.cc
bool is_draining(const NodeTable& nodes, const std::string& name);
// Lets the ranks on a draining node save and leave.
void drain_ranks(Step& step, const std::string& name);
// Does the same and answers the request with the node.
void ask_to_leave(Step& step, const std::string& name, RequestId request);

// failed_logs.cc
// Stores the end of the exit's log if it is wanted and fits into the limit. True: exit.kept_log_bytes was set.
bool keep_failed_log(Step& step, LiveJob& job, const job::FailedLog& said, job::RankExit& exit, Change& change);
// Call when the newest attempt in job.past has just ended. Drops the logs of the attempt that is now one too many.
void close_failed_logs(Step& step, LiveJob& job, Change& change);
// Drops the oldest logs until `bytes` more fit. False: the remaining logs belong to attempts that have not ended.
bool evict_logs(Step& step, int64_t bytes);
// Counts the logs of a job from its view.
void count_kept_logs(KeptLogs& kept_logs, const JobView& view);

// folders.cc
// Errors: FailedPrecondition (DUMP_FOLDER_IN_USE).
absl::Status check_folder(const State& state, const job::SchedulingSpec& spec);
// Forgets the id of the job's dump folder, unless something was trained under it.
void doubt_folder_id(Folders& folders, LiveJob& job);
// Takes the id of the folder that the leader's node prepared. False: the attempt must not start.
bool take_folder_id(Step& step, LiveJob& job, const std::string& node, const std::string& id, Change& change);

// foreign_reports.cc
// Returns the attempt's record, or nullptr if the store has none.
const job::AttemptRecord* recorded(const Jobs& jobs, const AttemptKey& key);
// True if the attempt has a record that places nothing on the node.
bool is_elsewhere(const Jobs& jobs, const std::string& node, const AttemptKey& key);
// True if the node may report on the rank.
bool may_report(const State& state, const Node& node, const AttemptKey& key, int rank);
// False if the node already has too many strays.
bool may_list(Step& step, Node& node, const AttemptKey& key);
// Records, once per session, that the node reported on what is not its own.
void note_foreign(Step& step, Node& node, const std::string& what, const std::string& job = "");

// hangs.cc
// Records that ranks of the attempt made progress. `quiet`: during a phase that may take long without any.
void note_advance(const Pauses& pauses, const Now& now, LiveAttempt& attempt, bool quiet);
// Takes the progress of the part's ranks from a beat.
void note_beat(Step& step, LiveJob& job, NodePart& part, const AttemptBeat& beat);
// Starts to watch the attempt for hangs, when its nodes are sent Start.
void begin_watch(const Now& now, LiveAttempt& attempt);
// Returns the ranks that Titan killed after a long time without progress: those that were furthest behind.
std::vector<job::HungRank> hung_ranks(const LiveJob& job);
// Ends attempts whose ranks make no progress.
void check_hangs(Step& step);
// Extends leases and deadlines by a pause of this process.
void excuse_own_pause(Step& step);

// inventory.cc
// Brings together what a registered node runs and what it should run.
void compare_inventory(Step& step, Node& node, const Registration& hello);
LiveJob* job_of(Jobs& jobs, const AttemptKey& key);  // nullptr: this is not the job's live attempt.
// Returns the node's part of the job's attempt. nullptr: it has none, or its part was given up.
NodePart* part_of(LiveJob* job, const std::string& node);

// left_behind.cc
// Records that the attempt's ranks may still run on the silent node.
void leave_behind(Step& step, LiveJob& job, const std::string& node);
// Does the same for ended attempts after a restart of the controller.
void restore_left_behind(Step& step, const LiveJob& job);
// Records that the attempt's ranks are gone from the node or need not be waited for.
void note_end_there(Step& step, const std::string& node, const AttemptKey& key);
// Limits the wait for ranks on a node that is connected again.
void bound_left_behind(Step& step, const std::string& node);
// Says where ranks of the newest attempt may still run.
std::string where_left(const State& state, const LiveJob& job);
// Ends the job by `over`. While ranks may still train, it becomes STOPPING instead.
void end_or_leave(Step& step, LiveJob& job, job::JobEvent over, Change& change);
// Ends jobs whose last ranks are gone.
void check_left_behind(Step& step);
// Gives up everything on a node that an operator reports as switched off.
void give_up_node(Step& step, const std::string& node);

// load.cc
// Reports an unusable record, for the caller to move out of the way.
void set_aside(Step& step, const store::Record& record, std::string why);
void load_all(Step& step, const std::vector<store::Record>& records, const std::vector<std::string>& lost);

// node_condition.cc
// Takes a node's report on itself: whether it can prepare ranks, and the time on its clock.
void note_condition(Step& step, Node& node, const std::string& unusable, int64_t unix_nanoseconds);

// nodes.cc
NodeView node_view(const State& state, const Node& node);
// Returns the node as clients see it, or a refused worker. Nothing: the name is not known.
std::optional<NodeView> shown_node(const State& state, const std::string& name);
std::vector<NodeView> node_views(const State& state);
void touch_nodes_of(Step& step, const LiveJob& job);
// Publishes the views of the touched nodes.
void end_step(Step& step);
SessionId session_of(const NodeTable& nodes, const std::string& name);  // 0: the node has no open session.

// pace.cc
// Passes the expected ends of jobs without a time limit to the scheduler.
void estimate_ends(State& state, const Now& now);

// rank_events.cc
void on_rank_events(Step& step, Node& node, const RankEvents& events);
// Takes a finished step of the job's attempt with this number, which may have ended.
void take_finished_step(Step& step, LiveJob& job, int attempt, int64_t train_step, Change& change);

// refusals.cc
// Errors: FailedPrecondition (WRONG_CLUSTER).
absl::Status check_cluster(const CoreOptions& options, const Registration& hello);
// Lists a refused worker, and reports it at most once a minute while the reason stays the same.
void note_refusal(Step& step, const Registration& hello, const absl::Status& why);
void forget_refusals(Step& step);

// requests.cc
// Checks a new job and returns it as it would be. Errors: those of Core::would_create.
absl::StatusOr<JobViewPtr> would_create(const State& state, const CoreOptions& options,
                                        const job::SchedulingSpec& spec);
// Carries out an accepted cancel.
void start_cancel(Step& step, const CancelAccepted& accepted);
// Cordons the node or puts it back into service. `leave`: drains it, too.
void cordon(Step& step, const CordonNode& input, bool leave);

// scheduling.cc
// Runs a scheduling cycle now, or later: once the first cycle may run and, if it is not urgent, after the pause between
// cycles.
void request_schedule(Step& step, bool urgent);
// Shows in waiting jobs that nodes have not registered since the controller's start.
void explain_reconciling(Step& step);
// Sets why the job waits. Publishes its view if that changed.
void set_pending(LiveJob& job, const std::string& reason, const std::string& message, Change& change);
bool schedule_is_due(State& state, const Now& now);

// slow_ranks.cc
std::vector<SlowRank> slow_ranks_on(const LiveJob& job, const std::string& node);
std::vector<SlowRank> slow_ranks(const LiveJob& job);
// Reports ranks that became slow or have recovered. Nothing else follows from it.
void compare_ranks(Step& step, LiveJob& job);

// step.cc
// Answers with the job's view once all earlier changes are durable.
void answer_when_shown(Step& step, RequestId request, const std::string& job);

// strays.cc
// True if the job exists or was deleted not long ago.
bool knows(const State& state, const std::string& uid);
// Returns the stray, which it adds if there is none.
Stray& stray_of(Step& step, Node& node, const AttemptKey& key);
// Claims, lists, stops or forgets a stray, as its state requires. See strays.cc for `holds` and `overdue`.
void take_stray(Step& step, Node& node, const AttemptKey& key, PartPhase phase, bool holds = false,
                bool overdue = false);
// Stops what was given up on a node that is heard again in its old session.
void stop_lost(Step& step, const std::string& node);
// Stops a stray that an operator dismissed.
void stop_dismissed(Step& step, const std::string& node, const AttemptKey& key);
// Forgets a stray and frees its devices.
void drop_stray(Step& step, const std::string& node, const AttemptKey& key);
// Claims the stray's devices, so that nobody else gets them.
void claim_stray(State& state, const std::string& node, const AttemptKey& key, Stray& stray);
// Returns the devices that the attempt's record names on the node. Empty: not known.
std::vector<int> recorded_devices(const Jobs& jobs, const AttemptKey& key, const std::string& node);
// Returns the uids of jobs that must wait because a stray of them still saves.
std::set<std::string> jobs_that_still_save(const State& state, const Now& now);

// time_limit.cc
// Converts a monotonic time into the scheduler's time.
absl::Time scheduler_time(absl::Duration monotonic);
// Sets job.ends_by once the job has a time limit and was placed.
void note_time_limit(const Now& now, LiveJob& job);
// Returns how long the job may still hold devices.
absl::Duration time_left(const Now& now, const LiveJob& job);
// Returns when the job is expected to free its devices, by its limit or at its pace.
absl::Time expected_end(const LiveJob& job);
// Stops jobs whose time limit is over.
void check_time_limits(Step& step);
// True if the job was stopped for its time limit.
bool is_out_of_time(const LiveJob& job);
// Writes the time limit into the record as the reason of failure.
void explain_time_limit(LiveJob& job);

// update.cc
// Checks an update and returns the job as it would be. Errors: those of Core::would_update.
absl::StatusOr<JobViewPtr> would_update(const State& state, const UpdateJob& input);
// Carries out an update that was accepted before a restart of the controller.
void load_update(Step& step, const store::Record& record);

// waits.cc
// Explains every few seconds what attempts wait for.
void explain_waits(Step& step);
// Clears the explanation, since the awaited event has come. The caller publishes the job's view.
void end_explanation(LiveJob& job);

// job_end.cc
// Writes the end of a job that is in a final state.
void end_job(Step& step, LiveJob& job, Change& change);
// Moves an ended job from the live jobs to the ended ones.
void leave_queue(State& state, LiveJob& job);

// leases.cc
inline constexpr char kNodeUnreachable[] = "NODE_UNREACHABLE";  // Pending reason of a job.
// Marks nodes whose lease is over, and gives up the parts that are lost with them.
void check_leases(Step& step);
// Gives up the part because its node is lost.
void lose_part(Step& step, LiveJob& job, const std::string& node);

// sessions.cc
// Records that a flapping node is steady again.
void note_steady(Step& step, Node& node);

}  // namespace titan::core
