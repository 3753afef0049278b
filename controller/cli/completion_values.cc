#include "controller/cli/completion_values.h"

#include <functional>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/plan/config/json.h"
#include "controller/cli/client.h"
#include "controller/cli/job_query.h"

namespace titan::cli {
namespace {

constexpr absl::Duration kTimeout = absl::Milliseconds(500);
constexpr int kMaxJobs = 1000;

std::vector<v1::Job> jobs_in(const Globals& globals, std::vector<std::string> states) {
  ControllerClient client(globals.controller, kTimeout, globals.access);
  return find_jobs(client, {.states = std::move(states), .limit = kMaxJobs}).value_or(std::vector<v1::Job>());
}

std::vector<std::string> distinct(const Globals& globals,
                                  const std::function<void(const v1::Job&, std::set<std::string>&)>& take) {
  std::set<std::string> found;
  for (const v1::Job& job : jobs_in(globals, {})) take(job, found);
  return {found.begin(), found.end()};
}

std::vector<std::string> labels_in_use(const Globals& globals) {
  return distinct(globals, [](const v1::Job& job, std::set<std::string>& found) {
    for (const auto& [key, value] : job.labels()) found.insert(absl::StrCat(key, "=", value));
  });
}

std::vector<std::string> owners(const Globals& globals) {
  std::vector<std::string> all = distinct(globals, [](const v1::Job& job, std::set<std::string>& found) {
    const size_t colon = job.owner().find(':');
    if (!job.owner().empty())
      found.insert(job.owner().rfind("user:", 0) == 0 ? job.owner().substr(colon + 1) : job.owner());
  });
  all.emplace_back("me");
  return all;
}

std::vector<std::string> lower_states() {
  std::vector<std::string> states;
  for (const auto& group : {live_states(), final_states()}) {
    for (const std::string& state : group) states.push_back(absl::AsciiStrToLower(state));
  }
  return states;
}

std::vector<std::string> wait_targets() {
  std::vector<std::string> targets = lower_states();
  targets.insert(targets.end(), {"step=", "committed="});
  return targets;
}

// Returns the states of jobs on which a verb can act; empty: all.
std::vector<std::string> states_for(const std::string& verb) {
  if (verb == "cancel" || verb == "update" || verb == "wait") return live_states();
  if (verb == "delete") return final_states();
  if (verb == "checkpoint" || verb == "profile") return {"RUNNING", "CHECKPOINTING"};
  return {};
}

std::vector<std::string> node_names(const std::string& verb, const Globals& globals) {
  std::vector<std::string> names;
  ControllerClient client(globals.controller, kTimeout, globals.access);
  const auto page = client.list_nodes({});
  if (!page.ok()) return names;
  for (const v1::Node& node : page->nodes()) {
    const bool fits = verb == "uncordon" ? node.cordoned() : verb != "cordon" || !node.cordoned();
    if (fits) names.push_back(node.name().substr(node.name().rfind('/') + 1));
  }
  return names;
}

}  // namespace

std::vector<std::string> values_of_option(const CLI::App& verb, const std::string& option, const Globals& globals) {
  const std::string& name = verb.get_name();
  if (option == "-o" || option == "--output") return {"table", "wide", "json", "yaml"};
  if (option == "--for") return wait_targets();
  if (option == "--state" && name == "list") return lower_states();
  if (option == "--format") return {"toml", "yaml", "json"};
  if (option == "--owner") return owners(globals);
  if (option == "--label" || option == "-l" || option == "--selector") return labels_in_use(globals);
  if (option == "--project") {
    return distinct(globals, [](const v1::Job& job, std::set<std::string>& all) { all.insert(job.spec().project()); });
  }
  if (option == "--role") return {"viewer", "operator", "admin"};
  if (option == "--node" && name == "events") return node_names(name, globals);
  return {};
}

std::vector<std::string> arguments_of(const CLI::App& verb, const Globals& globals) {
  for (const CLI::Option* option : verb.get_options()) {
    if (!option->get_positional()) continue;
    const std::string name = option->get_name();
    if (name == "section") return config::section_names();
    if (name == "shell") return {"bash", "zsh", "fish"};
    if (name.rfind("node", 0) == 0) return node_names(verb.get_name(), globals);
    if (name.rfind("job", 0) != 0) continue;
    std::vector<std::string> jobs;
    for (const v1::Job& job : jobs_in(globals, states_for(verb.get_name()))) jobs.push_back(short_name(job.name()));
    return jobs;
  }
  return {};
}

}  // namespace titan::cli
