// Measures what a job of many ranks costs the control plane: the messages of each node until its ranks run, and one
// second of beats. Nodes are simulated with sessions that count messages and bytes, which are compared with closed
// forms. docs/scale.md has the table of TITAN_LONG=1.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rank_protocol/launch.h"
#include "tests/controller/world.h"

namespace titan::reconcile {
namespace {

constexpr int kRanksOfNode = 8;

class CountingSession final : public Session {
 public:
  void send(const v1::ControllerMessage& message) override {
    ++messages;
    bytes += static_cast<int64_t>(message.ByteSizeLong());
    (message.has_beat_ack() ? acks : commands) += 1;
    if (!message.has_beat_ack()) last = message;
  }
  void send(const v1::ControllerMessage& message, const std::shared_ptr<const std::string>& more) override {
    send(message);
    shared = more;
  }
  void close(const std::string&) override {}

  int64_t messages = 0, bytes = 0, acks = 0, commands = 0;
  v1::ControllerMessage last;                 // Newest message other than a beat's answer.
  std::shared_ptr<const std::string> shared;  // Shared part of a Prepare.
};

struct Cost {
  int64_t ranks = 0;
  int64_t leader_bytes = 0, launch_bytes = 0, kept_bytes = 0, all_bytes = 0, prepare_bytes = 0;
  int64_t unordered_bytes = 0;  // Like launch_bytes, for nodes with names that cannot be folded.
  int64_t inventory_bytes = 0;  // Bytes of a node's Register with the attempt.
  int64_t node_messages = 0, controller_messages = 0;
  int64_t beat_bytes = 0, ack_bytes = 0, transactions = 0;
  double start_ms = 0, parse_ms = 0, tick_ms = 0, beat_us = 0;
};

class ControlScale {
 public:
  explicit ControlScale(int ranks) {
    cost_.ranks = ranks;
    world_.config_json =
        std::string(R"({"note": ")") + std::string(8000, 'x') + "\"}";  // The length of a resolved configuration.
    for (int i = 0; i < ranks / kRanksOfNode; ++i) {
      Node& node = nodes_.emplace_back();
      char name[32];
      std::snprintf(name, sizeof name, "gpu-node-%05d", i);
      node.name = name;
      node.session = std::make_shared<CountingSession>();
      EXPECT_TRUE(world_.reconciler
                      ->open_session(world_.hello_of(FakeNode(node.name, kRanksOfNode)), node.session, "peer:10.0.0.8")
                      .ok());
    }
    world_.settle();
  }

  Cost run() {
    start();
    for (int i = 0; i < 3; ++i) second();  // Skips one-time messages.
    EXPECT_EQ(world_.state("big"), "RUNNING");
    const int64_t acks = nodes_[0].session->acks, bytes = nodes_[0].session->bytes;
    constexpr int kSeconds = 24;  // More than two windows of the search for slow ranks.
    double beats = 0, all = 0;
    for (int i = 0; i < kSeconds; ++i) {
      const auto [of_beats, of_all] = second();
      beats += of_beats;
      all += of_all;
    }
    EXPECT_EQ(nodes_[0].session->acks - acks, kSeconds) << "a beat has one answer";
    cost_.ack_bytes = (nodes_[0].session->bytes - bytes) / kSeconds;
    cost_.beat_us = beats * 1e6 / kSeconds / static_cast<double>(nodes_.size());
    cost_.tick_ms = all * 1e3 / kSeconds;
    return cost_;
  }

 private:
  struct Node {
    std::string name;
    std::shared_ptr<CountingSession> session;
    std::vector<int> ranks;
    v1::AttemptId id;
    int64_t sent = 0;
  };

  static double seconds_of(const std::function<void()>& work) {
    const absl::Duration begin = system_clock().monotonic();
    work();
    return absl::ToDoubleSeconds(system_clock().monotonic() - begin);
  }

  void deliver(Node& node, const v1::WorkerMessage& message) {
    ++node.sent;
    world_.reconciler->on_message(node.name, node.session, message);
  }
  void report(v1::AttemptReport::Phase phase) {
    for (Node& node : nodes_) {
      v1::WorkerMessage message;
      *message.mutable_attempt()->mutable_id() = node.id;
      message.mutable_attempt()->set_phase(phase);
      if (node.ranks[0] == 0) message.mutable_attempt()->set_store_port(4001);
      deliver(node, message);
    }
    world_.settle();
  }

