#include "controller/cli/node_commands.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "controller/cli/client.h"
#include "controller/cli/job_text.h"
#include "controller/cli/message_json.h"
#include "controller/cli/output.h"
#include "controller/cli/terminal.h"

namespace titan::cli {
namespace {

constexpr int kNodePage = 1000;
constexpr absl::Duration kDrainPoll = absl::Milliseconds(500);

std::string node_id(const v1::Node& node) {
  constexpr std::string_view kPrefix = "nodes/";
  return node.name().rfind(kPrefix, 0) == 0 ? node.name().substr(kPrefix.size()) : node.name();
}

std::string state_text(const v1::Node& node) {
  return v1::Node::State_Name(node.state()) + (node.cordoned() ? ",CORDONED" : "") + (node.slow() ? ",SLOW" : "");
}

std::string clock_text(const v1::Node& node) {
  const double ahead = node.clock_ahead_seconds();
  return absl::StrCat("its clock is ", absl::FormatDuration(absl::Seconds(std::round(std::abs(ahead)))),
                      ahead > 0 ? " ahead of" : " behind", " the controller's");
}

std::string jobs_text(const v1::Node& node) {
  return absl::StrJoin(node.jobs(), ",",
                       [](std::string* out, const std::string& job) { out->append(short_name(job)); });
}

std::string labels_text(const v1::Node& node) {
  const std::map<std::string, std::string> labels(node.labels().begin(), node.labels().end());
  return absl::StrJoin(labels, ", ", absl::PairFormatter("="));
}

std::string unknown_text(const v1::UnknownAttempt& attempt) {
  return absl::StrCat(attempt.job().empty() ? "a job without a name" : short_name(attempt.job()), ", uid ",
                      attempt.job_uid(), ", attempt ", attempt.attempt(), ", ranks ",
                      absl::StrJoin(attempt.ranks(), ","), ", step ", attempt.step(), ", for ",
                      age(attempt.start_time()), "; ", attempt.message());
}

// Returns "2 ranks of JOB (attempt 1), given up while the node was silent; until TIME at the latest".
std::string left_text(const v1::LeftAttempt& attempt) {
  return absl::StrCat(counted(attempt.ranks(), "rank"), " of ", short_name(attempt.job()), " (attempt ",
                      attempt.attempt(), "), given up while the node was silent; until ",
                      time_text(attempt.until_time()), " at the latest");
}

absl::StatusOr<std::vector<v1::Node>> all_nodes(ControllerClient& client) {
  std::vector<v1::Node> nodes;
  v1::ListNodesRequest request;
  request.set_page_size(kNodePage);
  TITAN_RETURN_IF_ERROR(each_page(
      request, [&](const v1::ListNodesRequest& next) { return client.list_nodes(next); },
      [&](const v1::ListNodesResponse& page) { nodes.insert(nodes.end(), page.nodes().begin(), page.nodes().end()); }));
  return nodes;
}

// Older workers do not report all of it.
std::string if_known(int64_t bytes) { return bytes == 0 ? "" : gibibytes(bytes); }

std::string drain_text(const v1::Node& node) {
  if (node.jobs().empty() && !node.left().empty()) {
    return absl::StrCat("node ", node_id(node), " takes no new ranks, and may still run ", left_text(node.left(0)),
                        node.left_size() > 1 ? absl::StrCat("; and ", node.left_size() - 1, " more") : "");
  }
  if (node.jobs().empty()) {
    const std::string rest = node.unknown().empty()
                                 ? "is empty and takes no new ranks"
                                 : absl::StrCat("takes no new ranks and runs only ",
                                                counted(node.unknown_size(), "attempt of a job", "attempts of jobs"),
                                                " that this controller does not know");
    return absl::StrCat("node ", node_id(node), " ", rest, "; `titanctl node uncordon ", node_id(node),
                        "` makes it available again");
  }
  return absl::StrCat("node ", node_id(node), " takes no new ranks; ", jobs_text(node),
                      node.jobs_size() == 1 ? " saves and continues" : " save and continue",
                      " elsewhere, but a job that cannot save stays until it ends");
}

std::string nodes_text(const std::vector<v1::Node>& nodes, bool wide) {
  std::vector<std::string> header = {"NODE", "STATE", "DEVICE", "USED", "EACH", "ADDRESS", "LAST BEAT", "UNKNOWN"};
  if (wide) header.insert(header.end(), {"MODEL", "VERSION", "LABELS", "CORDONED"});
  header.emplace_back("JOBS");
  Table table(std::move(header));
  for (const v1::Node& node : nodes) {
    const v1::NodeResources& has = node.resources();
    std::vector<std::string> row = {node_id(node),
                                    state_text(node),
                                    has.device(),
                                    absl::StrCat(node.devices_used(), "/", has.devices()),
                                    if_known(has.device_memory_bytes()),
                                    node.address(),
                                    age(node.last_beat_time()),
                                    absl::StrCat(node.unknown_size())};
    if (wide) row.insert(row.end(), {has.device_model(), node.version(), labels_text(node), node.cordon_reason()});
    row.push_back(jobs_text(node));
    table.add(std::move(row));
  }
  return table.text();
}

// Requests the drain again and again: an attempt that was about to start, or a restarted controller, may have missed
// it.
absl::StatusOr<v1::Node> empty_node(ControllerClient& client, const std::string& name, const std::string& reason,
                                    absl::Time deadline) {
  while (true) {
    auto node = client.drain_node(name, reason);
    if (!node.ok() || (node->jobs().empty() && node->left().empty())) return node;
    if (absl::Now() >= deadline) {
      const std::string what = node->jobs().empty() ? absl::StrCat("may still run ", left_text(node->left(0)))
                                                    : absl::StrCat("still runs ", jobs_text(*node));
      return absl::DeadlineExceededError(absl::StrCat("node ", node_id(*node), " ", what,
                                                      "; it stays cordoned, and `titanctl node drain ", node_id(*node),
                                                      " --wait` waits again"));
    }
    absl::SleepFor(std::min(kDrainPoll, std::max(absl::ZeroDuration(), deadline - absl::Now())));
  }
}

// Applies `act` to each node and prints the nodes where it succeeded. Returns the exit code.
int to_each(const Globals& globals, const std::vector<std::string>& names,
            const std::function<absl::StatusOr<v1::Node>(const std::string& name)>& act,
            const std::function<std::string(const v1::Node&)>& text) {
  std::vector<nlohmann::ordered_json> done;
  const int code = on_each(names, [&](const std::string& name) -> absl::Status {
    TITAN_ASSIGN_OR_RETURN(const v1::Node node, act(name));
    done.push_back(to_json(node));
    note(text(node));
    return absl::OkStatus();
  });
  print_each(done, names.size() > 1, globals.format);
  return code;
}

}  // namespace

int list_nodes(const Globals& globals) {
  ControllerClient client(globals.controller, globals.timeout, globals.access);
  const auto nodes = all_nodes(client);
  if (!nodes.ok()) return report(nodes.status());
  if (globals.format != OutputFormat::kTable) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const v1::Node& node : *nodes) all.push_back(to_json(node));
    print(nlohmann::ordered_json{{"nodes", std::move(all)}}, globals.format);
    return kExitOk;
  }
  if (nodes->empty()) {
    note(absl::StrCat("no nodes; start `titan-worker --controller ", client.address(), "` on each machine"));
    return kExitOk;
  }
  print(nodes_text(*nodes, globals.wide));
  for (const v1::Node& node : *nodes) {
    if (!node.refusal().empty()) note(absl::StrCat("node ", node_id(node), " is refused: ", node.refusal()));
    for (const v1::LeftAttempt& attempt : node.left()) {
      note(absl::StrCat("node ", node_id(node), " may still run ", left_text(attempt)));
    }
    if (!node.unusable().empty()) note(absl::StrCat("node ", node_id(node), " takes no ranks: ", node.unusable()));
    if (node.clock_ahead_seconds() != 0) note(absl::StrCat("node ", node_id(node), ": ", clock_text(node)));
    if (node.devices_used() > node.resources().devices()) {
      note(absl::StrCat("node ", node_id(node), " offers ", counted(node.resources().devices(), "device"),
                        " since its worker was restarted; ", node.devices_used(), " are in use by what ran before"));
    }
    if (node.unknown_size() == 0) continue;
    note(absl::StrCat("node ", node_id(node), " runs ",
                      counted(node.unknown_size(), "attempt of a job", "attempts of jobs"),
                      " that this controller does not know; `titanctl node describe ", node_id(node), "` names them"));
  }
  return kExitOk;
}

