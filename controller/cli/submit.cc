// Carries out the verbs `validate` and `submit`.

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/host/file_mask.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/plan/config/json.h"
#include "common/plan/config/model_kind.h"
#include "common/plan/config/validate.h"
#include "common/plan/memory/estimate.h"
#include "controller/cli/client.h"
#include "controller/cli/interrupt.h"
#include "controller/cli/job_commands.h"
#include "controller/cli/job_progress.h"
#include "controller/cli/job_query.h"
#include "controller/cli/message_json.h"
#include "controller/cli/terminal.h"
#include "controller/cli/watch.h"
#include "nlohmann/json.hpp"

namespace titan::cli {
namespace {

// Describes the peak memory of one device, which the controller compares with what the nodes have; "" when it cannot be
// estimated.
std::string peak_text(const config::JobConfig& config) {
  if (config.comm.mode == "fake_backend") return "";  // Allocates nothing.
  const std::optional<memory::Estimate> estimate = memory::peak_memory(config);
  if (!estimate) return "";
  const memory::Parts& peak = estimate->peak;
  const int64_t ranks = config.resources.ranks / config::processes(config);
  std::string text = absl::StrCat(
      "the fullest rank takes about ", gibibytes(peak.total()), " of a device at its peak (weights ",
      gibibytes(peak.weights), ", gradients ", gibibytes(peak.gradients), ", optimizer ", gibibytes(peak.optimizer),
      ", activations ", gibibytes(peak.activations), ", buffers ", gibibytes(peak.buffers), ")");
  if (ranks > 1) absl::StrAppend(&text, ", and ", ranks, " of them share one process");
  if (estimate->host > 0) absl::StrAppend(&text, "; ", gibibytes(estimate->host), " are offloaded to the host");
  return text;
}

// Describes the batch of a step.
std::string batch_text(const config::JobConfig& config) {
  const int64_t rows = config::global_batch(config);
  if (config::kind_of(config.model) != config::ModelKind::kTextToImage)
    return absl::StrCat(rows, " x ", config.training.seq_len, " tokens");
  const int64_t size = config.training.img_size, image = config::image_tokens(config);
  const int64_t text = config.encoder.max_t5_encoding_len;
  return absl::StrCat(counted(rows, "image"), " of ", size, " x ", size, " pixels (", rows, " x ", image + text,
                      " tokens: ", image, " of the image, ", text, " of its caption)");
}

}  // namespace

int validate(const Globals& globals, const Source& source) {
  const auto prepared = prepare(source);
  if (!prepared.ok()) return report(prepared.status());
  if (globals.format != OutputFormat::kTable) {
    print(nlohmann::ordered_json::parse(config::to_json(prepared->loaded.config).dump()), globals.format);
  }
  const config::JobConfig& config = prepared->loaded.config;
  note(absl::StrCat(source.file.empty() ? "the configuration" : source.file, " is valid: ", config.model.name, " ",
                    config.model.flavor, ", ", counted(config.resources.ranks, "rank"),
                    config::processes(config) < config.resources.ranks ? " in one process, " : ", ",
                    counted(config.training.steps, "step"), " of ", batch_text(config)));
  if (const std::string peak = peak_text(config); !peak.empty()) note(peak);
  return kExitOk;
}

namespace {

constexpr absl::Duration kSchedulerTimeout = absl::Seconds(2);

int wait_for_end(const Globals& globals, ControllerClient& client, const std::string& name, Stopper& stopper) {
  v1::Job::State last = v1::Job::STATE_UNSPECIFIED;
  ProgressLine line;
  const auto ended = watch_job(client, name, absl::Now() + globals.whole_wait(), stopper, [&](const v1::Job& job) {
    if (job.state() != last && !is_final(job.state())) {
      line.clear();
      note(absl::StrCat("job ", short_name(job.name()), " ", state_name(job.state()),
                        job.pending_message().empty() ? "" : ": " + job.pending_message()));
    }
    last = job.state();
    line.show(job);
    return is_final(job.state());
  });
  line.clear();
  if (ended.ok()) {
    if (globals.format != OutputFormat::kTable) print(job_json(*ended), globals.format);
    return report_end(*ended);
  }
  if (absl::IsCancelled(ended.status())) {
    note(absl::StrCat("\njob ", short_name(name), " keeps running; `titanctl wait ", short_name(name),
                      "` waits again, `titanctl cancel ", short_name(name), "` stops it"));
    return kExitInterrupted;
  }
  return report(ended.status());
}

// Reports what happens right after a job was queued: it starts, or the scheduler says what it waits for.
void report_start(ControllerClient& client, const v1::Job& queued) {
  Stopper stopper;
  const auto seen = watch_job(client, queued.name(), absl::Now() + kSchedulerTimeout, stopper, [](const v1::Job& now) {
    return now.state() != v1::Job::QUEUED || !now.pending_message().empty();
  });
  const v1::Job& job = seen.ok() ? *seen : queued;
  const std::string name = short_name(job.name());
  note(absl::StrCat("job ", name, " ", state_name(job.state()),
                    job.pending_message().empty() ? "" : ": " + job.pending_message(), "; `titanctl logs -f ", name,
                    "` follows it"));
}

absl::StatusOr<v1::JobSpec> spec_of_source(const Source& source) {
  TITAN_ASSIGN_OR_RETURN(Prepared prepared, prepare(source));
  // Like Slurm, sends the umask: the submitting user decides who may read the job's files, not the daemon.
  std::string& mask = prepared.loaded.config.job.umask;
  if (mask.empty()) {
    TITAN_ASSIGN_OR_RETURN(const mode_t current, host::current_umask());
    mask = absl::StrFormat("%03o", current & 077);
  }
  return to_spec(prepared);
}

absl::StatusOr<v1::JobSpec> spec_of_job(ControllerClient& client, const std::string& name,
                                        const std::vector<std::string>& overrides,
                                        std::map<std::string, std::string>& labels) {
  TITAN_ASSIGN_OR_RETURN(const v1::Job job, client.get_job(name));
  labels.insert(job.labels().begin(), job.labels().end());  // Labels of the command line win.
  return spec_for_resubmit(job.spec(), overrides);
}

}  // namespace

int submit(const Globals& globals, const SubmitOptions& options) {
  set_quiet(options.quiet);
  Source source = options.source;
  if (!options.job_id.empty()) source.overrides.insert(source.overrides.end(), {"--scheduling.job_id", options.job_id});
  auto labels = parse_labels(options.labels);
  if (!labels.ok()) return report(labels.status());
  absl::StatusOr<v1::JobSpec> spec = options.earlier.empty() ? spec_of_source(source) : v1::JobSpec();
  if (!spec.ok()) return report(spec.status());
  if (options.wait) Interrupt::block_signals();  // Must run before the channel's threads start.
  ControllerClient client(globals.controller, globals.timeout, globals.access);
  if (!options.earlier.empty()) spec = spec_of_job(client, options.earlier, source.overrides, *labels);
  if (!spec.ok()) return report(spec.status());
  v1::CreateJobRequest request;
  *request.mutable_spec() = *spec;
  request.set_request_id(make_request_id());
  request.set_validate_only(options.dry_run);
  request.set_require_fit(options.require_fit);
  request.mutable_labels()->insert(labels->begin(), labels->end());
  const auto job = client.create_job(request);
  if (!job.ok()) return report(job.status());
  for (const v1::JobWarning& warning : job->warnings()) {
    // This is not a misfit: nodes may come later. A queued job says below what it waits for.
    if (warning.reason() == "NO_NODES") {
      if (options.dry_run) note(absl::StrCat("the job ", warning.message()));
      continue;
    }
    warn(absl::StrCat("this job cannot run on the present nodes: ", warning.reason(), ": ", warning.message()));
  }

  if (options.dry_run) {
    if (globals.format != OutputFormat::kTable) print(job_json(*job), globals.format);
    note("the controller would accept this job; nothing was queued");
    return kExitOk;
  }
  const std::string name = short_name(job->name());
  if (globals.format == OutputFormat::kTable) {
    print(name + "\n");
  } else if (!options.wait) {
    print(job_json(*job), globals.format);
  }
  if (!options.wait) {
    if (globals.format == OutputFormat::kTable && !options.quiet) report_start(client, *job);
    return kExitOk;
  }
  Stopper stopper;
  const Interrupt interrupt([&stopper](int) { stopper.cancel(); });
  return wait_for_end(globals, client, job->name(), stopper);
}

}  // namespace titan::cli
