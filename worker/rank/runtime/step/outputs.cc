#include "worker/rank/runtime/step/outputs.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/plan/config/json.h"
#include "common/plan/config/model_kind.h"
#include "common/plan/config/trained_model.h"
#include "common/plan/models/flux.h"
#include "common/plan/models/sizes.h"
#include "nlohmann/json.hpp"
#include "worker/rank/nn/matmul.h"
#include "worker/rank/runtime/failure/failure.h"
#include "worker/rank/runtime/memory/device_memory.h"
#include "worker/rank/runtime/metrics_out/device_peak.h"
#include "worker/rank/runtime/step/job_model.h"
#include "worker/rank/runtime/step/parallel_setup.h"

namespace titan::runtime {

using rank_protocol::kExitBadConfig;
using rank_protocol::kExitStorage;
using rank_protocol::Phase;
namespace event = rank_protocol::event;

namespace {

// Returns whether the console shows colour: a log file or a pipe would keep the escape codes, and a dumb terminal would
// print them.
bool console_takes_colour() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* kind = std::getenv("TERM");
  const bool is_dumb = kind == nullptr || *kind == '\0' || std::string_view(kind) == "dumb";
  return isatty(STDOUT_FILENO) != 0 && !is_dumb && (no_color == nullptr || *no_color == '\0');
}

// Returns the job's value, otherwise the known value of a GPU. For a CPU it measures the speed now.
std::optional<double> peak_of_device(const RankContext& context, const std::string& device_name) {
  if (context.config.metrics.device_peak_tflops) return *context.config.metrics.device_peak_tflops * 1e12;
  const config::TrainingSection& training = context.config.training;
  const std::string& dtype = training.dtype == "float64" ? training.dtype : training.mixed_precision_param;
  if (!context.device->torch_device().is_cpu()) return device_peak(device_name, dtype);
  if (!context.leads_process) return std::nullopt;  // Prints nothing, and measuring would disturb other ranks.
  const parallel::Precision precision = value(
      parallel::make_precision(training.dtype, dtype, training.mixed_precision_reduce), kExitBadConfig, "PRECISION");
  const double flops = nn::product_speed(precision.param);
  if (context.rank == 0) {
    log_line(
        absl::StrFormat("mfu is relative to %.3g TFLOP/s, the speed of matmuls in %s just measured on this machine",
                        flops / 1e12, dtype));
  }
  return flops;
}

// Returns the training FLOPs for a token of a picture or its caption.
double flux_flops_per_token(const config::JobConfig& config, const models::FluxSpec& spec) {
  const int64_t image = config::image_tokens(config), text = config.encoder.max_t5_encoding_len;
  return static_cast<double>(models::flops_per_sample(spec, text, image)) / static_cast<double>(text + image);
}

MetricsSetup metrics_setup(const RankContext& context, const models::ModelSpec& spec) {
  MetricsSetup setup;
  setup.config = context.config.metrics;
  if (!console_takes_colour()) setup.config.disable_color_printing = true;
  setup.dump_folder = context.config.job.dump_folder;
  setup.job_uid = context.job_uid;
  setup.attempt = context.attempt;
  setup.rank = context.rank;
  setup.metrics_rank = 0;
  const config::ParallelismSection& degrees = context.config.parallelism;
  setup.non_data_parallel_size =
      degrees.context_parallel_degree * degrees.tensor_parallel_degree * degrees.pipeline_parallel_degree;
  const int64_t seq_len = context.config.training.seq_len;
  const auto adapters = config::adapters_of(context.config);
  setup.flops_per_token = spec.flux  ? flux_flops_per_token(context.config, *spec.flux)
                          : adapters ? static_cast<double>(models::adapter_flops_per_token(spec, *adapters, seq_len))
                                     : static_cast<double>(models::flops_per_token(spec, seq_len));
  setup.clock = context.clock;
  setup.time_in_phase = [&context](rank_protocol::Phase phase) { return context.reporter->time_in(phase); };
  setup.memory = make_memory_monitor(*context.device);
  setup.device_peak = peak_of_device(context, setup.memory ? setup.memory->device_name() : "");
  if (!context.leads_process) setup.console = [](const std::string&) {};
  return setup;
}

// Events report it to the node. This reports it in the log.
void print_trouble(const std::string& kind, const nlohmann::json& members) {
  std::string message;
  if (kind == event::kRejected) message = absl::StrCat("checkpoint ", members.value("path", ""), " is not used");
  if (kind == event::kCheckpointFailed) message = absl::StrCat("step ", members.value("step", 0), " was not saved");
  const std::string why = members.value(kind == event::kWarning ? "message" : "reason", "");
  if (kind == event::kWarning) std::fprintf(stderr, "warning: %s\n", why.c_str());
  if (!message.empty()) std::fprintf(stderr, "warning: %s: %s\n", message.c_str(), why.c_str());
}

// Traces can be requested from the rank that has the process's profiler.
std::optional<TraceRequestReader> trace_requests_of(const RankContext& context) {
  if (!context.leads_process) return std::nullopt;
  return TraceRequestReader(context.reporter->trace_words(), context.run_folder, context.rank);
}

}  // namespace