int describe_node(const Globals& globals, const std::string& name) {
  ControllerClient client(globals.controller, globals.timeout, globals.access);
  const auto node = client.get_node(name);
  if (!node.ok()) return report(node.status());
  if (globals.format != OutputFormat::kTable) {
    print(to_json(*node), globals.format);
    return kExitOk;
  }
  std::string out;
  const auto row = [&out](std::string_view key, const std::string& value) {
    if (!value.empty()) absl::StrAppendFormat(&out, "%-12s%s\n", key, shown(value));
  };
  const v1::NodeResources& has = node->resources();
  row("node", node_id(*node));
  row("state", state_text(*node));
  row("cordoned", node->cordon_reason());
  if (node->flapping()) row("flapping", "its worker began many sessions within a minute");
  row("devices", absl::StrCat(node->devices_used(), " of ", has.devices(), " ", has.device(), " used",
                              has.device_model().empty() ? "" : ", " + has.device_model()));
  row("cores", absl::StrCat(has.cpu_cores()));
  row("memory", if_known(has.memory_bytes()));
  row("of a device", if_known(has.device_memory_bytes()));
  row("labels", labels_text(*node));
  row("address", node->address());
  row("version", node->version());
  row("last beat", absl::StrCat(age(node->last_beat_time()), " ago"));
  row("jobs", jobs_text(*node));
  for (const v1::SlowRank& slow : node->slow_ranks()) {
    row("slow", absl::StrCat(short_name(slow.job()), " ", slow_text(slow)));
  }
  for (const v1::LeftAttempt& attempt : node->left()) row("may run", left_text(attempt));
  row("refused", node->refusal());
  row("unusable", node->unusable());
  if (node->clock_ahead_seconds() != 0) row("clock", clock_text(*node));
  for (const v1::UnknownAttempt& attempt : node->unknown()) row("unknown", unknown_text(attempt));
  print(out);
  return kExitOk;
}

