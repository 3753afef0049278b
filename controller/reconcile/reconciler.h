#pragma once

// The one writer of job state. Requests, worker messages and time come in; transactions for the store and commands for
// workers go out. Every change is enqueued under the lock, becomes durable outside it, and only then is visible,
// answered or acted upon.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "common/clock/clock.h"
#include "common/journal/journal.h"
#include "common/sync/sync.h"
#include "controller/cluster/nodes.h"
#include "controller/planner/memory_fit.h"
#include "controller/reconcile/live_job.h"
#include "controller/reconcile/measures.h"
#include "controller/reconcile/published.h"
#include "controller/reconcile/stray.h"
#include "controller/scheduler/scheduler.h"
#include "controller/store/store.h"
#include "titan/v1/job.pb.h"
#include "titan/v1/worker.pb.h"

namespace titan::reconcile {

template <typename Result>
using Done = std::function<void(const absl::StatusOr<Result>&)>;

struct Options {
  absl::Duration lease = absl::Seconds(5);
  absl::Duration beat = absl::Seconds(1);
  int64_t events_kept = 10'000;                             // Per job and per node.
  absl::Duration keep_finished = absl::InfiniteDuration();  // Jobs that ended longer ago are deleted.
  std::string cluster;                                      // The store's id.
  std::function<double()> jitter;                           // In [0, 1), for backoffs.
  std::function<std::string()> new_id;                      // Random hexadecimal text, for uids and tokens.
  std::shared_ptr<journal::Journal> journal;                // Of decisions; none: they are not written.
};

// A node as clients see it.
struct NodeView {
  cluster::Node node;  // Without its session.
  int devices_used = 0;
  std::vector<std::string> jobs;
  std::vector<std::pair<AttemptKey, Stray>> unknown;  // Attempts there of jobs that this controller does not know.
  std::string refusal;                                // Why its registration was refused in the last minute.
};

class Reconciler {
 public:
  // Loads what the store holds. Scheduling begins when every known node has registered, or after one lease.
  // Errors: DataLoss naming the record that cannot be read.
  static absl::StatusOr<std::unique_ptr<Reconciler>> open(store::Store& store, const Clock& clock, Options options,
                                                          Measures& measures);
  ~Reconciler();

  // Clients. Each `done` runs once, when the change is durable, or at once with an error.
  // Errors of create: AlreadyExists (JOB_ID_IN_USE), FailedPrecondition (DUMP_FOLDER_IN_USE), InvalidArgument
  // (REQUEST_ID_REUSED), ResourceExhausted (disk). The same request_id gives the same job again.
  void create(job::Spec spec, const v1::JobSpec& stored, const std::string& request_id, uint32_t fingerprint,
              Done<JobViewPtr> done);
  // The checks of create without its effect; the job as it would be.
  absl::StatusOr<JobViewPtr> would_create(const job::Spec& spec) const;
  // Why the job could not run on the nodes there are, if all their devices were free; nothing when it could.
  std::optional<scheduler::Misfit> misfit(const job::Spec& spec) const;
  // The nodes that have such devices.
  std::vector<planner::Room> rooms(const std::string& device) const;
  // Idempotent. Errors: NotFound, FailedPrecondition for a job that is over in another way, ResourceExhausted.
  void cancel(const std::string& uid, bool now, Done<JobViewPtr> done);
  // Errors: NotFound, FailedPrecondition (JOB_NOT_RUNNING, CHECKPOINTS_DISABLED).
  void checkpoint(const std::string& uid, Done<JobViewPtr> done);
  // Notes that ranks of the job are asked for a trace; the asking is the caller's. Answers with the job as it is, whose
  // newest attempt is the one that trains. Errors: NotFound, FailedPrecondition (JOB_OVER, JOB_NOT_RUNNING).
  void profile(const std::string& uid, const std::vector<int>& ranks, int steps, Done<JobViewPtr> done);
  // Takes a job that is over out of the store with its attempts and events; what lies in its dump folder stays. The
  // answer is the job as it was. Errors: NotFound, FailedPrecondition (JOB_NOT_OVER), ResourceExhausted.
  void remove(const std::string& uid, Done<JobViewPtr> done);
  // Errors: NotFound, ResourceExhausted.
  void cordon(const std::string& node, bool cordoned, const std::string& reason, Done<NodeView> done);
  // Cordons the node, and lets what it runs save and go on elsewhere. Idempotent. Errors: those of cordon.
  void drain(const std::string& node, const std::string& reason, Done<NodeView> done);
  // Ends what a node runs of a job that this controller does not know: its ranks may save within `grace`. Answered once
  // the node was told. Errors: NotFound (node; or JOB_NOT_UNKNOWN), Unavailable.
  void stop_unknown(const std::string& node, const std::string& uid, absl::Duration grace, Done<NodeView> done);

