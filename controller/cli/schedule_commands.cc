#include "controller/cli/schedule_commands.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <tuple>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/plan/config/model_kind.h"
#include "common/plan/config/parallelism.h"
#include "common/plan/config/trained_model.h"
#include "common/plan/memory/blocks.h"
#include "common/plan/models/activations.h"
#include "common/plan/models/flux.h"
#include "common/plan/models/sizes.h"
#include "common/plan/pipeline/csv.h"
#include "common/plan/pipeline/draw.h"
#include "common/plan/pipeline/generators.h"
#include "common/plan/pipeline/simulator.h"
#include "controller/cli/preflight.h"
#include "controller/cli/terminal.h"
#include "nlohmann/json.hpp"

namespace titan::cli {
namespace {

std::map<std::string, double> flops_of_flux(const config::JobConfig& config, const models::FluxSpec& spec) {
  const std::vector<std::string> names = models::block_names(spec);
  const std::vector<double> flops =
      models::block_flops(spec, config.encoder.max_t5_encoding_len, config::image_tokens(config));
  std::map<std::string, double> result;
  for (std::size_t i = 0; i < names.size(); ++i) result[names[i]] = flops[i];
  return result;
}

// Returns the FLOPs of a forward pass by block, up to a common factor, which cancels: of one token, or of one image
// with its caption.
std::map<std::string, double> flops_of_blocks(const config::JobConfig& config, const models::ModelSpec& spec) {
  if (spec.flux) return flops_of_flux(config, *spec.flux);
  const std::int64_t seq_len = config.training.seq_len;
  std::map<std::string, double> flops;
  for (const models::BlockSize& block : models::block_sizes(spec)) {
    flops[block.name] = static_cast<double>(block.active_params);
    if (block.name.rfind("layers.", 0) == 0)
      flops[block.name] += static_cast<double>(spec.n_heads * (spec.head_dim + spec.v_head_dim) * seq_len);
    if (block.name == "output" && spec.tied_embeddings)
      flops[block.name] += static_cast<double>(spec.vocab_size * spec.dim);
  }
  return flops;
}

std::string explain(const config::JobConfig& config) {
  const config::ActivationCheckpointSection& ac = config.activation_checkpoint;
  return absl::StrCat("memory: activations that wait for their backward pass (", ac.mode,
                      !ac.layers.empty()       ? absl::StrCat(" of layers ", absl::StrJoin(ac.layers, ", "))
                      : ac.mode == "selective" ? absl::StrCat(" ", ac.selective_ac_option)
                                               : "",
                      " recomputation), estimated; weights, gradients, optimizer and temporaries come on top: "
                      "titan-rank --comm.mode fake_backend counts all");
}

}  // namespace

StageFigures stage_figures(const config::JobConfig& config, const models::ModelSpec& spec,
                           const pipeline::PipelinePlan& plan) {
  const std::vector<models::BlockActivations> blocks = memory::block_activations(config, spec);
  std::map<std::string, double> flops = flops_of_blocks(config, spec);
  StageFigures figures{.bytes = {}, .scale = {}, .explanation = explain(config)};
  const config::ActivationCheckpointSection& ac = config.activation_checkpoint;
  figures.recomputed = memory::recomputed_share(ac, spec.n_layers);
  std::map<int, memory::LayerCounter> layers;  // By rank.
  std::size_t block = 0;
  for (std::size_t stage = 0; stage < plan.split.size(); ++stage) {
    std::int64_t bytes = 0;
    double work = 0;
    memory::LayerCounter& counter =
        layers.try_emplace(plan.schedule.rank_of(static_cast<int>(stage)), spec).first->second;
    for (const std::string& name : plan.split[stage]) {
      const std::optional<memory::LayerPosition> layer = counter.next(block);
      bytes += blocks[block].input;
      bytes += layer ? memory::kept_bytes(blocks[block], ac, *layer) : blocks[block].graph;
      work += flops[name];
      ++block;
    }
    figures.bytes.push_back(bytes);
    figures.scale.push_back(work);
  }
  const double mean = std::accumulate(figures.scale.begin(), figures.scale.end(), 0.0) /
                      static_cast<double>(std::max<std::size_t>(figures.scale.size(), 1));
  for (double& scale : figures.scale) scale /= mean > 0 ? mean : 1;
  return figures;
}

namespace {

constexpr std::size_t kPipedWidth = 160;

// The schedule to draw, and what only a configuration gives.
struct Subject {
  pipeline::Schedule schedule;
  std::vector<std::int64_t> stage_bytes;
  std::vector<double> stage_scale;
  double recomputed = 0;  // Share of the forward pass that the backward pass recomputes.
};

absl::Status no_number(const std::string& costs, const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("--costs ", costs, ": ", why, "; it takes the times F,I,W or F,I,W,transfer, such as 1,1,1,0.1"));
}

absl::StatusOr<pipeline::Costs> parse_costs(const ScheduleRequest& request, const Subject& subject) {
  pipeline::Costs costs{.pairs_overlap = request.pairs_overlap, .stage_scale = {}};
  if (request.by_flops) {
    costs.stage_scale = subject.stage_scale;
    costs.input_gradient += subject.recomputed;
  }
  if (request.costs.empty()) return costs;
  const std::vector<std::string> parts = absl::StrSplit(request.costs, ',');
  if (parts.size() < 3 || parts.size() > 4) return no_number(request.costs, counted(parts.size(), "number"));
  double* const members[] = {&costs.forward, &costs.input_gradient, &costs.weight_gradient, &costs.transfer};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!absl::SimpleAtod(parts[i], members[i]) || !std::isfinite(*members[i]))
      return no_number(request.costs, absl::StrCat("'", parts[i], "' is not a number"));
    if (*members[i] < 0 || *members[i] > 1e9)
      return no_number(request.costs, absl::StrCat(parts[i], " is not between 0 and 1e9"));
  }
  if (costs.forward + costs.input_gradient + costs.weight_gradient == 0)
    return no_number(request.costs, "no work takes any time");
  return costs;
}