int cordon_nodes(const Globals& globals, const std::vector<std::string>& nodes, const std::string& reason) {
  ControllerClient client(globals.controller, globals.timeout, globals.access);
  return to_each(
      globals, nodes, [&](const std::string& name) { return client.cordon_node(name, reason); },
      [](const v1::Node& node) {
        return absl::StrCat("node ", node_id(node), " takes no new ranks; running ones stay. `titanctl node uncordon ",
                            node_id(node), "` makes it available again");
      });
}

int drain_nodes(const Globals& globals, const std::vector<std::string>& nodes, const std::string& reason, bool wait) {
  ControllerClient client(globals.controller, globals.timeout, globals.access);
  const absl::Time deadline = absl::Now() + globals.whole_wait();
  const auto ask = [&](const std::string& name) { return client.drain_node(name, reason); };
  if (!wait) return to_each(globals, nodes, ask, drain_text);
  // All are drained before any is waited for. One that fails is drained again below, where its error is reported.
  for (const std::string& name : nodes)
    if (absl::IsUnavailable(ask(name).status())) break;
  return to_each(
      globals, nodes, [&](const std::string& name) { return empty_node(client, name, reason, deadline); }, drain_text);
}

int stop_unknown(const Globals& globals, const std::string& name, const std::string& job_uid, double grace_seconds) {
  ControllerClient client(globals.controller, globals.timeout, globals.access);
  const auto node = client.stop_unknown(name, job_uid, absl::Seconds(grace_seconds));
  if (!node.ok()) return report(node.status());
  if (globals.format != OutputFormat::kTable) print(to_json(*node), globals.format);
  note(absl::StrCat("node ", node_id(*node), " lets the ranks of job ", job_uid, " save and ends them within ",
                    grace_seconds, " s; `titanctl node describe ", node_id(*node), "` shows when they are gone"));
  return kExitOk;
}

int uncordon_nodes(const Globals& globals, const std::vector<std::string>& nodes) {
  ControllerClient client(globals.controller, globals.timeout, globals.access);
  return to_each(
      globals, nodes, [&](const std::string& name) { return client.uncordon_node(name); },
      [](const v1::Node& node) { return absl::StrCat("node ", node_id(node), " takes new ranks again"); });
}

int delete_nodes(const Globals& globals, const std::vector<std::string>& nodes, bool force) {
  ControllerClient client(globals.controller, globals.timeout, globals.access);
  return to_each(
      globals, nodes, [&](const std::string& name) { return client.delete_node(name, force); },
      [](const v1::Node& node) {
        return absl::StrCat("node ", node_id(node), " is deleted with its events; its titan-worker may register again");
      });
}

}  // namespace titan::cli