  void start() {
    cost_.start_ms = 1e3 * seconds_of([&] {
                       EXPECT_TRUE(world_.submit(world_.spec("big", static_cast<int>(cost_.ranks), kRanksOfNode)).ok());
                       world_.clock.advance(absl::Seconds(6));  // By now every node is known.
                       world_.reconciler->tick();
                       world_.settle();
                     });
    for (Node& node : nodes_) {
      ASSERT_TRUE(node.session->last.has_prepare()) << node.name;
      const v1::Prepare& prepare = node.session->last.prepare();
      node.id = prepare.id();
      node.ranks.assign(prepare.ranks().begin(), prepare.ranks().end());
      const bool leads = &node == &nodes_[0];
      ASSERT_EQ(prepare.leader(), leads);
      ASSERT_TRUE(leads || node.session->shared == nodes_[1].session->shared) << "shared by all nodes";
      cost_.all_bytes += static_cast<int64_t>(node.session->shared->size());
      cost_.prepare_bytes = std::max(cost_.prepare_bytes, static_cast<int64_t>(prepare.ByteSizeLong()));
    }
    read_launch();
    report(v1::AttemptReport::PREPARED);
    for (Node& node : nodes_) ASSERT_TRUE(node.session->last.has_start()) << node.name;
    report(v1::AttemptReport::STARTED);
    cost_.controller_messages = nodes_.back().session->messages;
    cost_.node_messages = 1 + nodes_.back().sent;  // Register is the first.
    for (Node& node : nodes_) {
      if (node.ranks[0] == 0) send_event(node, 0, R"({"kind":"loaded","source":"checkpoint","step":0})");
    }
  }

  void send_event(Node& node, int rank, const std::string& json) {
    v1::WorkerMessage message;
    *message.mutable_events()->mutable_id() = node.id;
    message.mutable_events()->set_rank(rank);
    message.mutable_events()->add_events()->set_sequence(++events_);
    message.mutable_events()->mutable_events(0)->set_json(json);
    deliver(node, message);
    world_.settle();
  }

  static std::string launch_of(const Node& node) {
    v1::ControllerMessage message;
    EXPECT_TRUE(message.ParseFromString(*node.session->shared));
    return message.prepare().launch_json();
  }

  // Reads the launch file as daemons do, and as each rank does with the daemon's copy.
  void read_launch() {
    const std::string leaders = launch_of(nodes_[0]), folded = launch_of(nodes_[1]);
    cost_.leader_bytes = static_cast<int64_t>(leaders.size());
    cost_.launch_bytes = static_cast<int64_t>(folded.size());
    absl::StatusOr<rank_protocol::Launch> launch = rank_protocol::launch_from_json(nlohmann::json::parse(folded));
    ASSERT_TRUE(launch.ok()) << launch.status();
    for (int rank = kRanksOfNode; rank < 2 * kRanksOfNode; ++rank) launch->ranks[rank].host = "10.0.0.1";
    const std::string kept = to_folded_json(*launch, nodes_[1].name).dump();
    cost_.kept_bytes = static_cast<int64_t>(kept.size());
    cost_.parse_ms = 1e3 * seconds_of([&] {
                       const auto read = rank_protocol::launch_from_json(nlohmann::json::parse(kept));
                       ASSERT_TRUE(read.ok()) << read.status();
                       EXPECT_EQ(read->ranks.size(), static_cast<size_t>(cost_.ranks));
                     });
    v1::AttemptInventory item;
    for (const rank_protocol::NodeRow& row : node_rows(*launch)) {
      item.add_nodes()->set_names(row.names);
      item.mutable_nodes()->rbegin()->set_ranks(row.ranks);
    }
    cost_.inventory_bytes = static_cast<int64_t>(item.ByteSizeLong());
    for (rank_protocol::RankPlacement& place : launch->ranks) {
      const uint32_t any = static_cast<uint32_t>(place.rank / kRanksOfNode) * 2'654'435'761U;
      place.node = absl::StrCat("ip-10-", any >> 24, "-", any >> 16 & 255U, "-", any >> 8 & 255U);
    }
    cost_.unordered_bytes = static_cast<int64_t>(to_folded_json(*launch).dump().size());
  }

  // Runs one second of all nodes; returns the seconds for the beats alone, and for the beats and the tick.
  std::pair<double, double> second() {
    world_.clock.advance(absl::Seconds(1));
    ++step_;
    std::vector<v1::WorkerMessage> beats;
    for (const Node& node : nodes_) beats.push_back(beat(node));
    cost_.beat_bytes = static_cast<int64_t>(beats.back().ByteSizeLong());
    const double of_beats = seconds_of([&] {
      for (size_t i = 0; i < nodes_.size(); ++i) deliver(nodes_[i], beats[i]);
    });
    const double of_tick = seconds_of([&] { world_.reconciler->tick(); });
    cost_.transactions = 0;
    while (const int64_t run = static_cast<int64_t>(world_.store.run_pending())) cost_.transactions += run;
    return {of_beats, of_beats + of_tick};
  }

