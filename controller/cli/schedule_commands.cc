#include "controller/cli/schedule_commands.h"

#include <cerrno>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/config/pipeline.h"
#include "common/models/registry.h"
#include "common/pipeline/csv.h"
#include "common/pipeline/draw.h"
#include "common/pipeline/generators.h"
#include "common/pipeline/simulator.h"
#include "common/status/status.h"
#include "controller/cli/preflight.h"
#include "controller/cli/terminal.h"
#include "nlohmann/json.hpp"

namespace titan::cli {
namespace {

absl::StatusOr<pipeline::Costs> parse_costs(const ScheduleRequest& request) {
  pipeline::Costs costs{.pairs_overlap = request.pairs_overlap, .stage_scale = {}};
  if (request.costs.empty()) return costs;
  const std::vector<std::string> parts = absl::StrSplit(request.costs, ',');
  double* const members[] = {&costs.forward, &costs.input_gradient, &costs.weight_gradient, &costs.transfer};
  bool good = parts.size() >= 3 && parts.size() <= 4;
  for (std::size_t i = 0; good && i < parts.size(); ++i)
    good = absl::SimpleAtod(parts[i], members[i]) && *members[i] >= 0 && *members[i] < 1e9;
  if (good && costs.forward + costs.input_gradient + costs.weight_gradient > 0) return costs;
  return absl::InvalidArgumentError(
      absl::StrCat("--costs is '", request.costs, "': it must be F,I,W or F,I,W,transfer, such as 1,1,1,0.1"));
}

absl::StatusOr<pipeline::Schedule> schedule_of_config(const Source& source) {
  TITAN_ASSIGN_OR_RETURN(const Prepared prepared, prepare(source));
  const config::JobConfig& config = prepared.loaded.config;
  const auto spec = models::find(config.model.name, config.model.flavor);
  TITAN_ASSIGN_OR_RETURN(pipeline::Plan plan, config::pipeline_plan(config, spec.ok() ? spec->n_layers : 0));
  for (std::size_t stage = 0; stage < plan.split.size(); ++stage) {
    const auto& blocks = plan.split[stage];
    note(absl::StrCat("stage ", stage, ": ", blocks.front(), blocks.size() > 1 ? " to " + blocks.back() : "", " (",
                      blocks.size(), blocks.size() == 1 ? " block)" : " blocks)"));
  }
  return std::move(plan.schedule);
}

absl::StatusOr<pipeline::Schedule> make_schedule(const ScheduleRequest& request) {
  if (!request.source.file.empty() || !request.source.overrides.empty()) return schedule_of_config(request.source);
  if (!request.csv.empty()) {
    std::ifstream in(request.csv, std::ios::binary);
    if (!in) return absl::InvalidArgumentError(absl::StrCat("cannot read ", request.csv, nearby_path(request.csv)));
    std::ostringstream text;
    text << in.rdbuf();
    const auto schedule = pipeline::parse_csv(text.str());
    return schedule.ok() ? schedule : annotate(schedule.status(), request.csv);
  }
  TITAN_ASSIGN_OR_RETURN(const pipeline::Kind kind, pipeline::find_kind(request.name));
  const int stages = request.stages_per_rank > 0 ? request.stages_per_rank : kind.default_stages_per_rank;
  return pipeline::generate(kind.name, request.ranks, stages, request.microbatches);
}

nlohmann::ordered_json to_json(const pipeline::Schedule& schedule, const pipeline::Simulation& simulation) {
  nlohmann::ordered_json out{
      {"schedule", schedule.name},       {"stages", schedule.stages},   {"microbatches", schedule.microbatches},
      {"makespan", simulation.makespan}, {"bubble", simulation.bubble}, {"ranks", nlohmann::ordered_json::array()}};
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const pipeline::RankTimeline& timeline = simulation.ranks[rank];
    nlohmann::ordered_json actions = nlohmann::ordered_json::array();
    for (const pipeline::TimedAction& timed : timeline.actions)
      actions.push_back({{"action", to_string(timed.action)}, {"start", timed.start}, {"end", timed.end}});
    out["ranks"].push_back({{"stages", schedule.stages_of(rank)},
                            {"bubble", timeline.bubble},
                            {"peak_activations", timeline.peak_activations},
                            {"actions", std::move(actions)}});
  }
  return out;
}

absl::Status write_file(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  return out ? absl::OkStatus() : errno_status(errno, absl::StrCat("write ", path));
}

absl::Status show(const Globals& globals, const ScheduleRequest& request) {
  TITAN_ASSIGN_OR_RETURN(const pipeline::Costs costs, parse_costs(request));
  TITAN_ASSIGN_OR_RETURN(const pipeline::Schedule schedule, make_schedule(request));
  TITAN_ASSIGN_OR_RETURN(const pipeline::Simulation simulation, pipeline::simulate(schedule, costs));
  if (!request.svg.empty()) {
    TITAN_RETURN_IF_ERROR(write_file(request.svg, pipeline::draw_svg(schedule, simulation)));
    note(absl::StrCat("wrote ", request.svg));
  }
  if (request.write_csv) {
    print(pipeline::to_csv(schedule));
  } else if (globals.format == Format::kTable) {
    print(pipeline::draw_text(schedule, simulation));
  } else {
    print(to_json(schedule, simulation), globals.format);
  }
  return absl::OkStatus();
}

}  // namespace

int show_schedule(const Globals& globals, const ScheduleRequest& request) {
  const absl::Status status = show(globals, request);
  return status.ok() ? static_cast<int>(kExitOk) : report(status);
}

}  // namespace titan::cli
