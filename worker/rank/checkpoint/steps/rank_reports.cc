#include "worker/rank/checkpoint/steps/rank_reports.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/clock/clock.h"
#include "common/base/status/status.h"

namespace titan::checkpoint {

std::vector<Branch> branches(const Branch& of, int fan_out) {
  const int ranks = of.end - of.begin - 1, parts = std::min(ranks, fan_out);
  std::vector<Branch> all;
  int begin = of.begin + 1;
  for (int i = 0; i < parts; ++i) {
    const int end = begin + ranks / parts + (i < ranks % parts ? 1 : 0);
    all.push_back({begin, end});
    begin = end;
  }
  return all;
}

Branch branch_of(int rank, int world, int fan_out) {
  Branch branch{0, world};
  while (branch.begin != rank) {
    for (const Branch& one : branches(branch, fan_out)) {
      if (rank >= one.begin && rank < one.end) {
        branch = one;
        break;
      }
    }
  }
  return branch;
}

int height(const Branch& branch, int fan_out) {
  const std::vector<Branch> below = branches(branch, fan_out);
  return below.empty() ? 0 : 1 + height(below.front(), fan_out);  // The first branch is one of the largest.
}

nlohmann::json to_json(const absl::Status& status) {
  return {{"code", static_cast<int>(status.code())}, {"message", std::string(status.message())}};
}

absl::Status status_from_json(const nlohmann::json& from) {
  return absl::Status(static_cast<absl::StatusCode>(from.value("code", static_cast<int>(absl::StatusCode::kInternal))),
                      from.value("message", "unreadable report"));
}

bool is_rank_lost(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsCancelled(status);
}

absl::Status as_local_error(const absl::Status& status) {
  return is_rank_lost(status) ? absl::AbortedError(status.message()) : status;
}

namespace {

absl::Status store_failed(const char* store, const std::exception& error) {
  const std::string what = error.what();
  return absl::UnavailableError(absl::StrCat(store, " failed: ", what.substr(0, what.find('\n'))));
}

// First letter of a rank's words for its branch: all reported, or an error.
constexpr char kReport = 'r', kFailure = 'f';

std::string report_key(const std::string& topic, int rank) {
  return absl::StrCat("checkpoint/", topic, "/rank-", rank);
}

// Turns the store's exceptions into a status. A connection closes mostly because rank 0 is gone, or (between threads)
// because another rank failed.
template <typename Call>
absl::Status ask_store(Call&& call) {
  try {
    call();
    return absl::OkStatus();
  } catch (const c10::DistNetworkError& error) {
    return store_failed("the job's store on rank 0", error);
  } catch (const std::exception& error) {
    return store_failed("the job's store", error);
  }
}

}  // namespace

absl::Status ReportExchange::rest(absl::Duration duration) const {
  constexpr absl::Duration kSlice = absl::Milliseconds(20);  // Short, to notice a stop.
  for (; duration > absl::ZeroDuration(); duration -= kSlice) {
    if (stop_->load()) return absl::CancelledError("stopped while waiting for other ranks");
    absl::SleepFor(std::min(duration, kSlice));
  }
  return absl::OkStatus();
}

absl::Status ReportExchange::named(const absl::Status& status) const {
  return status.ok() || world_ == 1 ? status : annotate(status, absl::StrCat("rank ", rank_));
}

absl::Status ReportExchange::check_heartbeats(HeartbeatMonitor& watch, const std::vector<std::string>& keys,
                                              const std::vector<int>& ranks) {
  std::vector<HeartbeatMonitor::Lost> lost;
  TITAN_RETURN_IF_ERROR(ask_store([&] {
    std::vector<int> missing;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (!store_->check({keys[i]})) missing.push_back(ranks[i]);
    }
    lost = watch.lost(missing);
  }));
  if (lost.empty()) return absl::OkStatus();
  std::vector<std::string> names;
  for (const HeartbeatMonitor::Lost& one : lost) {
    names.push_back(absl::StrCat("rank ", one.rank, " has shown no sign of life for ",
                                 absl::FormatDuration(absl::Trunc(one.silence, absl::Milliseconds(1)))));
  }
  return absl::UnavailableError(absl::StrCat(absl::StrJoin(names, ", "), ", and a checkpoint needs its part"));
}

