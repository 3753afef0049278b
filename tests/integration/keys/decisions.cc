// Prints the effects of configurations without any rank. Each line of standard input is a JSON array of command-line
// words, each line of standard output a JSON object: {"refused": text}, or the warnings, the controller's record and
// decisions, and the layout of the ranks.
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "common/plan/config/json.h"
#include "common/plan/config/load.h"
#include "common/plan/config/parallelism.h"
#include "common/plan/config/trained_model.h"
#include "common/plan/config/validate.h"
#include "common/plan/models/sizes.h"
#include "common/plan/models/spec_json.h"
#include "controller/api/job_spec.h"
#include "controller/core/core.h"
#include "controller/job/restart.h"
#include "controller/scheduler/scheduler.h"
#include "nlohmann/json.hpp"

namespace {

using nlohmann::json;
using namespace titan;

// Places the job together with an older one of priority 0 that has waited longer, on two nodes of four devices.
json placement(const job::SchedulingSpec& spec) {
  scheduler::Scheduler scheduler;
  for (const char* name : {"a", "b"}) scheduler.set_node({.name = name, .device = "cpu", .devices = 4});
  scheduler.add_job({.uid = "older", .name = "older", .device = "cpu", .ranks = 8, .order = 1});
  scheduler::PendingJob mine = core::scheduler_job(spec);
  mine.uid = mine.name = "mine";
  mine.order = 2;
  scheduler.add_job(std::move(mine));
  json decided = json::array();
  for (const scheduler::Outcome& outcome : scheduler.cycle(absl::UnixEpoch())) {
    decided.push_back({outcome.uid, outcome.reason, outcome.runs.size()});
  }
  return decided;
}

// Restart decisions for node losses that follow each other without a step in between.
json restarts(const job::SchedulingSpec& spec) {
  json delays = json::array();
  job::RestartHistory history;
  for (int i = 0; i < 12; ++i) {
    const job::Verdict verdict = job::decide(spec.restart, history, {.cause = job::Cause::kNodeLost}, 0, 0);
    if (!verdict.restart) break;
    delays.push_back(verdict.delay_seconds);
  }
  return delays;
}

json schedule(const config::JobConfig& config) {
  const auto spec = config::resolve_model(config.model);
  if (!spec.ok() || config.parallelism.pipeline_parallel_degree == 1) return nullptr;
  const auto plan = config::pipeline_plan(config, models::block_names(*spec));
  if (!plan.ok()) return std::string(plan.status().message());
  return {
      {"name", plan->schedule.name}, {"stages", plan->schedule.stages}, {"microbatches", plan->schedule.microbatches}};
}

// Returns the numbers of the model that the job trains.
json model(const config::JobConfig& config) {
  const auto spec = config::resolve_model(config.model);
  return spec.ok() ? models::to_json(*spec) : json();
}

json decide(const std::vector<std::string>& words) {
  auto loaded = config::load_overrides(words);
  if (!loaded.ok()) return {{"refused", std::string(loaded.status().message())}};
  if (const absl::Status bad = config::validate(*loaded); !bad.ok()) return {{"refused", std::string(bad.message())}};
  config::resolve(loaded->config);
  std::string& dump_folder = loaded->config.job.dump_folder;
  dump_folder = std::filesystem::absolute(dump_folder).lexically_normal();  // titanctl does the same.
  v1::JobSpec sent;
  sent.set_config_json(config::to_json(loaded->config).dump());
  const auto checked = api::check_spec(sent, [] { return "0123456789"; });
  if (!checked.ok()) return {{"refused", std::string(checked.status().message())}};
  return {{"warnings", loaded->warnings},
          {"record", checked->spec},
          {"kept", json::parse(checked->stored.config_json())},
          {"placement", placement(checked->spec)},
          {"restarts", restarts(checked->spec)},
          {"model", model(loaded->config)},
          {"schedule", schedule(loaded->config)}};
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << decide(json::parse(line).get<std::vector<std::string>>())
                     .dump(-1, ' ', false, json::error_handler_t::replace)
              << std::endl;
  }
}
