#include "worker/rank/model/objective.h"

#include "absl/strings/str_cat.h"
#include "common/plan/config/job_config.h"
#include "worker/rank/model/language/objective.h"
#include "worker/rank/model/registry.h"

namespace titan::model {

int64_t Objective::longest_row(const config::JobConfig& config) const { return config.training.seq_len; }

std::string Objective::why_nothing_validated(const config::JobConfig& /*config*/, int64_t batches) const {
  return batches == 0 ? "the validation dataset does not fill one batch" : "no row of the validation dataset counts";
}

std::unique_ptr<Objective> make_objective(const models::ModelSpec& spec) {
  const Family* family = find_family(spec.name);
  if (family != nullptr && family->objective != nullptr) return family->objective(spec);
  return std::make_unique<LanguageObjective>(spec);
}

}  // namespace titan::model
