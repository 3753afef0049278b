#pragma once

// A reconciler with a fake clock, a store that commits on demand, and nodes that execute commands.

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/rank_protocol/launch.h"
#include "controller/reconcile/reconciler.h"
#include "controller/store/memory_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::reconcile {

using core::attempt_key;
using core::cursor_key;
using core::job_events_prefix;
using core::job_key;
using core::node_events_prefix;
using core::node_key;
using core::progress_key;

class FakeSession : public Session {
 public:
  void send(const v1::ControllerMessage& message) override { inbox.push_back(message); }
  void close(const std::string&) override { closed = true; }
  std::vector<v1::ControllerMessage> inbox;
  bool closed = false;
};

// A node that the test controls.
class FakeNode {
 public:
  struct OwnTime {
    int64_t steps = 0, nanos = 0;
  };
  struct Attempt {
    v1::AttemptReport::Phase phase = v1::AttemptReport::PREPARED;
    std::vector<int> ranks;
    std::vector<int> devices;
    bool leader = false;
    std::string folder_id;
    int64_t step = 0, counter = 0;
    int64_t resumed = 0;              // Step that its ranks reported as their start.
    std::string rank_phase;           // Phase of all its ranks.
    std::map<int, int64_t> sequence;  // Last event of each rank.
    std::set<int> gone;
    std::vector<v1::RankExitReport> exits;  // Repeated to each new session.
    nlohmann::json launch;
    std::map<int, OwnTime> own;     // By rank, as in its beacon.
    std::map<int, int64_t> behind;  // By rank: how much less its counter shows.
  };
  using Key = std::pair<std::string, int>;

  explicit FakeNode(std::string node, int count = 1) : name(std::move(node)), devices(count) {}

  std::string name;
  int devices;
  std::string device = "cpu";
  std::map<std::string, std::string> labels;
  bool reports_devices = true;  // False like an older version, which reports only how many are in use.
  std::string instance = "i";
  bool diagnoses = false;              // Answers diagnosis requests, as the present version does.
  bool reports_findings = true;        // Answers at once, or only when the test calls report_findings().
  std::string cluster;                 // Cluster id on the worker's disk.
  std::map<std::string, int> highest;  // Highest attempt seen, by job.
  std::shared_ptr<FakeSession> session;
  std::map<Key, Attempt> attempts;
  std::vector<v1::ControllerMessage> received;  // All commands so far, except answers to beats.

  int count(v1::ControllerMessage::KindCase kind) const {
    int found = 0;
    for (const auto& message : received) found += message.kind_case() == kind;
    return found;
  }
};

class FakeJournal : public journal::Journal {
 public:
  void write(const journal::Line& line) override { lines.push_back(journal::format(line)); }
  std::vector<std::string> lines;
};

class World {
 public:
  World() { open(); }

  // --- Controller ---