absl::StatusOr<Subject> subject_of_config(const ScheduleRequest& request) {
  TITAN_ASSIGN_OR_RETURN(const Prepared prepared, prepare(request.source));
  const config::JobConfig& config = prepared.loaded.config;
  const auto spec = config::resolve_model(config.model);
  TITAN_ASSIGN_OR_RETURN(
      pipeline::PipelinePlan plan,
      config::pipeline_plan(config, spec.ok() ? models::block_names(*spec) : pipeline::ModelBlocks()));
  if (request.by_flops && !spec.ok())
    return absl::InvalidArgumentError(
        absl::StrCat("--by-flops: model \"", config.model.name,
                     "\" is a library's, and only a rank knows its layers; --costs takes measured times"));
  Subject subject;
  if (spec.ok()) {
    const StageFigures figures = stage_figures(config, *spec, plan);
    subject.stage_bytes = figures.bytes;
    subject.stage_scale = figures.scale;
    subject.recomputed = figures.recomputed;
    for (std::size_t stage = 0; stage < plan.split.size(); ++stage) {
      const auto& blocks = plan.split[stage];
      note(absl::StrCat("stage ", stage, ": ", blocks.front(), blocks.size() > 1 ? " to " + blocks.back() : "", " (",
                        counted(blocks.size(), "block"), "), ", pipeline::bytes_text(figures.bytes[stage]),
                        " a microbatch"));
    }
    note(figures.explanation);
  } else {
    note("the model is a library's: only a rank knows its layers, so no bytes are given");
  }
  subject.schedule = std::move(plan.schedule);
  return subject;
}

absl::StatusOr<std::string> read_csv(const std::string& path) {
  auto text = config::read_schedule_file(path);
  if (text.ok()) return text;
  std::error_code error;
  return absl::InvalidArgumentError(absl::StrCat("--csv: ", std::string(text.status().message()),
                                                 std::filesystem::exists(path, error) ? "" : nearby_path(path)));
}

// Refuses flags that cannot be combined, and values out of range.
absl::Status check_flags(const ScheduleRequest& request) {
  const bool config = !request.source.file.empty() || !request.source.overrides.empty();
  const std::string owner = config ? "a configuration" : request.csv.empty() ? "" : "--csv";
  const auto refuse = [&](bool given, const char* flag, const char* key) {
    if (!given || owner.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(flag, " and ", owner, " cannot be given together",
                                                   config ? absl::StrCat("; set --", key, " instead") : ""));
  };
  TITAN_RETURN_IF_ERROR(refuse(config && !request.csv.empty(), "--csv", "parallelism.pipeline_parallel_schedule_csv"));
  TITAN_RETURN_IF_ERROR(refuse(request.name.has_value(), "--schedule", "parallelism.pipeline_parallel_schedule"));
  TITAN_RETURN_IF_ERROR(refuse(request.ranks.has_value(), "--ranks", "parallelism.pipeline_parallel_degree"));
  TITAN_RETURN_IF_ERROR(refuse(request.microbatches.has_value(), "--microbatches", "training.local_batch_size"));
  TITAN_RETURN_IF_ERROR(refuse(request.stages_per_rank.has_value(), "--stages-per-rank",
                               "parallelism.pipeline_parallel_layers_per_stage"));
  if (request.by_flops && !config)
    return absl::InvalidArgumentError("--by-flops needs a configuration: without a model all stages are alike");
  if (request.by_flops && !request.costs.empty())
    return absl::InvalidArgumentError("--by-flops and --costs cannot be given together");
  for (const auto& [flag, value, least] : {std::tuple{"--ranks", request.ranks, 1},
                                           {"--microbatches", request.microbatches, 1},
                                           {"--stages-per-rank", request.stages_per_rank, 1},
                                           {"--width", request.width, 0}}) {
    if (value && *value < least)
      return absl::InvalidArgumentError(absl::StrCat(flag, " is ", *value, ": it must be at least ", least));
  }
  return absl::OkStatus();
}

