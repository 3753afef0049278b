#include "worker/checkpoint/shard_reports.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status.h"
#include "worker/checkpoint/verdict.h"

namespace titan::checkpoint {
namespace {

using nlohmann::json;

std::string words_of(const absl::StatusOr<StepReport>& report) {
  json words = to_json(report.status());
  if (report.ok()) words["report"] = to_json(*report);
  return words.dump();
}

absl::StatusOr<StepReport> report_in(const std::string& words) {
  const json from = json::parse(words, nullptr, false);
  TITAN_RETURN_IF_ERROR(status_from_json(from));
  return report_from_json(from.value("report", json()));
}

// This rank's report. The list of its tensors goes its own way.
absl::StatusOr<StepReport> report_here(Session& session, const absl::StatusOr<WrittenShard>& shard, json per_rank,
                                       absl::Status& shared) {
  if (!shard.ok()) return session.named(not_a_lost_rank(shard.status()));
  TensorTable table;
  TITAN_ASSIGN_OR_RETURN(StepReport report, report_of(*shard, std::move(per_rank), table));
  if (report.rows.empty()) return report;
  const std::string& name = report.rows.begin()->first;
  if (session.leader()) {
    session.tables[name] = std::move(table);
  } else {
    shared = session.exchange.share(name, table_text(table));
  }
  return report;
}

}  // namespace

std::string join_words(const std::vector<std::string>& words) {
  std::vector<StepReport> reports;
  for (const std::string& one : words) {
    absl::StatusOr<StepReport> report = report_in(one);
    if (!report.ok()) return words_of(report.status());
    reports.push_back(*std::move(report));
  }
  return words_of(join(std::move(reports)));
}

absl::StatusOr<std::string> gather_shards(Session& session, const std::string& topic,
                                          const absl::StatusOr<WrittenShard>& shard, json per_rank) {
  absl::Status shared;
  const std::string words = words_of(report_here(session, shard, std::move(per_rank), shared));
  TITAN_RETURN_IF_ERROR(shared);
  const auto doing = session.doing("wait for all ranks' shards");
  return session.exchange.gather(topic, words, join_words);
}

absl::Status complete(Session& session, const std::string& words, Manifest& manifest) {
  TITAN_ASSIGN_OR_RETURN(StepReport report, report_in(words));
  for (const auto& [name, rows] : report.rows) {
    if (session.tables.contains(name)) continue;
    TITAN_ASSIGN_OR_RETURN(const std::string text, session.exchange.shared(name));
    TITAN_ASSIGN_OR_RETURN(session.tables[name], table_from_text(text));
  }
  return complete(std::move(report), session.tables, manifest);
}

}  // namespace titan::checkpoint
