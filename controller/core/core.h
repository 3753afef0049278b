#pragma once

// The one decider about jobs, attempts and nodes, as a value: an input and the time go in, effects come out. It reads
// no clock, no disk and no network, has no threads and no randomness of its own, and never waits. Its state is ahead of
// the store by the changes that are on their way there; whoever runs it writes them in order and says when they are
// durable.

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "controller/core/effect.h"
#include "controller/core/input.h"
#include "controller/core/kept_logs.h"
#include "controller/core/live_job.h"
#include "controller/core/node_table.h"
#include "controller/core/stray.h"
#include "controller/core/view.h"
#include "controller/scheduler/scheduler.h"
#include "controller/store/store.h"
#include "nlohmann/json.hpp"

namespace titan::core {

struct Options {
  absl::Duration lease = absl::Seconds(5);
  absl::Duration beat = absl::Seconds(1);
  absl::Duration prepare_timeout =
      absl::Seconds(75);                             // For a part of an attempt; nodes give up after 60 s and say why.
  absl::Duration reserve_grace = absl::Seconds(60);  // For the devices that a recovering job waits to come back to.
  int64_t events_kept = 10'000;                      // Per job and per node.
  int64_t kept_logs_bytes = int64_t{256} << 20;      // Of the ends of failed ranks' logs, all jobs together.
  absl::Duration keep_finished = absl::InfiniteDuration();  // Jobs that ended longer ago are deleted.
  int64_t default_time_limit_seconds = 0;                   // Of jobs that give none; 0: none.
  std::string cluster;                                      // The store's id.
  int64_t leader_epoch = 0;        // That commands carry where another controller may lead one day; 0: none may.
  std::function<double()> jitter;  // In [0, 1), for backoffs.
};

class Core {
 public:
  explicit Core(Options options);

  // Once, before any step, with every record below loaded_prefixes(), by key. Scheduling begins when every known node
  // has registered, or after one lease. The views among the effects carry their revisions. `lost`: keys of records that
  // the store itself could not read.
  static const std::vector<std::string>& loaded_prefixes();
  Effects load(const std::vector<store::Record>& records, const std::vector<std::string>& lost, const Now& now);

  Effects step(const Input& input, const Now& now);

  // Reads. They show what is decided, which may not be durable yet.

  // The checks of CreateJob without its effect; the job as it would be. Errors: those of CreateJob.
  absl::StatusOr<JobViewPtr> would_create(const job::Spec& spec) const;
  // Likewise for UpdateJob.
  absl::StatusOr<JobViewPtr> would_update(const UpdateJob& input) const;
  // Why the job could not run on the nodes there are, if all their devices were free; nothing when it could.
  std::optional<scheduler::Misfit> misfit(const job::Spec& spec) const;
  // All nodes by name, made anew: what the effects of all steps so far have shown.
  std::vector<NodeView> nodes() const;
  SessionId session_of(const std::string& node) const;  // 0: nobody speaks for it now.
  bool scheduling() const { return scheduling_; }

 private:
  // --- what is done once a transaction's outcome is known ---
  struct Created {
    std::string uid;
  };
  struct CancelAccepted {
    RequestId request = 0;
    std::string uid;
    bool now = false;
    std::string actor;
    std::string request_id;
  };
  struct UpdateAccepted {
    UpdateJob asked;
  };
  struct Cordoned {
    CordonNode asked;
    bool leave = false;  // Of a drain.
  };
  struct Deleted {
    RequestId request = 0;
    JobViewPtr view;
    job::Tombstone tombstone;
  };
  struct Dismissed {
    StopUnknown asked;
    std::vector<AttemptKey> keys;
  };
  // Said to the nodes of an attempt if it still is what it was.
  enum class Command { kPrepare, kStart, kCheckpoint, kStop };
  struct Tell {
    AttemptKey attempt;
    Command command = Command::kPrepare;
    std::vector<std::string> nodes;
  };
  using Continuation = std::variant<Created, CancelAccepted, UpdateAccepted, Cordoned, Deleted, Dismissed, Tell>;
  using CursorKey = std::tuple<std::string, int, int>;  // uid, attempt, rank
  struct Creation {
    LiveJob job;
    std::vector<RequestId> waiting;
  };

