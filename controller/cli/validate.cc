#include "common/plan/config/validate.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/text/quantities.h"
#include "common/plan/config/json.h"
#include "common/plan/memory/estimate.h"
#include "controller/cli/job_commands.h"
#include "controller/cli/terminal.h"
#include "nlohmann/json.hpp"

namespace titan::cli {
namespace {

// The peak of one device, which submit compares with what the nodes have. "" when it cannot be estimated.
std::string peak_text(const config::JobConfig& config) {
  if (config.comm.mode == "fake_backend") return "";  // Holds nothing.
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

}  // namespace

int validate(const Globals& globals, const Source& source) {
  const auto prepared = prepare(source);
  if (!prepared.ok()) return report(prepared.status());
  if (globals.format != Format::kTable) {
    print(nlohmann::ordered_json::parse(config::to_json(prepared->loaded.config).dump()), globals.format);
  }
  const config::JobConfig& config = prepared->loaded.config;
  note(absl::StrCat(source.file.empty() ? "the configuration" : source.file, " is valid: ", config.model.name, " ",
                    config.model.flavor, ", ", counted(config.resources.ranks, "rank"),
                    config::processes(config) < config.resources.ranks ? " in one process, " : ", ",
                    counted(config.training.steps, "step"), " of ", config::global_batch(config), " x ",
                    config.training.seq_len, " tokens"));
  if (const std::string peak = peak_text(config); !peak.empty()) note(peak);
  return kExitOk;
}

}  // namespace titan::cli