absl::StatusOr<Subject> make_subject(const ScheduleRequest& request) {
  if (!request.source.file.empty() || !request.source.overrides.empty()) return subject_of_config(request);
  Subject subject;
  if (!request.csv.empty()) {
    TITAN_ASSIGN_OR_RETURN(const std::string text, read_csv(request.csv));
    auto schedule = pipeline::parse_csv(text);
    if (!schedule.ok()) return annotate(schedule.status(), request.csv);
    subject.schedule = *std::move(schedule);
    return subject;
  }
  TITAN_ASSIGN_OR_RETURN(const pipeline::ScheduleKind kind, pipeline::find_schedule(request.name.value_or("1F1B")));
  TITAN_ASSIGN_OR_RETURN(subject.schedule,
                         pipeline::generate(kind.name, request.ranks.value_or(4),
                                            request.stages_per_rank.value_or(kind.default_stages_per_rank),
                                            request.microbatches.value_or(8)));
  return subject;
}

nlohmann::ordered_json memory_json(const std::vector<pipeline::HeldActivations>& held, bool bytes) {
  nlohmann::ordered_json points = nlohmann::ordered_json::array();
  for (const pipeline::HeldActivations& now : held) {
    points.push_back({{"time", now.time}, {"activations", now.activations}});
    if (bytes) points.back()["bytes"] = now.bytes;
  }
  return points;
}

nlohmann::ordered_json to_json(const Subject& subject, const pipeline::Simulation& simulation) {
  const pipeline::Schedule& schedule = subject.schedule;
  nlohmann::ordered_json out{{"schedule", schedule.name},
                             {"stages", schedule.stages},
                             {"microbatches", schedule.microbatches},
                             {"makespan", simulation.makespan},
                             {"bubble", simulation.bubble}};
  const bool bytes = !subject.stage_bytes.empty();
  if (bytes) out["stage_bytes"] = subject.stage_bytes;
  out["ranks"] = nlohmann::ordered_json::array();
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const pipeline::RankTimeline& timeline = simulation.ranks[rank];
    const std::vector<pipeline::HeldActivations> held = pipeline::held_over_time(timeline, subject.stage_bytes);
    nlohmann::ordered_json actions = nlohmann::ordered_json::array();
    for (const pipeline::TimedAction& timed : timeline.actions)
      actions.push_back({{"action", to_string(timed.action)}, {"start", timed.start}, {"end", timed.end}});
    nlohmann::ordered_json entry{{"stages", schedule.stages_of(rank)},
                                 {"bubble", timeline.bubble},
                                 {"peak_activations", timeline.peak_activations}};
    if (bytes) entry["peak_bytes"] = pipeline::peak_held(held).bytes;
    entry["actions"] = std::move(actions);
    entry["memory"] = memory_json(held, bytes);
    out["ranks"].push_back(std::move(entry));
  }
  return out;
}

absl::Status write_file(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (out) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--svg: cannot write ", path, ": ", std::strerror(errno)));
}

absl::Status show(const Globals& globals, const ScheduleRequest& request) {
  TITAN_RETURN_IF_ERROR(check_flags(request));
  TITAN_ASSIGN_OR_RETURN(const Subject subject, make_subject(request));
  TITAN_ASSIGN_OR_RETURN(const pipeline::Costs costs, parse_costs(request, subject));
  TITAN_ASSIGN_OR_RETURN(const pipeline::Simulation simulation, pipeline::simulate(subject.schedule, costs));
  const pipeline::DrawOptions options{
      .width = request.width ? static_cast<std::size_t>(*request.width) : terminal_width().value_or(kPipedWidth),
      .stage_bytes = subject.stage_bytes};
  if (!request.svg.empty()) {
    TITAN_RETURN_IF_ERROR(write_file(request.svg, pipeline::draw_svg(subject.schedule, simulation, options)));
    note(absl::StrCat("wrote ", request.svg));
  }
  if (request.write_csv) {
    print(pipeline::to_csv(subject.schedule));
  } else if (globals.format == OutputFormat::kTable) {
    print(pipeline::draw_text(subject.schedule, simulation, options));
  } else {
    print(to_json(subject, simulation), globals.format);
  }
  return absl::OkStatus();
}

}  // namespace

int show_schedule(const Globals& globals, const ScheduleRequest& request) {
  const absl::Status status = show(globals, request);
  return status.ok() ? static_cast<int>(kExitOk) : report(status);
}

}  // namespace titan::cli
