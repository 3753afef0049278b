// Each end of a worker's session with a peer that sends anything: the cores of the controller and of a node, with
// clocks that the input moves.

#include <csignal>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/controller/world.h"
#include "tests/fuzz/fill.h"
#include "tests/fuzz/parts.h"
#include "tests/fuzz/target.h"
#include "tests/worker/node/core/node_world.h"

namespace titan::fuzz {
namespace {

// The test worlds have many checks. With `fatal` each failure ends the process, for a node with a malicious controller.
// A malicious node may get a device twice, which only harms that node: there only the calls of require() count.
// GoogleTest's breakpoint on failure becomes an abort, at which libFuzzer stores the input.
void make_failures_fatal(bool fatal) {
  GTEST_FLAG_SET(break_on_failure, fatal);
  std::signal(SIGTRAP, fatal ? +[](int) { std::abort(); } : SIG_DFL);
}

// Returns words for a node's messages: jobs, nodes, phases and lines of spools.
const std::vector<std::string>& words_of_nodes() {
  static const std::vector<std::string> words = {
      "id1",
      "id2",
      "id3",
      "n1",
      "n2",
      "n3",
      "test",
      "i",
      "cpu",
      "STALE_ATTEMPT",
      "STOP_TIMEOUT",
      "STALE_LEADER",
      "SHIM_LOST",
      "forward",
      "projects/default/jobs/a",
      R"({"kind":"step","step":3,"metrics":{"loss_metrics/global_avg_loss":2.5}})",
      R"({"kind":"step","step":1e300,"metrics":{"loss_metrics/global_avg_loss":"x"}})",
      R"({"kind":"loaded","source":"checkpoint","step":-5})",
      R"({"kind":"checkpoint_committed","step":9223372036854775807,"full":true,"seconds":-1e300})",
      R"({"kind":"checkpoint_failed","step":2,"reason":7})",
      R"({"kind":"error","class":"user","reason":"BAD_DATA","message":"m"})",
      R"({"kind":"error","class":"fenced","reason":"FENCED","message":"m","holder_attempt":1e30})",
      R"({"kind":"phase","phase":"load","previous":"init","seconds":1e308})",
      R"({"kind":"finished","step":100})",
      R"({"kind":"stopped","step":-1})",
      R"({"kind":"warning","message":[1]})",
      R"([{"kind":[]}])",
      "",
      "../../etc",
      "boot",
  };
  return words;
}

class HostileNodes {
 public:
  HostileNodes() {
    for (const char* name : {"n1", "n2"}) world_.add_node(name, 2);
    (void)world_.submit(world_.spec("a", 2));
  }

  void run(Parts& parts) {
    for (int i = 0; i < 48 && !parts.empty(); ++i) act(parts);
    require(world_.store.quarantined().empty(), "no record was set aside");
    require(reconcile::World::node_views_text(world_.reconciler->nodes()) ==
                reconcile::World::node_views_text(world_.reconciler->decided_nodes()),
            "published nodes match the decided state");
    world_.crash();
    require(world_.reconciler != nullptr, "the next controller can start");
    require(world_.store.quarantined().empty(), "the next controller can read all records");
    require(world_.job("a") != nullptr, "the job is still there");
  }

 private:
  void act(Parts& parts) {
    reconcile::FakeNode& node = world_.nodes.at(parts.byte() % 2 == 0 ? "n1" : "n2");
    switch (parts.byte() % 16) {
      default: {
        v1::WorkerMessage message;
        fill(message, parts, words_of_nodes());
        world_.deliver(node, message);
        return world_.settle();
      }
      case 9:
        return world_.advance(absl::Seconds(1 + parts.byte() % 30));
      case 10:
        return connect_as(node, parts);
      case 11:
        if (node.session != nullptr) world_.disconnect(node);
        return;
      case 12:
        if (node.session == nullptr) world_.connect(node);
        return;
      case 13:
        if (world_.job("b") == nullptr) (void)world_.submit(world_.spec("b", 1 + parts.byte() % 4));
        return;
      case 14:
        return world_.train("a", parts.byte());
      case 15:
        world_.crash();
        for (auto& [name, other] : world_.nodes) world_.connect(other);
        return;
    }
  }
  // Opens another session under any name; it may replace the node's own.
  void connect_as(reconcile::FakeNode& node, Parts& parts) {
    v1::Register hello;
    fill(hello, parts, words_of_nodes());
    if (parts.byte() % 2 == 0) hello.set_node(node.name), hello.set_instance("i"), hello.set_cluster("test");
    const auto session = std::make_shared<reconcile::FakeSession>();
    if (world_.reconciler->open_session(hello, session).ok() && hello.node() == node.name) node.session = session;
    others_.push_back(session);
    world_.settle();
  }

  reconcile::World world_;
  std::vector<std::shared_ptr<reconcile::FakeSession>> others_;
};

const std::vector<std::string>& words_of_controllers() {
  static const std::vector<std::string> words = {"u1", "u1",     "u1", "u1",    "",        "../u2",
                                                 ".",  "c1",     "c2", "/dump", "token",   "host",
                                                 "{}", "folder", "[]", "TEST",  "relative"};
  return words;
}

void act(node::NodeWorld& world, Parts& parts) {
  const auto attempt = static_cast<int>(1 + parts.byte() % 3);
  const auto rank = static_cast<int>(parts.byte() % 2);
  const auto there = [&] { return world.shims.count({"u1", attempt}) > 0; };
  switch (parts.byte() % 20) {
    default: {
      v1::ControllerMessage message;
      fill(message, parts, words_of_controllers());
      return world.command(message);
    }
    case 6:
      return world.connect(parts.byte() % 4 == 0 ? "c2" : "c1", parts.byte() % 4);
    case 7:
      return world.disconnect();
    case 8:
      return world.advance(absl::Milliseconds(250 * parts.byte()));
    case 9:
      return world.settle();
    case 10:
      return world.prepare(attempt, rank + 1);
    case 11:
      return world.start(attempt);
    case 12:
      if (there()) world.rank_exits(attempt, rank, parts.byte() % 20, 0);
      return;
    case 13:
      if (there()) world.rank_emits(attempt, rank, parts.byte());
      return;
    case 14:
      if (there()) world.kill_shim(attempt);
      return;
    case 15:
      if (there()) world.break_link(attempt);
      return;
    case 16:
      return world.restart();
    case 17:
      (void)world.run_one();
      return;
    case 18:
      return world.forget(attempt);
    case 19:
      return world.stop(attempt, rank == 1, parts.byte() * 100);
  }
}

}  // namespace

TITAN_FUZZ(worker_session, 100) {
  make_failures_fatal(false);
  Parts parts(bytes);
  HostileNodes().run(parts);
}

TITAN_FUZZ(node_core, 300) {
  make_failures_fatal(true);
  Parts parts(bytes);
  node::NodeWorld world;
  world.connect();
  for (int i = 0; i < 64 && !parts.empty(); ++i) {
    act(world, parts);
    (void)world.devices_in_use();
  }
  // After any messages, a node can be emptied on request.
  world.clear_all_faults();
  world.settle();
  world.advance(absl::Seconds(60));
  require(world.exited() || world.core().next_deadline() > world.now().monotonic, "no deadline is in the past");
}

}  // namespace titan::fuzz