// Avoids the store's own wait, which writes two log lines if it ends without the key.
absl::Status ReportExchange::await(const std::vector<std::string>& keys, const std::vector<int>& ranks, int levels) {
  const absl::Duration began = system_clock().monotonic();
  // Waits longer than the ranks below, so that these report which ranks are late.
  const absl::Duration timeout = timeout_.timeout + levels * std::min(timeout_.timeout / 10, absl::Seconds(30));
  const absl::Duration look_every = timeout_.silence / 10;
  absl::Duration next_look = began + look_every;
  HeartbeatMonitor watch(*store_, timeout_.silence, timeout_.start);
  while (true) {
    bool there = false;
    TITAN_RETURN_IF_ERROR(ask_store([&] { there = store_->check(keys); }));
    if (there) return absl::OkStatus();
    const absl::Duration now = system_clock().monotonic();
    if (now - began > timeout) break;
    if (now > next_look) {
      TITAN_RETURN_IF_ERROR(check_heartbeats(watch, keys, ranks));
      next_look = now + look_every;
    }
    TITAN_RETURN_IF_ERROR(rest(std::clamp((now - began) / 20, absl::Microseconds(200), absl::Seconds(1))));
  }
  std::string missing;
  for (const std::string& key : keys) {
    bool there = false;
    TITAN_RETURN_IF_ERROR(ask_store([&] { there = store_->check({key}); }));
    if (!there) absl::StrAppend(&missing, missing.empty() ? "" : ", ", key);
  }
  return absl::DeadlineExceededError(
      absl::StrCat("no report within ", absl::FormatDuration(timeout_.timeout), " for ", missing));
}

absl::StatusOr<std::string> ReportExchange::collect(const std::string& topic, const std::string& report, Join join) {
  const std::vector<Branch> below = branches(branch_of(rank_, world_, fan_out_), fan_out_);
  if (below.empty()) return report;
  std::vector<std::string> keys;
  std::vector<int> ranks;
  for (const Branch& branch : below) {
    keys.push_back(report_key(topic, branch.begin));
    ranks.push_back(branch.begin);
  }
  TITAN_RETURN_IF_ERROR(await(keys, ranks, height(below.front(), fan_out_)));
  std::vector<std::string> reports = {report};
  absl::Status failed;
  TITAN_RETURN_IF_ERROR(ask_store([&] {
    for (const std::string& key : keys) {
      std::string words = store_->get_to_str(key);
      store_->deleteKey(key);  // No other rank reads it, and a long job makes many.
      const bool whole = words[0] == kReport;
      words.erase(0, 1);
      if (!whole && failed.ok()) failed = status_from_json(nlohmann::json::parse(words, nullptr, false));
      reports.push_back(std::move(words));
    }
  }));
  if (!failed.ok()) return failed;
  return join(reports);
}

absl::StatusOr<std::string> ReportExchange::gather(const std::string& topic, const std::string& report, Join join) {
  if (world_ == 1) return report;
  absl::StatusOr<std::string> joined = collect(topic, report, join);
  if (!leader()) {
    if (absl::IsCancelled(joined.status())) return joined.status();
    const std::string words = joined.ok() ? kReport + *joined : kFailure + to_json(joined.status()).dump();
    TITAN_RETURN_IF_ERROR(ask_store([&] { store_->set(report_key(topic, rank_), words); }));
    return "";
  }
  if (!joined.ok()) return joined;
  TITAN_RETURN_IF_ERROR(ask_store([&] {
    for (const std::string& key : spoken_)
      store_->deleteKey(key);  // All ranks have read them, because they have
                               // reported since.
  }));
  spoken_.clear();
  return joined;
}

