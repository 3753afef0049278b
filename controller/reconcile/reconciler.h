#pragma once

// Runs the core in this process: passes it one input at a time under a lock, writes its changes to the store in order,
// and releases what follows from a change only once that is durable.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/base/clock/clock.h"
#include "common/base/sync/sync.h"
#include "common/service/journal/journal.h"
#include "controller/core/core.h"
#include "controller/core/keys.h"
#include "controller/core/labels.h"
#include "controller/reconcile/config_cache.h"
#include "controller/reconcile/measures.h"
#include "controller/reconcile/published.h"
#include "controller/reconcile/published_nodes.h"
#include "controller/reconcile/session.h"
#include "controller/store/store.h"
#include "titan/v1/job.pb.h"
#include "titan/v1/worker.pb.h"

namespace titan::reconcile {

using core::no_such_job;
using core::NodeView;

template <typename Result>
using Done = std::function<void(const absl::StatusOr<Result>&)>;

struct ReconcilerOptions : core::CoreOptions {
  std::function<std::string()> new_id;        // Random hexadecimal text, for uids.
  std::shared_ptr<journal::Journal> journal;  // Log of decisions. Null: they are not logged.
  // Called when a node obeys a later leader and no longer this one, from any thread. Not set: this is only logged.
  std::function<void(const absl::Status& why)> on_superseded;
};

class Reconciler {
 public:
  // Loads the store. Errors: those of scanning it.
  static absl::StatusOr<std::unique_ptr<Reconciler>> open(store::Store& store, const Clock& clock,
                                                          ReconcilerOptions options, Measures& measures);

  // Requests of clients: see the inputs of the same name. Each `done` runs once, on any thread and without the lock:
  // when the change is durable, or with an error. `actor` is the authenticated caller. Empty: not known.
  void create(core::CreateJob request, Done<JobViewPtr> done);  // Sets the job's uid.
  void update(core::UpdateJob request, Done<JobViewPtr> done);
  void cancel(const std::string& uid, bool now, Done<JobViewPtr> done, const std::string& actor = "",
              const std::string& request_id = "");
  void checkpoint(const std::string& uid, Done<JobViewPtr> done, const std::string& actor = "");
  void profile(const std::string& uid, const std::vector<int>& ranks, int steps, Done<JobViewPtr> done,
               const std::string& actor = "");
  void remove(const std::string& uid, Done<JobViewPtr> done, const std::string& actor = "");
  void cordon(const std::string& node, bool cordoned, const std::string& reason, Done<NodeView> done,
              const std::string& actor = "");
  void drain(const std::string& node, const std::string& reason, Done<NodeView> done, const std::string& actor = "");
  void delete_node(const std::string& node, Done<NodeView> done, const std::string& actor = "", bool force = false);
  void stop_unknown(const std::string& node, const std::string& uid, absl::Duration grace, Done<NodeView> done,
                    const std::string& actor = "");

  // Sessions of workers. `peer` is the worker's address. Errors: those of core::OpenSession.
  absl::Status open_session(const v1::Register& hello, const std::shared_ptr<Session>& session,
                            const std::string& peer = "");
  void on_message(const std::string& node, const std::shared_ptr<Session>& session, const v1::WorkerMessage& message);
  void close_session(const std::string& node, const Session* session);
  // Sends a request to read a log or a trace to the node. Errors: Unavailable (NODE_UNREACHABLE).
  absl::Status send(const std::string& node, const v1::ControllerMessage& message);

  // Call about ten times a second.
  void tick();
  // Wakes the watchers. Runs after each group of transactions.
  void on_durable();

  // Reads.
  Published& published() { return published_; }
  absl::StatusOr<JobViewPtr> would_create(const job::SchedulingSpec& spec) const;
  absl::StatusOr<JobViewPtr> would_update(const core::UpdateJob& request) const;
  std::optional<scheduler::Misfit> misfit(const job::SchedulingSpec& spec) const;
  // Reads what is published, without waiting for decisions under way.
  std::vector<planner::NodeMemory> node_memory(const std::string& device) const { return nodes_.node_memory(device); }
  std::vector<NodeView> nodes() const { return nodes_.all(); }  // By name.
  void each_node(const std::function<void(const NodeView&, absl::Time last_beat)>& visit) const { nodes_.each(visit); }
  std::vector<NodeView> nodes_after(const std::string& name, size_t limit) const { return nodes_.page(name, limit); }
  absl::StatusOr<NodeView> node(const std::string& name) const { return nodes_.find(name); }
  // Builds what nodes() must return, under the lock. For tests.
  std::vector<NodeView> decided_nodes() const;
  // Reads the job's specification from the store. Errors: DataLoss if it is missing or malformed; those of Store::get.
  absl::StatusOr<v1::JobSpec> stored_spec(const std::string& uid) const;
  // Reads the diagnosis from the store. Errors: NotFound, DataLoss, and those of Store::get.
  absl::StatusOr<job::DiagnosisRecord> diagnosis(const std::string& uid, int attempt) const;
  // See Core::scheduling().
  bool scheduling() const;