  // Workers. A session registers once; later messages of a session that is no longer its node's are ignored.
  // Errors: those of Nodes::open_session; FailedPrecondition (WRONG_CLUSTER).
  absl::Status open_session(const v1::Register& hello, const std::shared_ptr<cluster::Session>& session);
  void on_message(const std::string& node, const std::shared_ptr<cluster::Session>& session,
                  const v1::WorkerMessage& message);
  void close_session(const std::string& node, const cluster::Session* session);
  // For reading logs. Errors: Unavailable when nobody speaks for the node now.
  absl::Status send(const std::string& node, const v1::ControllerMessage& message);

  // Leases, deadlines, backoffs: call about ten times a second.
  void tick();
  // After each group of transactions: what waited for it.
  void on_durable();

  // Reads.
  Published& published() { return published_; }
  std::vector<NodeView> nodes() const;
  absl::StatusOr<NodeView> node(const std::string& name) const;
  absl::StatusOr<v1::JobSpec> stored_spec(const std::string& uid) const;
  bool scheduling() const;

 private:
  // What one step of reconciliation changes.
  struct Change {
    std::vector<store::Mutation> mutations;
    std::vector<JobViewPtr> views;
    std::vector<std::function<void()>> then;  // Under the lock, once durable.
    std::vector<journal::Line> lines;
    store::WhenFull when_full = store::WhenFull::kRetry;
  };
  using CursorKey = std::tuple<std::string, int, int>;  // uid, attempt, rank

  Reconciler(store::Store& store, const Clock& clock, Options options, Measures& measures);
  // load.cc
  absl::Status load() TITAN_EXCLUDES(mutex_);
  absl::Status load_jobs();
  void restore_attempt(LiveJob& job, job::AttemptRecord record);

  // changes.cc
  void commit(Change change) TITAN_REQUIRES(mutex_);
  void put_job(Change& change, LiveJob& job);
  void put_attempt(Change& change, const LiveJob& job, const job::AttemptRecord& record);
  void put_progress(Change& change, const LiveJob& job);
  void put_node(Change& change, const cluster::Node& node);
  void add_event(Change& change, LiveJob& job, job::EventRecord event);
  void add_node_event(Change& change, cluster::Node& node, absl::string_view reason, std::string message,
                      absl::string_view severity);
  void show(Change& change, const LiveJob& job);
  void write(const std::vector<journal::Line>& lines) const;
  JobViewPtr view_of(const LiveJob& job) const;
  bool apply(LiveJob& job, job::JobEvent event);
  int64_t now_ns() const;

  // requests.cc
  absl::Status check_new(const job::Spec& spec, const std::string& name) const TITAN_REQUIRES(mutex_);
  void start_cancel(const std::string& uid, bool now, Done<JobViewPtr> done) TITAN_REQUIRES(mutex_);
  absl::StatusOr<LiveJob*> live_job(const std::string& uid, absl::string_view verb) TITAN_REQUIRES(mutex_);
  NodeView node_view(const cluster::Node& node) const TITAN_REQUIRES(mutex_);
  bool can_save(const std::string& uid) const;  // False: its configuration turns checkpoints off.

  // deletion.cc
  void forget_job(const job::JobRecord& record, int64_t revision) TITAN_REQUIRES(mutex_);
  bool time_to_delete_old() TITAN_REQUIRES(mutex_);
  void delete_old_jobs() TITAN_EXCLUDES(mutex_);

  // drain.cc
  void ask_to_leave(const std::string& node, Done<NodeView> done) TITAN_EXCLUDES(mutex_);