std::unique_ptr<MetricsLogger> open_metrics(const RankContext& context, const models::ModelSpec& spec) {
  return value(MetricsLogger::create(metrics_setup(context, spec)), kExitStorage, "METRICS_OUTPUT");
}

std::unique_ptr<checkpoint::Checkpointer> open_checkpoints(RankContext& context, const Built& built) {
  const config::JobConfig& config = context.config;
  if (!config.checkpoint.enable && !config.checkpoint.create_seed_checkpoint) return nullptr;
  checkpoint::Setup setup = start_setup(context);
  setup.model = built.spec;
  setup.job_config = config::to_json(config);
  setup.store = context.store;
  setup.peer_start = absl::Seconds(config.comm.init_timeout_seconds);
  // A run that only makes a seed checkpoint fails with its save.
  setup.failed_saves_allowed = config.checkpoint.create_seed_checkpoint ? 1 : config.checkpoint.max_failed_saves;
  setup.still_trying = [&context] { context.reporter->enter(Phase::kCheckpoint); };
  setup.time_left_after_stop = [&context]() -> std::optional<absl::Duration> {
    const bool signalled = context.stop_signal != nullptr && context.stop_signal->load();
    if (!signalled && !context.reporter->stop_asked()) return std::nullopt;
    return time_after_stop(context.config);
  };
  setup.events = [&context](const char* kind, nlohmann::json members) {
    print_trouble(kind, members);
    context.reporter->event(kind, std::move(members));
  };
  setup.hf = built.hf_mapper.get();
  setup.spans = context.spans;
  return value(checkpoint::Checkpointer::create(std::move(setup)), kExitBadConfig, "CHECKPOINT");
}

Tracer make_tracer(const RankContext& context) {
  const config::ProfilingSection& config = context.config.profiling;
  const TraceOwner owner{.rank = context.rank,
                         .world = context.world,
                         .backend = context.device->torch_device().is_cuda() ? "nccl" : "gloo"};
  return {config,
          absl::StrCat(context.config.job.dump_folder, "/", config.save_traces_folder),
          owner,
          context.leads_process,
          trace_requests_of(context),
          context.spans};
}

MemorySnapshots make_memory_snapshots(const RankContext& context) {
  const config::ProfilingSection& config = context.config.profiling;
  MemorySnapshots::Setup setup{
      .folder = storage::join_path(context.config.job.dump_folder, config.save_memory_snapshot_folder),
      .rank = context.rank,
      .writes = context.leads_process,
      .say = [](const std::string& text) { log_line(text); },
      .warn = [&context](const std::string& text) { context.reporter->warning(text); }};
  return {config, std::move(setup), *context.device};
}

absl::Duration time_after_stop(const config::JobConfig& config) {
  return absl::Seconds(config.restart.stop_grace_seconds) - absl::Seconds(2);
}

}  // namespace titan::runtime