  // step.cc
  void take(const CreateJob& input);
  void take(const UpdateJob& input);
  void take(const CancelJob& input);
  void take(const CheckpointJob& input);
  void take(const ProfileJob& input);
  void take(const DeleteJob& input);
  void take(const CordonNode& input);
  void take(const DrainNode& input);
  void take(const DeleteNode& input);
  void take(const StopUnknown& input);
  void take(const OpenSession& input);
  void take(const Heard& input);
  void take(const CloseSession& input);
  void take(const Tick& input);
  void take(const Durable& input);
  void take(const SpecUnreadable& input);
  void take(const Compared& input);
  void go_on(const Created& created, const absl::Status& status);
  void go_on(const CancelAccepted& accepted, const absl::Status& status);
  void go_on(const UpdateAccepted& accepted, const absl::Status& status);
  void go_on(const Cordoned& cordoned, const absl::Status& status);
  void go_on(const Deleted& deleted, const absl::Status& status);
  void go_on(const Dismissed& dismissed, const absl::Status& status);
  void go_on(const Tell& tell, const absl::Status& status);
  void expect(Change& change, Continuation continuation);
  void send(const std::string& node, v1::ControllerMessage message);
  void refuse(RequestId request, const absl::Status& why);
  void answer_when_shown(RequestId request, const std::string& job);

  // load.cc
  template <typename Record>
  std::optional<Record> read(const store::Record& record);  // Nothing: it is set aside.
  void set_aside(const store::Record& record, std::string why);
  void load_jobs(const std::vector<store::Record>& records, const std::vector<std::string>& lost);
  void restore_held(LiveJob& job);
  // What was said of an attempt that has not ended.
  struct Reports {
    std::map<int, job::RankExit> exits;
    std::vector<job::ErrorReport> errors;
    std::vector<job::Refusal> refusals;
  };
  std::map<AttemptKey, Reports> load_reports(const std::vector<store::Record>& records);
  void restore_attempt(LiveJob& job, job::AttemptRecord record, Reports reports);

  // changes.cc
  void commit(Change change);
  void put_job(Change& change, LiveJob& job);
  void put_attempt(Change& change, const LiveJob& job, const job::AttemptRecord& record);
  void put_progress(Change& change, const LiveJob& job);
  void put_node(Change& change, const Node& node);
  void add_event(Change& change, LiveJob& job, job::EventRecord event);
  // `job`: whose name the message has, so that it is shown to those alone who may see that job.
  void add_node_event(Change& change, Node& node, absl::string_view reason, std::string message,
                      absl::string_view severity, std::string actor = "", std::string job = "");
  void show(Change& change, const LiveJob& job);
  void measure(Measure::Kind kind, double value, std::string label = "");
  static JobViewPtr view_of(const LiveJob& job);
  static LiveJob ended_job(const JobView& view);  // One that is over, for as long as it is changed.
  static bool apply(LiveJob& job, job::JobEvent event);
  int64_t now_ns() const;

  // requests.cc
  absl::Status check_new(const job::Spec& spec, const std::string& name) const;
  job::Spec limited(job::Spec spec) const;
  void start_cancel(const CancelAccepted& accepted);
  absl::StatusOr<LiveJob*> live_job(const std::string& uid, absl::string_view verb);
  void cordon(const CordonNode& input, bool leave);

  // update.cc
  void start_update(const UpdateJob& asked);
  void load_update(const store::Record& record);

  // nodes.cc
  std::vector<std::string> jobs_of(const std::string& node) const;
  std::string may_run_there(const std::string& node) const;
  NodeView node_view(const Node& node) const;
  std::optional<NodeView> shown_node(const std::string& name) const;
  void touch(const std::string& node) { touched_.insert(node); }
  void touch_nodes_of(const LiveJob& job);
  Effects end_step();

