#include "worker/rank/checkpoint/steps/shard_reports.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/checkpoint/steps/verdict.h"

namespace titan::checkpoint {
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

// Words of neighbouring ranks as one.
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

// The list of its tensors goes its own way.
absl::StatusOr<WrittenStep> ShardReports::report_here(const absl::StatusOr<WrittenShard>& shard, json per_rank,
                                                      absl::Status& shared) {
  if (!shard.ok()) return not_a_lost_rank(shard.status());
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
