#include "controller/reconcile/migrate.h"

#include "absl/strings/match.h"
#include "controller/core/keys.h"
#include "controller/job/record.h"
#include "titan/v1/job.pb.h"

namespace titan::reconcile {
namespace {

// Until 0.1 the configuration was asked each time. One that cannot be read: its ranks know.
bool saves(const store::Store& store, const std::string& uid) {
  const absl::StatusOr<std::optional<store::Record>> record = store.get(core::spec_key(uid));
  v1::JobSpec spec;
  if (!record.ok() || !*record || !spec.ParseFromString((*record)->value)) return true;
  const auto config = nlohmann::json::parse(spec.config_json(), nullptr, /*allow_exceptions=*/false);
  const nlohmann::json::json_pointer key("/checkpoint/enable");
  return !config.is_object() || !config.contains(key) || !config[key].is_boolean() || config[key].get<bool>();
}

}  // namespace

void migrate(const store::Store& store, std::vector<store::Record>& records) {
  for (store::Record& record : records) {
    if (!absl::StartsWith(record.key, core::job_key("")) || absl::StrContains(record.value, "\"saves\":")) continue;
    absl::StatusOr<job::JobRecord> job = job::decode<job::JobRecord>(record.value);
    if (!job.ok() || job::is_final(job->state)) continue;  // The core says what is wrong with it.
    job->spec.saves = saves(store, job->uid);
    record.value = job::encode(*job);
  }
}

}  // namespace titan::reconcile