  // deletion.cc
  void remove(RequestId request, const JobViewPtr& view, const std::string& actor);
  void delete_old_jobs();
  void bury(const std::string& uid, job::Tombstone tombstone);
  void forget_deleted_jobs();
  absl::Status check_repeated(const CreateJob& input, const std::string& uid) const;

  // drain.cc
  bool is_draining(const std::string& node) const;
  void empty_node(const std::string& node);
  void ask_to_leave(const std::string& node, RequestId request);

  // attempts.cc
  void start_attempt(LiveJob& job, std::vector<job::Placement> placements);
  void set_attempt(LiveJob& job, LiveAttempt attempt);
  void drop_attempt(LiveJob& job);
  void start_when_prepared(LiveJob& job, Change& change);
  void conclude(LiveJob& job, Change change, absl::Duration since_failure);
  void carry_out_stop(LiveJob& job, job::JobEvent over, Change change);
  void add_error(LiveJob& job, job::ErrorReport error, Change& change);
  void add_refusal(LiveJob& job, job::Refusal refusal, Change& change);
  static void erase_reports(const LiveJob& job, Change& change);
  void begin_failure(LiveJob& job, Change& change, absl::Duration since_failure);
  void finish_attempt(LiveJob& job, Change& change);
  void retry_or_fail(LiveJob& job, const job::AttemptEnd& end, int64_t step, Change& change);
  void end_job(LiveJob& job, Change& change);
  void leave_queue(LiveJob& job);
  void note_first_step(LiveJob& job, Change& change);
  void take_progress(LiveJob& job, int64_t step, int64_t commit, Change& change);
  void note_phase(LiveJob& job, const std::string& phase, std::optional<absl::Duration> since);
  void drop_cursors(Change& change, const std::string& uid);
  void resolve_threads(LiveJob& job, const std::vector<job::Placement>& placements);

  // commands.cc
  std::shared_ptr<const rank_protocol::Launch> launch_of(const LiveJob& job) const;
  void send_prepare(LiveJob& job, const std::vector<std::string>& nodes);
  void send_start(LiveJob& job, const std::string& node);
  void send_checkpoint(LiveJob& job, const std::string& node);
  void send_stop(LiveJob& job, const std::string& node);
  void stop_everywhere(LiveJob& job);
  std::optional<Send> forget(const AttemptKey& key, const std::string& node) const;

  // workers.cc
  void welcome(Node& node, const v1::Register& hello);
  void end_waiting_for(const std::string& node);
  void excuse_parts(const std::string& node);
  absl::Duration deafness(const v1::WorkerMessage& message) const;
  void hear(Node& node, const v1::WorkerMessage& message);
  void on_beat(Node& node, const v1::Beat& beat);
  void on_report(Node& node, const v1::AttemptReport& report);
  void take_exits(LiveJob& job, Node& node, const v1::AttemptReport& report, Change& change,
                  absl::Duration& since_failure);

  // failed_logs.cc
  bool keep_failed_log(LiveJob& job, const v1::RankExitReport& said, job::RankExit& exit, Change& change);
  void close_failed_logs(LiveJob& job, Change& change);
  bool make_room_for_logs(int64_t bytes);
  void drop_oldest_logs(const AttemptKey& key);
  void drop_logs(std::shared_ptr<const job::AttemptRecord>& attempt, LiveJob& job, const char* why, Change& change);
  void count_kept_logs(const JobView& view);

  void check_leases();
  bool still_runs_without(LiveJob& job, const std::string& silent_node);
  void lose_part(LiveJob& job, const std::string& node);

  // node_condition.cc
  void note_condition(Node& node, const std::string& unusable, int64_t unix_nanoseconds);
  void note_unusable(Node& node, const std::string& why, Change& change);
  void note_clock(Node& node, int64_t unix_nanoseconds, Change& change);

  // refusals.cc
  absl::Status check_cluster(const v1::Register& hello) const;
  void note_refusal(const v1::Register& hello, const absl::Status& why);
  void forget_refusals();

