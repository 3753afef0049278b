#include "common/storage/fence.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "common/status/status.h"
#include "common/storage/folder_id.h"
#include "common/storage/process_identity.h"
#include "common/testing/planted.h"
#include "nlohmann/json.hpp"

namespace titan::storage {
namespace {

constexpr char kFencedPrefix[] = "fenced: ";
constexpr char kInUsePrefix[] = "in use: ";
constexpr char kFile[] = "fence.json";
constexpr char kLock[] = ".fence.lock";
constexpr char kAlive[] = ".fence-alive";
constexpr char kProbe[] = ".fence-probe";
// Publishing takes milliseconds, so whoever holds the lock this long was stopped in the middle of it.
constexpr absl::Duration kPatience = absl::Seconds(30);
// A release that has to wait for longer is left out: the next job then waits for the silence.
constexpr absl::Duration kReleasePatience = absl::Seconds(2);
constexpr absl::Duration kLook = absl::Milliseconds(250);

std::string describe(const Fence::Holder& holder) {
  if (holder.job_uid.empty()) return "job (none)";
  std::string text = absl::StrCat("job ", holder.job.empty() ? holder.job_uid : holder.job);
  if (!holder.host.empty()) absl::StrAppend(&text, " (host ", holder.host, ", process ", holder.pid, ")");
  return text;
}

absl::Status fenced(const std::string& dump_folder, const std::string& job_uid, int attempt,
                    const Fence::Holder& holder) {
  if (holder.job_uid != job_uid && !holder.job_uid.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(kFencedPrefix, "the dump folder ", dump_folder, " was taken over by ", describe(holder)));
  }
  return absl::FailedPreconditionError(absl::StrCat(kFencedPrefix, dump_folder, " belongs to attempt ", holder.attempt,
                                                    " of ", describe(holder), ", not to attempt ", attempt, " of job ",
                                                    job_uid));
}

// Members beyond the first two are missing in older fences.
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
  try {
    Fence::Holder holder{.job_uid = uid->get<std::string>(), .attempt = attempt->get<int>()};
    holder.job = json.value("job", "");
    holder.host = json.value("host", "");
    holder.pid = json.value("pid", int64_t{0});
    holder.process = json.value("process", "");
    holder.released = json.value("released", false);
    holder.folder = json.value("folder", "");
    using Entries = std::map<std::string, nlohmann::json>;  // Refuses a list, which json would iterate as well.
    for (const auto& [folder, last] : json.value("committed", Entries{})) {
      holder.committed[folder] = {last.at("step").get<int64_t>(), last.at("job_uid").get<std::string>()};
    }
    holder.former = json.value("former", holder.former);
    return holder;
  } catch (const nlohmann::json::exception& error) {
    return bad(error.what());
  }
}

std::string dump(const Fence::Holder& holder) {
  nlohmann::json json = {{"job_uid", holder.job_uid}, {"attempt", holder.attempt},  {"folder", holder.folder},
                         {"job", holder.job},         {"host", holder.host},        {"pid", holder.pid},
                         {"process", holder.process}, {"released", holder.released}};
  for (const auto& [folder, last] : holder.committed) {
    json["committed"][folder] = {{"step", last.step}, {"job_uid", last.job_uid}};
  }
  if (!holder.former.empty()) json["former"] = holder.former;
  return json.dump() + "\n";
}

}  // namespace

absl::StatusOr<Fence::Holder> Fence::holder() const {
  absl::StatusOr<std::string> text = read_file(files_, path(kFile), 1 << 24);
  if (absl::IsNotFound(text.status())) return Holder{};
  if (!text.ok()) return text.status();
  return parse(path(kFile), *text);
}

absl::StatusOr<std::unique_ptr<FileLock>> Fence::lock(absl::Duration patience) const {
  return files_.lock(path(kLock), LockMode::kExclusive, patience);
}

absl::Status Fence::write(const Holder& holder) const { return atomic_write(files_, path(kFile), dump(holder)); }

// No sign of life for kFenceSilence. Holders of older versions show none.
absl::StatusOr<bool> Fence::silent(const Claim& claim, const Holder& holder) const {
  if (certainly_gone(holder.process)) return true;
  const absl::StatusOr<absl::Time> beat = files_.modified(path(kAlive));
  if (absl::IsNotFound(beat.status())) return true;
  if (!beat.ok()) return beat.status();
  if (claim.silent_beat == *beat) return true;
  TITAN_ASSIGN_OR_RETURN(const absl::Time now, files_.touch(path(kProbe)));
  files_.remove(path(kProbe)).IgnoreError();
  return now - *beat >= kFenceSilence;
}

// May `claim` take the folder from `holder`?
absl::Status Fence::admit(const Claim& claim, const Holder& holder) const {
  const bool by_hand = claim.attempt == 0;
  if (holder.job_uid == claim.job_uid && !by_hand) {
    return holder.attempt > claim.attempt ? fenced(dump_folder_, claim.job_uid, claim.attempt, holder)
                                          : absl::OkStatus();
  }
  // What is left of a job that lost the folder must not take it back: two jobs would train one model by turns.
  if (!by_hand && holder.former.contains(claim.job_uid)) {
    return fenced(dump_folder_, claim.job_uid, claim.attempt, holder);
  }
  if (holder.job_uid.empty() || holder.released) return absl::OkStatus();
  TITAN_ASSIGN_OR_RETURN(const bool free, silent(claim, holder));
  if (free) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(kInUsePrefix, "the dump folder ", dump_folder_, " belongs to ", describe(holder), ", attempt ",
                   holder.attempt, ", which lives; choose another job.dump_folder, or end that job first"));
}