  // attempts.cc
  void start_attempt(LiveJob& job, std::vector<job::Placement> placements) TITAN_REQUIRES(mutex_);
  void send_prepare(LiveJob& job, const std::vector<std::string>& nodes) TITAN_REQUIRES(mutex_);
  void send_start(LiveJob& job, const std::string& node) TITAN_REQUIRES(mutex_);
  void send_checkpoint(LiveJob& job, const std::string& node) TITAN_REQUIRES(mutex_);
  void send_stop(LiveJob& job, const std::string& node) TITAN_REQUIRES(mutex_);
  void stop_everywhere(LiveJob& job) TITAN_REQUIRES(mutex_);
  void start_when_prepared(LiveJob& job, Change& change) TITAN_REQUIRES(mutex_);
  void conclude(LiveJob& job, Change change, absl::Duration since_failure) TITAN_REQUIRES(mutex_);
  void begin_failure(LiveJob& job, Change& change, absl::Duration since_failure) TITAN_REQUIRES(mutex_);
  void finish_attempt(LiveJob& job, Change& change) TITAN_REQUIRES(mutex_);
  void retry_or_fail(LiveJob& job, const job::AttemptEnd& end, int64_t step, Change& change) TITAN_REQUIRES(mutex_);
  void end_job(LiveJob& job, Change& change) TITAN_REQUIRES(mutex_);
  void note_first_step(LiveJob& job, Change& change) TITAN_REQUIRES(mutex_);
  void take_progress(LiveJob& job, int64_t step, int64_t commit, Change& change) TITAN_REQUIRES(mutex_);
  void note_phase(LiveJob& job, const std::string& phase, std::optional<absl::Duration> since) TITAN_REQUIRES(mutex_);
  void forget(const AttemptKey& key, const std::string& node) TITAN_REQUIRES(mutex_);
  void drop_cursors(Change& change, const std::string& uid) TITAN_REQUIRES(mutex_);
  absl::StatusOr<std::string> launch_json(const LiveJob& job) const;
  void resolve_threads(LiveJob& job, const std::vector<job::Placement>& placements);

  // workers.cc
  void welcome(const std::string& node, const std::shared_ptr<cluster::Session>& session, const v1::Register& hello)
      TITAN_REQUIRES(mutex_);
  void end_waiting_for(const std::string& node) TITAN_REQUIRES(mutex_);
  void hear(cluster::Node& node, const v1::WorkerMessage& message) TITAN_REQUIRES(mutex_);
  void on_beat(cluster::Node& node, const v1::Beat& beat) TITAN_REQUIRES(mutex_);
  void on_report(cluster::Node& node, const v1::AttemptReport& report) TITAN_REQUIRES(mutex_);
  void take_exits(LiveJob& job, cluster::Node& node, const v1::AttemptReport& report, Change& change,
                  absl::Duration& since_failure) TITAN_REQUIRES(mutex_);
  void check_leases() TITAN_REQUIRES(mutex_);
  bool still_runs_without(LiveJob& job, const std::string& silent_node) TITAN_REQUIRES(mutex_);
  void lose_part(LiveJob& job, const std::string& node) TITAN_REQUIRES(mutex_);

  // refusals.cc
  absl::Status check_cluster(const v1::Register& hello) const;
  void note_refusal(const v1::Register& hello, const absl::Status& why) TITAN_REQUIRES(mutex_);
  std::string refusal_of(const std::string& node) const TITAN_REQUIRES(mutex_);
  void add_refused(std::vector<NodeView>& views) const TITAN_REQUIRES(mutex_);

  // inventory.cc
  void compare_inventory(cluster::Node& node, const v1::Register& hello) TITAN_REQUIRES(mutex_);
  LiveJob* job_of(const v1::AttemptId& id) TITAN_REQUIRES(mutex_);  // With exactly this attempt alive, or nullptr.
  void catch_up(const v1::AttemptInventory& item) TITAN_REQUIRES(mutex_);
  void adopt(LiveJob& job, const v1::AttemptInventory& item) TITAN_REQUIRES(mutex_);
  void end_superseded(LiveJob& job, int by, Change& change) TITAN_REQUIRES(mutex_);

  // strays.cc
  Stray& stray_of(cluster::Node& node, const v1::AttemptId& id) TITAN_REQUIRES(mutex_);
  void take_stray(cluster::Node& node, const v1::AttemptId& id, v1::AttemptReport::Phase phase) TITAN_REQUIRES(mutex_);
  void stop_stray(cluster::Node& node, const AttemptKey& key, Stray& stray) TITAN_REQUIRES(mutex_);
  void list_unknown(cluster::Node& node, const AttemptKey& key, Stray& stray) TITAN_REQUIRES(mutex_);
  void drop_stray(const std::string& node, const AttemptKey& key) TITAN_REQUIRES(mutex_);
  bool knows(const std::string& uid) const TITAN_REQUIRES(mutex_);
  int devices_of_strays(const std::string& node) const TITAN_REQUIRES(mutex_);
  std::set<std::string> jobs_that_still_save() const TITAN_REQUIRES(mutex_);

  // hangs.cc
  void note_beat(LiveJob& job, NodePart& part, const v1::AttemptBeat& beat) TITAN_REQUIRES(mutex_);
  void check_hangs() TITAN_REQUIRES(mutex_);
  bool all_speak(const LiveAttempt& attempt) const TITAN_REQUIRES(mutex_);
  std::vector<job::HungRank> hung_ranks(const LiveJob& job) const TITAN_REQUIRES(mutex_);
  void excuse_own_pause() TITAN_REQUIRES(mutex_);