  // inventory.cc
  void compare_inventory(Node& node, const v1::Register& hello);
  LiveJob* job_of(const v1::AttemptId& id);  // With exactly this attempt alive, or nullptr.
  static NodePart* part_of(LiveJob* job, const std::string& node);
  bool catch_up(Node& node, const v1::AttemptInventory& item);  // Whether it has adopted the attempt.
  void end_part_that_is_gone(LiveJob& job, const std::string& node);
  void end_parts_that_are_gone(const std::string& uid, const std::string& by);
  void adopt(LiveJob& job, const v1::AttemptInventory& item, std::vector<job::Placement> placements);
  void end_superseded(LiveJob& job, const v1::AttemptInventory& item, Change& change);

  // foreign.cc
  const job::AttemptRecord* recorded(const AttemptKey& key) const;
  bool is_elsewhere(const std::string& node, const AttemptKey& key) const;
  bool may_tell(const Node& node, const AttemptKey& key, int rank) const;
  bool may_list(Node& node, const v1::AttemptId& id);
  void note_foreign(Node& node, const std::string& what, const std::string& job = "");

  // strays.cc
  Stray& stray_of(Node& node, const v1::AttemptId& id);
  void take_stray(Node& node, const v1::AttemptId& id, v1::AttemptReport::Phase phase, bool holds = false,
                  bool overdue = false);
  void stop_stray(Node& node, const AttemptKey& key, Stray& stray);
  void stop_lost(const std::string& node);
  bool may_still_save(const AttemptKey& key) const;
  void stop_dismissed(const std::string& node, const AttemptKey& key);
  void list_unknown(Node& node, const AttemptKey& key, Stray& stray);
  void claim_stray(const std::string& node, const AttemptKey& key, Stray& stray);
  std::vector<int> recorded_devices(const AttemptKey& key, const std::string& node) const;
  void drop_stray(const std::string& node, const AttemptKey& key);
  bool knows(const std::string& uid) const;
  int devices_of_strays(const std::string& node) const;
  std::set<std::string> jobs_that_still_save() const;

  // left_behind.cc
  void leave_behind(LiveJob& job, const std::string& node);
  void restore_left_behind(const LiveJob& job);
  void note_end_there(const std::string& node, const AttemptKey& key);
  void bound_left_behind(const std::string& node);
  bool may_train_there(const std::string& node, const AttemptKey& key) const;
  bool is_left_behind(const LiveJob& job) const;
  std::string where_left(const LiveJob& job) const;
  void end_or_leave(LiveJob& job, job::JobEvent over, Change& change);
  void check_left_behind();
  void give_up_node(const std::string& node);

  // hangs.cc
  void note_beat(LiveJob& job, NodePart& part, const v1::AttemptBeat& beat);
  void note_advance(LiveAttempt& attempt, bool quiet) const;
  void begin_watch(LiveAttempt& attempt);
  void check_hangs();
  bool all_speak(const LiveAttempt& attempt) const;
  std::vector<job::HungRank> hung_ranks(const LiveJob& job) const;
  void excuse_own_pause();
  absl::Duration longest_tick() const;  // More between two ticks is a pause of this process,
  bool is_paused() const;               // after which no tick has come yet.

  // diagnosis.cc
  enum class Question { kNone, kDisagreement, kStandstill };
  static Question question_of(const LiveAttempt& attempt);  // What its end leaves to be asked.
  bool ask_ranks(LiveJob& job);
  void restore_question(LiveJob& job);
  void send_diagnose(const LiveJob& job, const std::string& node);
  void ask_again(LiveJob& job, const Node& node);
  void on_diagnosis(Node& node, const v1::Diagnosis& answer);
  void check_diagnoses();
  void end_diagnosis(LiveJob& job);

  // slow_ranks.cc
  void compare_ranks(LiveJob& job);
  static std::vector<SlowRank> slow_ranks_on(const LiveJob& job, const std::string& node);
  static std::vector<SlowRank> slow_ranks(const LiveJob& job);