  v1::WorkerMessage beat(const Node& node) const {
    v1::WorkerMessage message;
    v1::AttemptBeat& attempt = *message.mutable_beat()->add_attempts();
    message.mutable_beat()->set_sequence(step_);
    *attempt.mutable_id() = node.id;
    for (const int rank : node.ranks) {
      v1::RankStatus& status = *attempt.add_ranks();
      status.set_rank(rank);
      status.set_pid(1'000'000 + rank);
      status.set_start_ticks(100'000'000 + rank);
      status.set_step(step_);
      status.set_phase("forward_backward");
      status.set_phase_milliseconds(500);
      status.set_counter(1'000 * step_);
      status.set_sequence(10'000 * step_);
      status.set_own_steps(step_);
      status.set_own_nanoseconds(step_ * 800'000'000 + rank % 7 * 1'000'000);
    }
    return message;
  }

  World world_;
  std::vector<Node> nodes_;
  Cost cost_;
  int64_t step_ = 0, events_ = 0;
};

void print(const std::vector<Cost>& costs) {
  const auto line = [&](const char* what, const char* format, auto figure_of) {
    std::printf("| %-44s |", what);
    for (const Cost& cost : costs) {
      char figure[32];
      std::snprintf(figure, sizeof figure, format, static_cast<double>(figure_of(cost)));
      std::printf(" %10s |", figure);
    }
    const Cost &from = costs[costs.size() - 2], &to = costs.back();
    const double growth = static_cast<double>(figure_of(to)) / static_cast<double>(figure_of(from));
    const double ranks = static_cast<double>(to.ranks) / static_cast<double>(from.ranks);
    std::printf(" %5.2f |\n", growth > 0 ? std::log(growth) / std::log(ranks) : 0.0);  // 0 if there is no growth.
  };
  line("ranks", "%.0f", [](const Cost& c) { return c.ranks; });
  const auto kilobytes = [&](const char* what, int64_t Cost::*bytes) {
    line(what, "%.1f", [bytes](const Cost& c) { return static_cast<double>(c.*bytes) / 1e3; });
  };
  kilobytes("launch file to the leader's node, kB", &Cost::leader_bytes);
  kilobytes("launch file to any other node, kB", &Cost::launch_bytes);
  kilobytes("the same, unordered names, kB", &Cost::unordered_bytes);
  kilobytes("launch files to all nodes, kB", &Cost::all_bytes);
  kilobytes("launch file in a run folder, kB", &Cost::kept_bytes);
  line("a rank: launch file parsed, ms", "%.2f", [](const Cost& c) { return c.parse_ms; });
  line("a node: placements in Register, bytes", "%.0f", [](const Cost& c) { return c.inventory_bytes; });
  line("a node: the rest of its Prepare, bytes", "%.0f", [](const Cost& c) { return c.prepare_bytes; });
  line("a node: messages to it until ranks run", "%.0f", [](const Cost& c) { return c.controller_messages; });
  line("a node: messages from it until ranks run", "%.0f", [](const Cost& c) { return c.node_messages; });
  line("controller: from submission to Prepare, ms", "%.1f", [](const Cost& c) { return c.start_ms; });
  line("a node: a beat of 8 ranks, bytes", "%.0f", [](const Cost& c) { return c.beat_bytes; });
  line("a node: its answer, bytes", "%.0f", [](const Cost& c) { return c.ack_bytes; });
  line("controller: a beat, us", "%.1f", [](const Cost& c) { return c.beat_us; });
  line("controller: transactions of a second", "%.0f", [](const Cost& c) { return c.transactions; });
  line("controller: one second of beats, ms", "%.2f", [](const Cost& c) { return c.tick_ms; });
}

TEST(ScaleTest, CostPerNodeIsIndependentOfTheJobsSize) {
  const bool all = std::getenv("TITAN_LONG") != nullptr;
  std::vector<Cost> costs;
  for (const int ranks : all ? std::vector<int>{104, 1000, 10000} : std::vector<int>{40, 400}) {
    costs.push_back(ControlScale(ranks).run());
    if (::testing::Test::HasFailure()) return;
    const Cost& cost = costs.back();
    const int nodes = ranks / kRanksOfNode;
    EXPECT_LT(cost.leader_bytes, 8'500 + 72 * nodes) << "one line per node";
    EXPECT_LT(cost.launch_bytes, 8'300) << "independent of the number of nodes";
    EXPECT_LT(cost.unordered_bytes, 8'300 + 17 * nodes) << "only a name per node";
    EXPECT_LT(cost.all_bytes, cost.leader_bytes + 8'300 * nodes);
    EXPECT_LT(cost.kept_bytes, 8'400) << "folded names and the node's address";
    EXPECT_LT(cost.inventory_bytes, 40) << "only folded names";
    EXPECT_LT(cost.prepare_bytes, 200);
    EXPECT_EQ(cost.controller_messages, 3) << "Welcome, Prepare, Start";
    EXPECT_EQ(cost.node_messages, 3) << "Register, PREPARED, STARTED";
    EXPECT_LT(cost.beat_bytes, 40 + 70 * kRanksOfNode);
    EXPECT_LT(cost.ack_bytes, 16);
    EXPECT_LE(cost.transactions, 1) << "beats are not stored one by one";
  }
  print(costs);
}

}  // namespace
}  // namespace titan::reconcile