 private:
  // One of the two is set, by the kind of request.
  struct Waiting {
    Done<JobViewPtr> job;
    Done<NodeView> node;
  };
  using Answers = std::vector<std::function<void()>>;  // Run them without the lock.
  // Output of a change, to be released once that is durable.
  struct Pending {
    core::Release then;
    core::ChangeToken token = 0;
    int64_t ticket = 0;  // Identifies the transaction. 0: there is nothing to write, and it waits for those before it.
  };

  // The launch file of one attempt, made once for all its nodes, because the table of thousands of ranks is long. The
  // leader gets it with addresses, since it checks that all other nodes can reach it. The others get it without.
  struct LaunchFiles {
    const rank_protocol::Launch* launch = nullptr;
    std::shared_ptr<const std::string> with_addresses, without;  // Encoded parts of a message.
    std::shared_ptr<const std::string>& of(const core::Prepare& prepare) {
      return prepare.leader ? with_addresses : without;
    }
  };

  Reconciler(store::Store& store, const Clock& clock, ReconcilerOptions options, Measures& measures);
  absl::Status load();
  Now now() const { return {clock_.monotonic(), clock_.now()}; }

  template <typename Request>
  void ask(Request request, Done<JobViewPtr> job, Done<NodeView> node);
  void take(core::Input input, Answers& answers) TITAN_REQUIRES(mutex_);
  void run(core::Effects effects, Answers& answers) TITAN_REQUIRES(mutex_);
  void write(core::Change change, Answers& answers) TITAN_REQUIRES(mutex_);
  void compare(const core::Comparison& wanted);
  void on_committed(int64_t ticket, const absl::StatusOr<int64_t>& revision);
  absl::StatusOr<ConfigCache::Config> config_of(const std::string& uid) const;
  void release(core::Release& what, int64_t revision, Answers& answers) TITAN_REQUIRES(mutex_);
  void release_waiting(Answers& answers) TITAN_REQUIRES(mutex_);
  void answer(const core::Reply& reply, Answers& answers) TITAN_REQUIRES(mutex_);
  void send_all(const std::vector<core::Send>& sends, Answers& answers) TITAN_REQUIRES(mutex_);
  absl::Status make_launch_file(const core::Prepare& prepare, LaunchFiles& files) const;
  absl::StatusOr<std::string> launch_json(rank_protocol::Launch launch, bool with_addresses) const;
  void measure(const core::MetricSample& one);
  void note_later_leader(const std::string& node, int64_t epoch) const;
  void write(const std::vector<journal::Line>& lines) const;

  store::Store& store_;
  const Clock& clock_;
  const ReconcilerOptions options_;
  Measures& measures_;
  Published published_;
  PublishedNodes nodes_;
  mutable ConfigCache configs_;

  mutable sync::Mutex mutex_;
  core::Core core_ TITAN_GUARDED_BY(mutex_);
  std::deque<Pending> pending_ TITAN_GUARDED_BY(mutex_);  // In log order.
  absl::flat_hash_map<core::RequestId, Waiting> waiting_ TITAN_GUARDED_BY(mutex_);
  absl::flat_hash_map<core::SessionId, std::shared_ptr<Session>> sessions_ TITAN_GUARDED_BY(mutex_);
  absl::flat_hash_map<const Session*, core::SessionId> session_ids_ TITAN_GUARDED_BY(mutex_);
  int64_t next_ticket_ TITAN_GUARDED_BY(mutex_) = 1;
  core::RequestId next_request_ TITAN_GUARDED_BY(mutex_) = 1;
  core::SessionId next_session_ TITAN_GUARDED_BY(mutex_) = 1;
  bool published_without_commit_ TITAN_GUARDED_BY(mutex_) = false;

  std::shared_ptr<void> subscription_;  // Destroyed first: its listener uses all of this object.
};

}  // namespace titan::reconcile