  void open() {
    ReconcilerOptions options;
    options.cluster = cluster;
    options.journal = journal;
    options.keep_finished = keep_finished;
    options.kept_logs_bytes = kept_logs_bytes;
    options.jitter = [] { return 0.0; };
    options.leader_epoch = leader_epoch;
    options.default_time_limit_seconds = default_time_limit_seconds;
    options.on_superseded = [this](const absl::Status& why) { superseded.push_back(why); };
    options.new_id = [this] { return absl::StrCat("id", ++ids_); };
    measures_ = std::make_unique<Measures>(metrics_);
    auto opened = Reconciler::open(store, clock, options, *measures_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    reconciler = *std::move(opened);
  }
  // Kills the controller and starts it again: changes that were not durable are lost, and sessions break.
  void crash() {
    reconciler.reset();
    for (auto& [name, node] : nodes) node.session = nullptr;
    store.drop_pending();
    open();
  }
  // Returns a copy of the whole store, with which crash_to() can start the controller.
  std::vector<store::Record> copy_store() { return *store::scan_all(store, ""); }
  void crash_to(const std::vector<store::Record>& records) {
    reconciler.reset();
    for (auto& [name, node] : nodes) node.session = nullptr;
    store.drop_pending();
    store::Transaction replace;
    for (const store::Record& record : copy_store()) replace.mutations.push_back(store::erase(record.key));
    for (const store::Record& record : records) replace.mutations.push_back(store::put(record.key, record.value));
    store.commit(std::move(replace), [](const auto&) {});
    store.run_pending();
    open();
  }
  void connect_all() {
    for (auto& [name, node] : nodes) connect(node);
  }
  void advance(absl::Duration by) {
    const absl::Duration step = absl::Milliseconds(500);
    for (absl::Duration passed; passed < by; passed += step) {
      clock.advance(step);
      for (auto& [name, node] : nodes) {
        if (node.session != nullptr && !silent.count(name)) beat(node);
      }
      reconciler->tick();
      settle();
    }
  }

  // --- Jobs ---

  job::SchedulingSpec spec(const std::string& id, int ranks = 2, int per_node = 1) {
    job::SchedulingSpec spec;
    spec.job_id = id;
    spec.dump_folder = "/dump/" + id;
    spec.ranks = ranks;
    spec.ranks_per_node = per_node;
    spec.saves = saves;
    return spec;
  }
  std::string run_as;  // The submitting user.
  bool run_as_local = false;
  core::CreateJob create_job(const job::SchedulingSpec& spec, const std::string& request = "", uint32_t print = 1) {
    v1::JobSpec stored;
    stored.set_config_json(config_json);
    core::CreateJob create;
    create.spec = spec;
    create.stored = stored.SerializeAsString();
    create.request_id = request;
    create.fingerprint = print;
    create.run_as = run_as;
    create.run_as_local = run_as_local;
    return create;
  }
  absl::StatusOr<JobViewPtr> submit(const job::SchedulingSpec& spec, const std::string& request = "",
                                    uint32_t print = 1) {
    absl::StatusOr<JobViewPtr> result = absl::InternalError("never answered");
    reconciler->create(create_job(spec, request, print), [&](const auto& answer) { result = answer; });
    settle();
    return result;
  }
  JobViewPtr job(const std::string& id) { return reconciler->published().find_by_name("projects/default/jobs/" + id); }
  std::string state(const std::string& id) { return std::string(job::name(job(id)->record->state)); }
  absl::Status cancel(const std::string& id, bool now = false) {
    absl::Status status = absl::InternalError("never answered");
    reconciler->cancel(job(id)->record->uid, now, [&](const absl::StatusOr<JobViewPtr>& r) { status = r.status(); });
    settle();
    return status;
  }
  std::vector<std::string> events(const std::string& id) {
    std::vector<std::string> reasons;
    const auto records = store::scan_all(store, job_events_prefix(job(id)->record->uid));
    for (const auto& record : *records) reasons.push_back(job::decode<job::EventRecord>(record.value)->reason);
    return reasons;
  }
  int count_events(const std::string& id, const std::string& reason) {
    const std::vector<std::string> all = events(id);
    return static_cast<int>(std::count(all.begin(), all.end(), reason));
  }

  // --- Nodes ---

  FakeNode& add_node(const std::string& name, int devices = 1, const std::string& device = "cpu",
                     const std::map<std::string, std::string>& labels = {}) {
    FakeNode& node = nodes.emplace(name, FakeNode(name, devices)).first->second;
    node.device = device;
    node.labels = labels;
    connect(node);
    return node;
  }
  void connect(FakeNode& node) {
    node.session = std::make_shared<FakeSession>();
    ASSERT_TRUE(reconciler->open_session(hello_of(node), node.session, "peer:10.0.0.8").ok());
    settle();
  }
  v1::Register hello_of(const FakeNode& node) {
    v1::Register hello;
    hello.set_cluster(node.cluster);
    hello.set_node(node.name);
    hello.set_instance(node.instance);
    hello.set_address(node.name + ".local");
    hello.set_diagnoses(node.diagnoses);
    hello.mutable_resources()->set_device(node.device);
    hello.mutable_labels()->insert(node.labels.begin(), node.labels.end());
    hello.mutable_resources()->set_devices(node.devices);
    hello.mutable_resources()->set_cpu_cores(4);
    hello.set_unusable(unusable[node.name]);
    for (const auto& [key, attempt] : node.attempts) {
      auto* item = hello.add_inventory();
      item->mutable_id()->set_job_uid(key.first);
      item->mutable_id()->set_number(key.second);
      item->set_phase(attempt.phase);
      for (const int rank : attempt.ranks) {
        item->add_ranks()->set_rank(rank);
        item->mutable_ranks()->rbegin()->set_step(attempt.step);
      }
      item->set_devices(attempt.phase == v1::AttemptReport::ENDED ? 0 : static_cast<int>(attempt.ranks.size()));
      if (node.reports_devices && item->devices() > 0) {
        item->mutable_device_indices()->Assign(attempt.devices.begin(), attempt.devices.end());
      }
      if (attempt.launch.is_null()) continue;
      item->set_resumed_step(attempt.resumed);
      item->set_previous_end_cause(attempt.launch.value("previous_end_cause", ""));
      item->set_previous_end_message(attempt.launch.value("previous_end_message", ""));
      item->set_job(attempt.launch["job"]);
      item->set_threads_per_rank(attempt.launch["threads_per_rank"]);
      const rank_protocol::Launch launch = *rank_protocol::launch_from_json(attempt.launch);
      for (const auto& row : rank_protocol::node_rows(launch)) {
        item->add_nodes()->set_names(row.names);
        item->mutable_nodes()->rbegin()->set_ranks(row.ranks);
      }
    }
    return hello;
  }
  void disconnect(FakeNode& node) {
    reconciler->close_session(node.name, node.session.get());
    node.session = nullptr;
  }
  // Loses the machine with everything on it.
  void destroy(FakeNode& node) {
    if (node.session != nullptr) disconnect(node);
    node.attempts.clear();
  }

  // Lets the store commit and the nodes execute commands until nothing happens any more.
  void settle() {
    bool busy = true;
    while (busy) {
      busy = store.run_pending() > 0;
      for (auto& [name, node] : nodes) busy = obey(node) || busy;
    }
    EXPECT_EQ(node_views_text(reconciler->nodes()), node_views_text(reconciler->decided_nodes()))
        << "the published node views are outdated";
  }

  void beat(FakeNode& node) {
    v1::WorkerMessage message;
    for (auto& [key, attempt] : node.attempts) {
      if (attempt.phase != v1::AttemptReport::STARTED) continue;
      auto* item = message.mutable_beat()->add_attempts();
      item->mutable_id()->set_job_uid(key.first);
      item->mutable_id()->set_number(key.second);
      for (const int rank : attempt.ranks) {
        auto* status = item->add_ranks();
        status->set_rank(rank);
        status->set_step(attempt.step);
        const auto behind = attempt.behind.find(rank);
        status->set_counter(attempt.counter - (behind == attempt.behind.end() ? 0 : behind->second));
        status->set_phase(attempt.rank_phase);
        status->set_own_steps(attempt.own[rank].steps);
        status->set_own_nanoseconds(attempt.own[rank].nanos);
      }
    }
    message.mutable_beat()->set_sequence(1);
    message.mutable_beat()->set_unusable(unusable[node.name]);
    message.mutable_beat()->set_unix_nanoseconds(absl::ToUnixNanos(clock.now() + clocks_ahead[node.name]));
    if (const auto deaf = deaf_since.find(node.name); deaf != deaf_since.end()) {
      message.mutable_beat()->set_unanswered_milliseconds(absl::ToInt64Milliseconds(clock.monotonic() - deaf->second));
    }
    deliver(node, message);
  }

  // Makes one optimizer step on every rank; rank 0 reports it.
  void train(const std::string& id, int64_t step) {
    const std::string uid = job(id)->record->uid;
    for (auto& [name, node] : nodes) {
      for (auto& [key, attempt] : node.attempts) {
        if (key.first != uid || attempt.phase != v1::AttemptReport::STARTED) continue;
        attempt.step = step;
        ++attempt.counter;
        if (attempt.ranks[0] == 0 && node.session != nullptr) {
          event(node, key, 0,
                absl::StrCat(R"({"kind":"step","step":)", step,
                             R"(,"metrics":{"loss_metrics/global_avg_loss":2.5,"moe/max_over_mean":1.5}})"));
        }
      }
    }
    settle();
  }
  void event(FakeNode& node, const FakeNode::Key& key, int rank, const std::string& json) {
    send_events(node, key, rank, ++node.attempts[key].sequence[rank], json);
  }
  void send_events(FakeNode& node, const FakeNode::Key& key, int rank, int64_t sequence, const std::string& json) {
    v1::WorkerMessage message;
    message.mutable_events()->mutable_id()->set_job_uid(key.first);
    message.mutable_events()->mutable_id()->set_number(key.second);
    message.mutable_events()->set_rank(rank);
    auto* line = message.mutable_events()->add_events();
    line->set_sequence(sequence);
    line->set_json(json);
    deliver(node, message);
  }
  void loaded(const std::string& id, int64_t step) {
    for (auto& [name, node] : nodes) {
      for (auto& [key, attempt] : node.attempts) {
        if (key.first != job(id)->record->uid || attempt.phase != v1::AttemptReport::STARTED) continue;
        attempt.resumed = step;
        if (!attempt.ranks.empty() && attempt.ranks[0] == 0) {
          event(node, key, 0, absl::StrCat(R"({"kind":"loaded","source":"checkpoint","step":)", step, "}"));
        }
      }
    }
    settle();
  }

  // Reports the collectives of the node's ranks: all in one group, in which ranks that are behind have issued one call
  // less.
  void report_findings(FakeNode& node, const v1::AttemptId& id) {
    const auto found = node.attempts.find({id.job_uid(), id.number()});
    v1::WorkerMessage message;
    *message.mutable_diagnosis()->mutable_id() = id;
    if (found == node.attempts.end()) {
      message.mutable_diagnosis()->set_end(true);
      return deliver(node, message);
    }
    const FakeNode::Attempt& attempt = found->second;
    for (const int rank : attempt.ranks) {
      v1::RankDiagnosis& diagnosis = *message.mutable_diagnosis()->mutable_rank();
      diagnosis.Clear();
      diagnosis.mutable_status()->set_rank(rank);
      diagnosis.mutable_status()->set_phase(attempt.rank_phase);
      diagnosis.set_alive(attempt.gone.count(rank) == 0);
      diagnosis.set_stacks(
          absl::StrCat("process ", 100 + rank, "\n#0 where_rank_", attempt.behind.count(rank), "_is\n"));
      v1::FlightGroup& group = *diagnosis.add_groups();
      group.set_name("fsdp");
      group.set_members("0-1");
      group.set_key(77);
      group.set_issued(attempt.behind.count(rank) > 0 ? 4 : 5);
      for (int call = 1; call <= group.issued(); ++call) {
        v1::FlightCall& added = *diagnosis.add_calls();
        added.set_sequence(call);
        added.set_operation("all_gather");
        added.set_type("float");
        added.set_elements(64);
        added.set_since_mark(call - 1);
        added.set_created_nanoseconds(call);
        added.set_completed(call < 5);
      }
      message.mutable_diagnosis()->set_end(rank == attempt.ranks.back());
      deliver(node, message);
    }
  }

  // Makes a rank exit. Its node reports the exit, and the end of the attempt with its last rank.
  void exit_rank(FakeNode& node, const FakeNode::Key& key, int rank, int code, int signal,
                 const std::string& stop_reason = "", const std::string& last_words = "") {
    FakeNode::Attempt& attempt = node.attempts.at(key);
    if (!attempt.gone.insert(rank).second) return;
    if (attempt.gone.size() == attempt.ranks.size()) attempt.phase = v1::AttemptReport::ENDED;
    v1::RankExitReport& exit = attempt.exits.emplace_back();
    exit.set_rank(rank);
    exit.set_exit_code(code);
    exit.set_signal(signal);
    exit.set_stop_reason(stop_reason);
    exit.set_last_words(last_words);
    exit.set_time_unix_nanos(absl::ToUnixNanos(clock.now()));
    deliver(node, report(key, attempt));
  }
  FakeNode::Key key(const std::string& id) { return {job(id)->record->uid, job(id)->attempts.back()->number}; }
  void finish_all(const std::string& id, int code = 0, int signal = 0) {
    const FakeNode::Key wanted = key(id);
    for (auto& [name, node] : nodes) {
      const auto it = node.attempts.find(wanted);
      if (it == node.attempts.end()) continue;
      for (const int rank : std::vector<int>(it->second.ranks)) exit_rank(node, wanted, rank, code, signal);
    }
    settle();
  }
  void deliver(FakeNode& node, const v1::WorkerMessage& message) {
    if (node.session != nullptr) reconciler->on_message(node.name, node.session, message);
  }
  v1::WorkerMessage report(const FakeNode::Key& key, const FakeNode::Attempt& attempt) {
    v1::WorkerMessage message;
    message.mutable_attempt()->mutable_id()->set_job_uid(key.first);
    message.mutable_attempt()->mutable_id()->set_number(key.second);
    message.mutable_attempt()->set_phase(attempt.phase);
    for (const v1::RankExitReport& exit : attempt.exits) *message.mutable_attempt()->add_exits() = exit;
    if (attempt.leader) message.mutable_attempt()->set_store_port(4000 + key.second);
    message.mutable_attempt()->set_folder_id(attempt.folder_id);
    return message;
  }

  // Returns everything that clients may see of nodes, as text.
  static std::string node_views_text(const std::vector<NodeView>& views) {
    std::string text;
    for (const NodeView& view : views) {
      absl::StrAppend(&text, job::encode(view.node.record), core::name(view.node.state), view.node.session,
                      view.node.can_take_ranks(), view.node.flapping, absl::FormatTime(view.node.last_beat_time), " ",
                      view.devices_used, absl::StrJoin(view.jobs, ","), view.is_slow, view.refusal, view.node.unusable,
                      absl::FormatDuration(view.node.clock_ahead));
      for (const core::SlowRank& slow : view.slow) absl::StrAppend(&text, " ", slow.rank, slow.figures.score);
      for (const auto& [key, stray] : view.unknown) {
        absl::StrAppend(&text, " ", key.first, key.second, absl::StrJoin(stray.ranks, ","), stray.step, stray.ended,
                        stray.dismissed);
      }
      for (const auto& [key, left] : view.left) absl::StrAppend(&text, " ", key.first, key.second, left.ranks);
      absl::StrAppend(&text, "\n");
    }
    return text;
  }

  FakeClock clock;
  store::MemoryStore store;
  std::map<std::string, FakeNode> nodes;
  std::set<std::string> silent;                      // Sessions that stay open but send nothing.
  std::map<std::string, absl::Duration> deaf_since;  // Nodes whose beats report that they receive nothing.
  std::set<std::string> refuses;                     // Nodes that cannot prepare.
  bool reports_unusable = false;                     // Whether these nodes report that in a beat before they refuse.
  std::map<std::string, std::string> unusable;       // Reason with which a node reports that it cannot prepare ranks.
  std::map<std::string, absl::Duration> clocks_ahead;
  std::set<std::string> hung;  // Nodes that neither prepare nor stop anything, but keep beating.
  std::string refusal = "DUMP_FOLDER_NOT_SHARED";
  std::map<std::string, std::string> folder_ids;  // Folder id of each dump folder, as all nodes see it.
  std::set<std::string> stale_mounts;             // Except these nodes, which each see another folder.
  bool stops_at_once = true;                      // Whether a stop kills the ranks at once.
  std::string config_json = "{}";
  bool saves = true;
  std::string cluster = "test";
  absl::Duration keep_finished = absl::InfiniteDuration();  // Takes effect at the next start of the controller.
  int64_t kept_logs_bytes = 1 << 30;                        // Takes effect at the next start.
  int64_t leader_epoch = 0;                                 // Takes effect at the next start.
  int64_t default_time_limit_seconds = 0;                   // Takes effect at the next start.
  std::vector<absl::Status> superseded;  // One entry for each time that the controller learned that it lost the lead.
  std::shared_ptr<FakeJournal> journal = std::make_shared<FakeJournal>();
  std::unique_ptr<Reconciler> reconciler;
  metrics::Metrics metrics_;

 private:
  bool obey(FakeNode& node) {
    if (node.session == nullptr || node.session->inbox.empty() || silent.count(node.name)) return false;
    const std::vector<v1::ControllerMessage> inbox = std::exchange(node.session->inbox, {});
    for (const v1::ControllerMessage& message : inbox) {
      if (message.has_beat_ack()) continue;
      node.received.push_back(message);
      if (hung.count(node.name) && !message.has_forget()) continue;
      if (message.has_prepare()) prepare(node, message.prepare());
      if (message.has_start()) start(node, message.start());
      if (message.has_stop()) stop(node, message.stop());
      if (message.has_diagnose() && node.reports_findings) report_findings(node, message.diagnose().id());
      if (message.has_forget()) node.attempts.erase({message.forget().id().job_uid(), message.forget().id().number()});
    }
    return true;
  }
  void prepare(FakeNode& node, const v1::Prepare& command) {
    const FakeNode::Key key{command.id().job_uid(), command.id().number()};
    const auto refuse = [&](const std::string& reason, const std::string& words, int highest = 0) {
      FakeNode::Attempt refused;
      refused.phase = v1::AttemptReport::REFUSED;
      v1::WorkerMessage message = report(key, refused);
      message.mutable_attempt()->set_error_reason(reason);
      message.mutable_attempt()->set_error_message(words);
      message.mutable_attempt()->set_highest_attempt(highest);
      deliver(node, message);
    };
    if (refuses.count(node.name)) {
      if (reports_unusable) unusable[node.name] = "no space left", beat(node);
      return refuse(refusal, "cannot see the token");
    }
    int& highest = node.highest[key.first];
    if (key.second < highest) return refuse("STALE_ATTEMPT", "older than what this node has seen", highest);
    highest = key.second;
    const auto launch = rank_protocol::launch_from_json(nlohmann::json::parse(command.launch_json()));
    ASSERT_TRUE(launch.ok()) << launch.status();
    const std::string folder = folder_seen_by(node.name, command.dump_folder());
    if (!stale_mounts.empty() && !command.folder_id().empty() && folder != command.folder_id()) {
      return refuse("DUMP_FOLDER_REPLACED", "another folder lies there");
    }
    if (folder != folder_seen_by(launch->ranks[0].node, command.dump_folder())) {
      return refuse("DUMP_FOLDER_NOT_SHARED", "cannot see the token");
    }
    if (node.attempts.count(key) == 0) {
      FakeNode::Attempt& attempt = node.attempts[key];
      attempt.ranks.assign(command.ranks().begin(), command.ranks().end());
      attempt.devices.assign(command.device_indices().begin(), command.device_indices().end());
      attempt.leader = command.leader();
      if (attempt.leader) attempt.folder_id = folder;
      attempt.launch = rank_protocol::to_json(*launch);
    }
    check_devices(node);
    deliver(node, report(key, node.attempts[key]));
  }
  std::string folder_seen_by(const std::string& node, const std::string& folder) {
    return stale_mounts.count(node) > 0 ? "stale-" + node : folder_ids[folder];
  }
  static void check_devices(const FakeNode& node) {
    std::set<int> used;
    for (const auto& [key, attempt] : node.attempts) {
      if (attempt.phase == v1::AttemptReport::ENDED) continue;
      for (const int device : attempt.devices) {
        EXPECT_TRUE(used.insert(device).second) << "device " << device << " of " << node.name << " has two owners";
        EXPECT_LT(device, node.devices);
      }
    }
  }
  void start(FakeNode& node, const v1::Start& command) {
    const FakeNode::Key key{command.id().job_uid(), command.id().number()};
    const auto it = node.attempts.find(key);
    if (it == node.attempts.end()) return;
    if (it->second.phase == v1::AttemptReport::PREPARED) it->second.phase = v1::AttemptReport::STARTED;
    deliver(node, report(key, it->second));
  }
  void stop(FakeNode& node, const v1::Stop& command) {
    const FakeNode::Key key{command.id().job_uid(), command.id().number()};
    const auto it = node.attempts.find(key);
    if (it == node.attempts.end() || !stops_at_once) return;
    for (const int rank : std::vector<int>(it->second.ranks)) {
      command.save() ? exit_rank(node, key, rank, 16, 0) : exit_rank(node, key, rank, -1, 9, command.reason());
    }
  }

  int ids_ = 0;
  std::unique_ptr<Measures> measures_;
};

}  // namespace titan::reconcile