  // rank_events.cc
  void on_rank_events(cluster::Node& node, const v1::RankEvents& events) TITAN_REQUIRES(mutex_);
  void take_rank_event(LiveJob& job, int attempt, int rank, const std::string& node, const nlohmann::json& event,
                       Change& change, bool& job_changed) TITAN_REQUIRES(mutex_);
  void take_step(LiveJob& job, int attempt, const nlohmann::json& event, Change& change) TITAN_REQUIRES(mutex_);
  void take_finished_step(LiveJob& job, bool current, int64_t step, Change& change) TITAN_REQUIRES(mutex_);

  // folders.cc
  absl::Status check_folder(const job::Spec& spec) const TITAN_REQUIRES(mutex_);
  void claim_folder(const job::JobRecord& record) TITAN_REQUIRES(mutex_);
  void drop_folder(const job::JobRecord& record) TITAN_REQUIRES(mutex_);
  bool take_folder_id(LiveJob& job, const std::string& node, const std::string& id, Change& change)
      TITAN_REQUIRES(mutex_);
  void avoid_node(LiveJob& job, const job::AttemptEnd& end) TITAN_REQUIRES(mutex_);

  // scheduling.cc
  void request_schedule(bool urgent) TITAN_REQUIRES(mutex_);
  void schedule() TITAN_REQUIRES(mutex_);
  void set_pending(LiveJob& job, const std::string& reason, const std::string& message, Change& change)
      TITAN_REQUIRES(mutex_);
  bool may_schedule() TITAN_REQUIRES(mutex_);

  store::Store& store_;
  const Clock& clock_;
  const Options options_;
  Measures& measures_;
  Published published_;
  std::shared_ptr<void> subscription_;

  mutable sync::Mutex mutex_;
  std::map<std::string, LiveJob> jobs_ TITAN_GUARDED_BY(mutex_);  // Not over, by uid.
  cluster::Nodes nodes_ TITAN_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::string> names_ TITAN_GUARDED_BY(mutex_);  // All jobs: name to uid.
  // Live jobs: every name and id of a dump folder to the uid of the job that has it.
  absl::flat_hash_map<std::string, std::string> dump_folders_ TITAN_GUARDED_BY(mutex_);
  absl::flat_hash_set<std::string> deleted_ TITAN_GUARDED_BY(mutex_);                // Uids of jobs that were deleted.
  absl::flat_hash_map<std::string, std::string> requests_ TITAN_GUARDED_BY(mutex_);  // request_id to uid.
  absl::flat_hash_map<std::string, std::vector<Done<JobViewPtr>>> creating_ TITAN_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, uint32_t> creating_fingerprints_ TITAN_GUARDED_BY(mutex_);
  std::map<CursorKey, int64_t> cursors_ TITAN_GUARDED_BY(mutex_);
  std::map<std::string, std::map<AttemptKey, Stray>> strays_ TITAN_GUARDED_BY(mutex_);  // By node.
  std::map<std::string, Refused> refused_ TITAN_GUARDED_BY(mutex_);                     // By node.
  int64_t next_order_ TITAN_GUARDED_BY(mutex_) = 1;
  bool scheduling_ TITAN_GUARDED_BY(mutex_) = false;
  absl::Duration schedule_after_ TITAN_GUARDED_BY(mutex_);
  bool schedule_requested_ TITAN_GUARDED_BY(mutex_) = false;
  bool soft_changes_ TITAN_GUARDED_BY(mutex_) = false;
  absl::Duration next_cycle_ TITAN_GUARDED_BY(mutex_) = absl::ZeroDuration();
  std::optional<absl::Duration> last_tick_ TITAN_GUARDED_BY(mutex_);
  absl::Duration next_deletion_ TITAN_GUARDED_BY(mutex_) = absl::ZeroDuration();
};

// NotFound, JOB_NOT_FOUND. `what`: its name or uid.
absl::Status no_such_job(const std::string& what);

// Keys of the store.
std::string job_key(const std::string& uid);
std::string spec_key(const std::string& uid);
std::string deleted_key(const std::string& uid);
std::string attempt_key(const std::string& uid, int number);
std::string attempts_prefix(const std::string& uid);
std::string progress_key(const std::string& uid);
std::string cursor_key(const std::string& uid, int attempt, int rank);
std::string cursors_prefix(const std::string& uid);
std::string node_key(const std::string& node);
std::string job_events_prefix(const std::string& uid);
std::string node_events_prefix(const std::string& node);

}  // namespace titan::reconcile