  // waits.cc
  struct Wait {
    std::string reason;  // UPPER_SNAKE.
    std::string message;
  };
  std::string named_parts(const LiveAttempt& attempt, const std::vector<std::string>& nodes) const;
  Wait wait_of(const LiveJob& job) const;
  void explain_waits();
  static void end_explanation(LiveJob& job);

  // deadlines.cc
  static absl::Duration stop_grace(const LiveJob& job);  // To save in.
  static absl::Duration stop_time(const LiveJob& job);   // With the time to be killed in.
  void set_stop_deadline(LiveJob& job);
  void restore_stop_deadline(LiveJob& job);
  absl::Duration stop_deadline(const LiveJob& job, NodePart& part) const;
  void add_stop_times(v1::Stop& stop, const LiveJob& job, absl::Duration by) const;
  int64_t prepare_milliseconds(const LiveAttempt& attempt) const;
  void check_deadlines();
  void give_up_parts(LiveJob& job);
  struct GivenUp {
    std::string reason;  // UPPER_SNAKE.
    std::string event;
    std::string message;
  };
  void leave_devices(LiveJob& job, const std::string& node);
  void give_up_part(LiveJob& job, const std::string& node, const GivenUp& why, Change& change);
  void take_stop_timeout(LiveJob& job, Node& node, const std::string& message);
  void end_given_up(LiveJob& job, const std::string& node, Change& change);

  // time_limit.cc
  static absl::Time scheduler_time(absl::Duration monotonic);
  void note_time_limit(LiveJob& job) const;
  absl::Duration time_left(const LiveJob& job) const;
  absl::Time expected_end(const LiveJob& job) const;
  void check_time_limits();
  // pace.cc
  void estimate_ends();
  static std::optional<absl::Duration> steps_left_take(LiveAttempt& attempt, int64_t total, absl::Duration now);
  void tell_end(LiveJob& job, absl::Duration end);
  void end_by_time_limit(LiveJob& job);
  static bool is_out_of_time(const LiveJob& job);
  static void explain_time_limit(LiveJob& job);

  // rank_events.cc
  void on_rank_events(Node& node, const v1::RankEvents& events);
  void take_rank_event(LiveJob& job, int attempt, int rank, const std::string& node, const nlohmann::json& event,
                       Change& change, bool& job_changed);
  // repeats.cc
  bool is_to_be_told(const AttemptKey& attempt, const std::string& reason, std::string& message);
  void take_damage(LiveJob& job, int attempt, int rank, const std::string& node, const v1::SpoolDamage& damage,
                   Change& change, bool& job_changed);
  void take_step(LiveJob& job, int attempt, const nlohmann::json& event, Change& change);
  void note_stall(LiveAttempt& attempt, int64_t step, const nlohmann::json& metrics);
  void take_finished_step(LiveJob& job, int attempt, int64_t step, Change& change);
  void change_ended(LiveJob& job, int attempt, Change& change, const std::function<bool(job::AttemptRecord&)>& apply);

  // folders.cc
  absl::Status check_folder(const job::Spec& spec) const;
  void claim_folder(const job::JobRecord& record);
  void drop_folder(const job::JobRecord& record);
  void doubt_folder_id(LiveJob& job);
  bool take_folder_id(LiveJob& job, const std::string& node, const std::string& id, Change& change);

  // blame.cc
  void blame_nodes(LiveJob& job, const job::AttemptEnd& end, const std::vector<std::string>& lost);
  bool others_could_hold(const LiveJob& job, const std::string& without) const;
  bool can_go_elsewhere(const LiveJob& job) const;
  void blame(Node& node, const LiveJob& job, const std::string& reason);
  bool may_cordon(const Node& node) const;
  void cordon_by_controller(Node& node, const std::string& why, Change& change);
  void note_flapping(Node& node);
  void note_steady(Node& node);

