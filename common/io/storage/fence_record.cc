#include "common/io/storage/fence_record.h"

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace titan::storage {
namespace {

constexpr char kFencedPrefix[] = "fenced: ";
constexpr char kInUsePrefix[] = "in use: ";

}  // namespace

std::string describe(const Fence::Holder& holder) {
  if (holder.job_uid.empty()) return "job (none)";
  std::string text = absl::StrCat("job ", holder.job.empty() ? holder.job_uid : holder.job);
  if (!holder.host.empty()) absl::StrAppend(&text, " (host ", holder.host, ", process ", holder.pid, ")");
  return text;
}

absl::Status fenced_status(const std::string& folder, const std::string& job_uid, int attempt,
                           const Fence::Holder& holder) {
  if (holder.job_uid != job_uid && !holder.job_uid.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(kFencedPrefix, folder, " was taken over by ", describe(holder)));
  }
  return absl::FailedPreconditionError(absl::StrCat(kFencedPrefix, folder, " belongs to attempt ", holder.attempt,
                                                    " of ", describe(holder), ", not to attempt ", attempt, " of job ",
                                                    job_uid));
}

absl::Status in_use_status(const std::string& folder, const Fence::Holder& holder, const std::string& what_to_choose) {
  return absl::FailedPreconditionError(absl::StrCat(kInUsePrefix, folder, " belongs to ", describe(holder),
                                                    ", attempt ", holder.attempt, ", which is alive; choose ",
                                                    what_to_choose, ", or end that job first"));
}

void hand_over(Fence::Holder& holder, const Fence::Claim& claim, int attempt) {
  if (holder.job_uid != claim.job_uid && !holder.job_uid.empty()) holder.former[holder.job_uid] = holder.attempt;
  holder.former.erase(claim.job_uid);
  holder.job_uid = claim.job_uid;
  holder.attempt = attempt;
  holder.job = claim.job;
  holder.host = claim.host;
  holder.pid = claim.pid;
  holder.process = claim.process;
  holder.released = false;
}

bool is_fenced(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) && absl::StartsWith(status.message(), kFencedPrefix);
}

bool is_in_use(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) && absl::StartsWith(status.message(), kInUsePrefix);
}

// Older fences lack members beyond the first two.
absl::StatusOr<Fence::Holder> holder_from_text(const std::string& path, const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto bad = [&](const char* what) {
    return absl::DataLossError(
        absl::StrCat(path, ": ", what, "; if no job writes to this folder, delete the file and start the job again"));
  };
  if (!json.is_object()) return bad("not a JSON object");
  const auto uid = json.find("job_uid"), attempt = json.find("attempt");
  if (uid == json.end() || !uid->is_string()) return bad("no job_uid");
  if (attempt == json.end() || !attempt->is_number_integer()) return bad("no attempt number");
  try {
    Fence::Holder holder{.job_uid = uid->get<std::string>(), .attempt = attempt->get<int>()};
    holder.job = json.value("job", "");
    holder.host = json.value("host", "");
    holder.pid = json.value("pid", int64_t{0});
    holder.process = json.value("process", "");
    holder.released = json.value("released", false);
    holder.folder = json.value("folder", "");
    using Entries = std::map<std::string, nlohmann::json>;  // Rejects a list, which json would iterate as well.
    for (const auto& [folder, last] : json.value("committed", Entries{})) {
      holder.committed[folder] = {last.at("step").get<int64_t>(), last.at("job_uid").get<std::string>()};
    }
    holder.former = json.value("former", holder.former);
    return holder;
  } catch (const nlohmann::json::exception& error) {
    return bad(error.what());
  }
}

nlohmann::json to_json(const Fence::Holder& holder) {
  nlohmann::json json = {{"job_uid", holder.job_uid}, {"attempt", holder.attempt},  {"folder", holder.folder},
                         {"job", holder.job},         {"host", holder.host},        {"pid", holder.pid},
                         {"process", holder.process}, {"released", holder.released}};
  for (const auto& [folder, last] : holder.committed) {
    json["committed"][folder] = {{"step", last.step}, {"job_uid", last.job_uid}};
  }
  if (!holder.former.empty()) json["former"] = holder.former;
  return json;
}

}  // namespace titan::storage