absl::Status ReportExchange::share(const std::string& name, const std::string& text) {
  if (!given_.insert(name).second) return absl::OkStatus();
  const std::string key = absl::StrCat("checkpoint/shared/", name);
  return ask_store([&] {
    if (store_->add(key + "/taken", 1) == 1) store_->set(key, text);
  });
}

absl::StatusOr<std::string> ReportExchange::shared(const std::string& name) {
  const std::string key = absl::StrCat("checkpoint/shared/", name);
  std::string text;
  bool there = false;
  TITAN_RETURN_IF_ERROR(ask_store([&] {
    there = store_->check({key});
    if (there) text = store_->get_to_str(key);
  }));
  if (!there) return absl::InternalError(absl::StrCat("a report names ", key, ", which is not in the store"));
  return text;
}

absl::StatusOr<std::string> ReportExchange::broadcast(const std::string& topic, const std::string& words) {
  if (world_ == 1) return words;
  const std::string key = absl::StrCat("checkpoint/", topic);
  std::string heard = words;
  if (leader()) {
    TITAN_RETURN_IF_ERROR(ask_store([&] { store_->set(key, words); }));
    spoken_.push_back(key);
  } else {
    TITAN_RETURN_IF_ERROR(await({key}, {0}, height({0, world_}, fan_out_)));
    TITAN_RETURN_IF_ERROR(ask_store([&] { heard = store_->get_to_str(key); }));
  }
  return heard;
}

namespace {

using nlohmann::json;

std::string words_of(const absl::StatusOr<WrittenStep>& report) {
  json words = to_json(report.status());
  if (report.ok()) words["report"] = to_json(*report);
  return words.dump();
}

absl::StatusOr<WrittenStep> report_in(const std::string& words) {
  const json from = json::parse(words, nullptr, false);
  TITAN_RETURN_IF_ERROR(status_from_json(from));
  return report_from_json(from.value("report", json()));
}

// Joins the words of consecutive ranks.
std::string join_words(const std::vector<std::string>& words) {
  std::vector<WrittenStep> reports;
  for (const std::string& one : words) {
    absl::StatusOr<WrittenStep> report = report_in(one);
    if (!report.ok()) return words_of(report.status());
    reports.push_back(*std::move(report));
  }
  return words_of(join(std::move(reports)));
}

}  // namespace

// Returns this rank's report. The table of its tensors is shared separately.
absl::StatusOr<WrittenStep> ShardReports::report_here(const absl::StatusOr<WrittenShard>& shard, json per_rank,
                                                      absl::Status& shared) {
  if (!shard.ok()) return as_local_error(shard.status());
  TensorTable table;
  TITAN_ASSIGN_OR_RETURN(WrittenStep report, report_of(*shard, std::move(per_rank), table));
  if (report.rows.empty()) return report;
  const std::string& name = report.rows.begin()->first;
  if (exchange_.leader()) {
    tables_[name] = std::move(table);
  } else {
    shared = exchange_.share(name, table_text(table));
  }
  return report;
}

absl::StatusOr<std::string> ShardReports::gather(const std::string& topic, const absl::StatusOr<WrittenShard>& shard,
                                                 json per_rank) {
  absl::Status shared;
  absl::StatusOr<WrittenStep> report = report_here(shard, std::move(per_rank), shared);
  TITAN_RETURN_IF_ERROR(shared);
  if (!report.ok()) report = exchange_.named(report.status());
  return exchange_.gather(topic, words_of(report), join_words);
}

absl::Status ShardReports::complete(const std::string& words, Manifest& manifest) {
  TITAN_ASSIGN_OR_RETURN(WrittenStep report, report_in(words));
  for (const auto& [name, rows] : report.rows) {
    if (tables_.contains(name)) continue;
    TITAN_ASSIGN_OR_RETURN(const std::string text, exchange_.shared(name));
    TITAN_ASSIGN_OR_RETURN(tables_[name], table_from_text(text));
  }
  return checkpoint::complete(std::move(report), tables_, manifest);
}

}  // namespace titan::checkpoint