  // claims.cc
  void tell_of(const Node& node);
  std::vector<int> claim(const std::string& owner, const std::string& node, std::vector<int> devices, int count,
                         absl::Time ends = absl::InfiniteFuture());
  void lose(LiveJob& job, const std::string& node);
  void note_devices(LiveJob& job, const std::string& node, const v1::AttemptInventory& item);
  void hold_back(LiveJob& job);
  void enter_queue(LiveJob& job);
  void leave_scheduler(const std::string& uid);
  void give_up_wishes();

  // scheduling.cc
  void request_schedule(bool urgent);
  bool schedule_is_due();
  void pause_scheduling();
  void say_who_is_awaited();
  void schedule();
  void fill_queue(Change& reasons);
  void set_pending(LiveJob& job, const std::string& reason, const std::string& message, Change& change);
  bool may_schedule();

  const Options options_;
  Now now_;          // Of the step that is being taken,
  Effects effects_;  // and what it wants so far.
  Token next_token_ = 1;
  std::map<Token, Continuation> expected_;

  std::map<std::string, LiveJob> jobs_;                // Not over, by uid.
  absl::flat_hash_map<std::string, JobViewPtr> over_;  // By uid.
  std::map<std::string, Creation> creating_;           // On their way to the store, by uid.
  Nodes nodes_;
  std::map<std::string, std::set<std::string>> jobs_on_;  // By node: uids of jobs whose attempt has a part there.
  absl::flat_hash_map<std::string, std::string> names_;   // All jobs: name to uid.
  // Live jobs: every name and id of a dump folder to the uid of the job that has it.
  absl::flat_hash_map<std::string, std::string> dump_folders_;
  absl::flat_hash_map<std::string, job::Tombstone> deleted_;  // By uid: jobs that were deleted,
  absl::flat_hash_set<std::string> deleting_;  // and uids of those whose deletion is on its way to the store.
  absl::flat_hash_map<std::string, std::string> requests_;  // request_id to uid.
  std::map<CursorKey, int64_t> cursors_;
  std::map<AttemptKey, std::map<std::string, int64_t>> repeats_;  // Warnings of ranks, by kind: how many there were.
  std::map<CursorKey, std::set<int64_t>> damage_told_;         // Offsets; a restarted controller may report one again.
  std::map<std::string, std::map<AttemptKey, Stray>> strays_;  // By node.
  std::map<std::string, std::map<AttemptKey, LeftBehind>> left_behind_;  // By node.
  std::set<std::string> leaving_;  // Uids of jobs that have no attempt and end once nothing of it is left behind.
  std::map<std::string, Refused> refused_;              // By node: of the last minute.
  std::set<std::string> touched_;                       // Nodes that this step shows anew.
  scheduler::Scheduler scheduler_;                      // What it is told: claims.cc.
  std::set<std::string> held_back_;                     // Uids of jobs that wait and are not in its queue yet.
  std::map<std::string, absl::Duration> choosy_until_;  // By uid: those in the queue that hold devices or avoid nodes.
  KeptLogs kept_logs_;
  int64_t next_order_ = 1;
  bool scheduling_ = false;
  absl::Duration schedule_after_;
  bool schedule_requested_ = false;
  absl::Duration next_cycle_ = absl::ZeroDuration();
  // Before the first tick the start counts: whoever stands still in between has heard nobody, either.
  absl::Duration last_tick_ = absl::ZeroDuration();
  absl::Duration awake_since_ = absl::ZeroDuration();  // The end of the last pause of this process, or its start.
  absl::Duration next_deletion_ = absl::ZeroDuration();
  absl::Duration next_explanation_ = absl::ZeroDuration();
  absl::Duration next_estimate_ = absl::ZeroDuration();
  std::set<std::pair<int64_t, std::string>> deleted_by_age_;  // When and uid: all of deleted_.
};

// What a job asks of the scheduler.
scheduler::Job asked_for(const job::Spec& spec);

// NotFound, JOB_NOT_FOUND. `what`: its name or uid.
absl::Status no_such_job(const std::string& what);
absl::Status no_such_node(const std::string& name);

}  // namespace titan::core