absl::StatusOr<Fence::Taken> Fence::raise(const Claim& claim) const {
  if (claim.create_folder) TITAN_RETURN_IF_ERROR(files_.make_folders(dump_folder_));
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<FileLock> held, lock(kPatience));
  TITAN_ASSIGN_OR_RETURN(Holder holder, this->holder());
  TITAN_RETURN_IF_ERROR(admit(claim, holder));
  Taken taken{.attempt = claim.attempt};
  const bool same_job = holder.job_uid == claim.job_uid;
  if (taken.attempt == 0) {
    const auto former = holder.former.find(claim.job_uid);
    taken.attempt = 1 + std::max(same_job ? holder.attempt : 0, former == holder.former.end() ? 0 : former->second);
  }
  const bool next_attempt = same_job && claim.attempt != 0;
  if (!next_attempt && !holder.job_uid.empty() && !holder.released) taken.taken_from = describe(holder);
  if (!same_job && !holder.job_uid.empty()) holder.former[holder.job_uid] = holder.attempt;
  holder.former.erase(claim.job_uid);
  TITAN_ASSIGN_OR_RETURN(holder.folder, make_folder_id(files_, dump_folder_));
  holder.job_uid = claim.job_uid;
  holder.attempt = taken.attempt;
  holder.job = claim.job;
  holder.host = claim.host;
  holder.pid = claim.pid;
  holder.process = claim.process;
  holder.released = false;
  // Before the fence names this job: whoever comes next must find it alive.
  if (!claim.process.empty()) TITAN_RETURN_IF_ERROR(files_.touch(path(kAlive)).status());
  TITAN_RETURN_IF_ERROR(write(holder));
  taken.folder = holder.folder;
  taken.committed = std::move(holder.committed);
  return taken;
}

absl::StatusOr<Fence::Taken> Fence::take(Claim claim, const Watch& watch) const {
  std::optional<absl::Time> seen;
  for (absl::Duration waited;; waited += kLook) {
    absl::StatusOr<Taken> taken = raise(claim);
    if (!is_in_use(taken.status())) return taken;
    const absl::StatusOr<absl::Time> beat = files_.modified(path(kAlive));
    if (!beat.ok()) return beat.status();
    if (seen && *seen != *beat) return taken;  // Somebody lives.
    if (!seen && watch.say) {
      const absl::StatusOr<Holder> holder = this->holder();
      watch.say(absl::StrCat("the dump folder ", dump_folder_, " was not given back by ",
                             holder.ok() ? describe(*holder) : "its last job", ": it is free after ",
                             absl::FormatDuration(kFenceSilence), " without a sign of life"));
    }
    seen = *beat;
    if (waited >= kFenceSilence) claim.silent_beat = seen;
    watch.sleep ? watch.sleep(kLook) : absl::SleepFor(kLook);
  }
}

absl::Status Fence::beat(const std::string& job_uid, int attempt) const {
  TITAN_ASSIGN_OR_RETURN(const Holder holder, this->holder());
  if (holder.job_uid != job_uid || holder.attempt != attempt) return fenced(dump_folder_, job_uid, attempt, holder);
  return files_.touch(path(kAlive)).status();
}

absl::Status Fence::release(const std::string& job_uid, int attempt) const {
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<FileLock> held, lock(kReleasePatience));
  TITAN_ASSIGN_OR_RETURN(Holder holder, this->holder());
  if (holder.job_uid != job_uid || holder.attempt != attempt) return fenced(dump_folder_, job_uid, attempt, holder);
  holder.released = true;
  return write(holder);
}

absl::Status Fence::publish(const std::string& job_uid, int attempt, absl::FunctionRef<absl::Status()> effect) const {
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<FileLock> held, lock(kPatience));
  TITAN_ASSIGN_OR_RETURN(const Holder holder, this->holder());
  if (testing::planted(testing::Bug::kOldAttemptPublishes) && holder.job_uid == job_uid) return effect();
  if (holder.job_uid != job_uid || holder.attempt != attempt) return fenced(dump_folder_, job_uid, attempt, holder);
  return effect();
}

absl::Status Fence::publish_step(const std::string& job_uid, int attempt, const std::string& folder, int64_t step,
                                 absl::FunctionRef<absl::Status()> effect) const {
  return publish(job_uid, attempt, [&]() -> absl::Status {
    TITAN_RETURN_IF_ERROR(effect());
    if (absl::StatusOr<Holder> holder = this->holder(); holder.ok()) {
      holder->committed[folder] = {step, job_uid};
      write(*holder).IgnoreError();
    }
    return absl::OkStatus();
  });
}

bool is_fenced(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) && absl::StartsWith(status.message(), kFencedPrefix);
}

bool is_in_use(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) && absl::StartsWith(status.message(), kInUsePrefix);
}

}  // namespace titan::storage
