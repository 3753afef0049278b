#include "controller/cli/job_json.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "common/base/text/nearest.h"
#include "controller/cli/client.h"
#include "controller/cli/proto_json.h"

namespace titan::cli {

nlohmann::ordered_json job_json(const v1::Job& job) {
  nlohmann::ordered_json out = {{"id", short_name(job.name())}};
  out.update(to_json(job));
  if (!out["spec"].is_object()) return out;
  nlohmann::ordered_json& spec = out["spec"];
  spec.erase("config_json");
  if (job.spec().config_json().empty()) return out;  // The controller leaves it out where nobody asked for the job.
  spec["config"] = nlohmann::ordered_json::parse(job.spec().config_json(), nullptr, /*allow_exceptions=*/false);
  if (spec["config"].is_discarded()) spec["config"] = job.spec().config_json();
  return out;
}

absl::StatusOr<v1::Job::State> parse_state(const std::string& text) {
  const std::string upper = absl::AsciiStrToUpper(text);
  std::vector<std::string> names;
  for (int i = v1::Job::QUEUED; i < v1::Job::State_ARRAYSIZE; ++i) {
    names.push_back(v1::Job::State_Name(static_cast<v1::Job::State>(i)));
    if (names.back() == upper) return static_cast<v1::Job::State>(i);
  }
  return absl::InvalidArgumentError("'" + text + "' is not a job state" + did_you_mean(upper, names));
}

}  // namespace titan::cli
