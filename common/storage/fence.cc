#include "common/storage/fence.h"

#include "absl/strings/match.h"
#include "common/status/status.h"
#include "nlohmann/json.hpp"

namespace titan::storage {
namespace {

constexpr char kPrefix[] = "fenced: ";
// Publishing takes milliseconds, so whoever holds the lock this long was stopped in the middle of it.
constexpr absl::Duration kPatience = absl::Seconds(30);

absl::Status fenced(const std::string& dump_folder, const std::string& job_uid, int attempt,
                    const Fence::Holder& holder) {
  return absl::FailedPreconditionError(absl::StrCat(kPrefix, dump_folder, " belongs to attempt ", holder.attempt,
                                                    " of job ", holder.job_uid.empty() ? "(none)" : holder.job_uid,
                                                    ", not to attempt ", attempt, " of job ", job_uid));
}

absl::StatusOr<Fence::Holder> parse(const std::string& path, const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto bad = [&](const char* what) {
    return absl::DataLossError(
        absl::StrCat(path, ": ", what, "; if no job writes to this folder, delete the file and start the job again"));
  };
  if (!json.is_object()) return bad("not a JSON object");
  const auto uid = json.find("job_uid"), attempt = json.find("attempt");
  if (uid == json.end() || !uid->is_string()) return bad("no job_uid");
  if (attempt == json.end() || !attempt->is_number_integer()) return bad("no attempt number");
  Fence::Holder holder{.job_uid = uid->get<std::string>(), .attempt = attempt->get<int>()};
  if (const auto former = json.find("former"); former != json.end()) {
    if (!former->is_object()) return bad("\"former\" is not an object");
    for (const auto& [job, last] : former->items()) {
      if (!last.is_number_integer()) return bad("\"former\" holds something else than attempt numbers");
      holder.former[job] = last.get<int>();
    }
  }
  return holder;
}

std::string dump(const Fence::Holder& holder) {
  nlohmann::json json = {{"job_uid", holder.job_uid}, {"attempt", holder.attempt}};
  if (!holder.former.empty()) json["former"] = holder.former;
  return json.dump() + "\n";
}

}  // namespace

absl::StatusOr<Fence::Holder> Fence::holder() const {
  const std::string path = join_path(dump_folder_, "fence.json");
  absl::StatusOr<std::string> text = read_file(files_, path, 1 << 24);
  if (absl::IsNotFound(text.status())) return Holder{};
  if (!text.ok()) return text.status();
  return parse(path, *text);
}

absl::Status Fence::raise(const std::string& job_uid, int attempt) const {
  TITAN_RETURN_IF_ERROR(files_.make_folders(dump_folder_));
  TITAN_ASSIGN_OR_RETURN(auto lock,
                         files_.lock(join_path(dump_folder_, ".fence.lock"), LockMode::kExclusive, kPatience));
  TITAN_ASSIGN_OR_RETURN(Holder holder, this->holder());
  if (holder.job_uid == job_uid) {
    if (holder.attempt > attempt) return fenced(dump_folder_, job_uid, attempt, holder);
    if (holder.attempt == attempt) return absl::OkStatus();
  } else {
    // A late attempt of a job that lost the folder must not take it back.
    if (const auto last = holder.former.find(job_uid); last != holder.former.end() && attempt <= last->second) {
      return fenced(dump_folder_, job_uid, attempt, holder);
    }
    if (!holder.job_uid.empty()) holder.former[holder.job_uid] = holder.attempt;
    holder.former.erase(job_uid);
  }
  holder.job_uid = job_uid;
  holder.attempt = attempt;
  return atomic_write(files_, join_path(dump_folder_, "fence.json"), dump(holder));
}

absl::Status Fence::publish(const std::string& job_uid, int attempt, absl::FunctionRef<absl::Status()> effect) const {
  TITAN_ASSIGN_OR_RETURN(auto lock,
                         files_.lock(join_path(dump_folder_, ".fence.lock"), LockMode::kExclusive, kPatience));
  TITAN_ASSIGN_OR_RETURN(const Holder holder, this->holder());
  if (holder.job_uid != job_uid || holder.attempt != attempt) return fenced(dump_folder_, job_uid, attempt, holder);
  return effect();
}

bool is_fenced(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) && absl::StartsWith(status.message(), kPrefix);
}

}  // namespace titan::storage
