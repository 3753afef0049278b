#include "controller/job/diagnosis.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/text/quantities.h"
#include "common/rank_protocol/flight_tail.h"

namespace titan::job {
namespace {

using rank_protocol::FlightCall;
using rank_protocol::RankFlight;

constexpr int kCallsOfAll = 1 << 19;
constexpr int kMinCalls = 32;
constexpr size_t kPositions = 256;  // Ranks whose position the report gives.

std::string named(const RankFlight& flight, const FlightCall& call) {
  const auto group = static_cast<size_t>(call.group);
  const rank_protocol::FlightGroup none;
  const rank_protocol::FlightGroup& of = group < flight.groups.size() ? flight.groups[group] : none;
  return absl::StrCat(call.operation, " ", call.sequence, " of ", of.name, " (ranks ", of.members, "; ", call.elements,
                      " ", call.type, ")");
}

std::string position(const RankFinding& finding, const FlightCall* awaited) {
  const RankFlight& flight = finding.flight;
  if (flight.calls.empty()) return finding.flight_missing.empty() ? "no collective yet" : finding.flight_missing;
  if (awaited != nullptr) return absl::StrCat("waits for ", named(flight, *awaited));
  return absl::StrCat("does not wait; last ", named(flight, flight.calls.back()));
}

std::string place_of(int rank, const RankFinding& finding, const FlightCall* awaited) {
  const std::string phase =
      finding.phase.empty() ? "no beacon" : absl::StrCat("step ", finding.step, ", ", finding.phase);
  const std::string since = finding.phase.empty() || finding.phase_milliseconds <= 0
                                ? ""
                                : absl::StrCat(" for ", finding.phase_milliseconds / 1000, " s");
  return absl::StrCat("rank ", rank, " on ", finding.node, finding.alive ? "" : " (ended)", ": ", phase, since, "; ",
                      position(finding, awaited), "\n");
}

// Replaces numbers of processes and threads, which differ without meaning anything.
std::string without_numbers(const std::string& stacks) {
  std::string plain;
  for (const char c : stacks) {
    if (c >= '0' && c <= '9') {
      if (plain.empty() || plain.back() != '#') plain.push_back('#');
    } else {
      plain.push_back(c);
    }
  }
  return plain;
}

// Adds stacks, those of diverging ranks first, then by rank. Ranks with the same stacks share a block.
void add_stacks(const Findings& findings, const std::vector<int>& first, std::string& report) {
  std::vector<int> order = first;
  for (const auto& [rank, finding] : findings.ranks) {
    if (std::find(first.begin(), first.end(), rank) == first.end()) order.push_back(rank);
  }
  std::map<std::string, size_t> known;
  std::vector<std::vector<int>> blocks;
  std::map<std::string, std::vector<int>> missing;
  for (const int rank : order) {
    const auto found = findings.ranks.find(rank);
    if (found == findings.ranks.end()) continue;
    if (found->second.stacks.empty()) {
      missing[found->second.stacks_missing].push_back(rank);
      continue;
    }
    const auto [place, is_new] = known.try_emplace(without_numbers(found->second.stacks), blocks.size());
    if (is_new) blocks.emplace_back();
    blocks[place->second].push_back(rank);
  }
  size_t left_out = 0;
  for (std::vector<int>& block : blocks) {
    const int shown = block.front();
    const std::string& stacks = findings.ranks.at(shown).stacks;
    std::sort(block.begin(), block.end());
    const std::string head =
        absl::StrCat("\nstacks of rank", block.size() == 1 ? " " : "s ", rank_protocol::format_rank_list(block),
                     block.size() == 1 ? "" : absl::StrCat(", here of rank ", shown), "\n");
    if (report.size() + head.size() + stacks.size() > kMaxReport - 4096) {
      left_out += block.size();
      continue;
    }
    absl::StrAppend(&report, head, stacks, stacks.back() == '\n' ? "" : "\n");
  }
  if (left_out > 0) {
    absl::StrAppend(&report, "\nstacks of ", counted(left_out, "more rank"),
                    " are omitted here; see the run folders of their nodes\n");
  }
  for (auto& [why, ranks] : missing) {
    std::sort(ranks.begin(), ranks.end());
    absl::StrAppend(&report, "\nno stacks of rank", ranks.size() == 1 ? " " : "s ",
                    rank_protocol::format_rank_list(ranks), why.empty() ? "" : ": ", why, "\n");
    if (report.size() > kMaxReport) break;
  }
}

bool is_stopped(const RankFinding& finding) {
  return absl::StrContains(finding.stacks, ") stopped\n") || absl::StrContains(finding.stacks, ") stopped, ");
}

// If several ranks are in one call, those that somebody has stopped there hold up the others.
void keep_stopped(const Findings& findings, std::vector<int>& ranks) {
  std::vector<int> stopped;
  for (const int rank : ranks) {
    if (is_stopped(findings.ranks.at(rank))) stopped.push_back(rank);
  }
  if (!stopped.empty()) ranks = std::move(stopped);
}

// Names the ranks that somebody has stopped, if no call accounts for the hang: messages under way between two ranks are
// in no record, so that a stopped rank and its peer may each seem to wait for the other.
void name_stopped(const Findings& findings, DiagnosisRecord& record) {
  for (const auto& [rank, finding] : findings.ranks) {
    if (finding.alive && is_stopped(finding)) record.ranks.push_back(rank);
  }
  if (record.ranks.empty()) return;
  const bool one = record.ranks.size() == 1;
  record.verdict = absl::StrCat(one ? "rank " : "ranks ", rank_protocol::format_rank_list(record.ranks),
                                one ? " is" : " are", " stopped (by a signal or a debugger)");
}

std::string ranks_without_answer(const Findings& findings) {
  std::vector<int> silent;
  for (int rank = 0; rank < findings.world; ++rank) {
    if (findings.ranks.count(rank) == 0) silent.push_back(rank);
  }
  if (silent.empty()) return "";
  return absl::StrCat("no answer from the nodes of rank", silent.size() == 1 ? " " : "s ",
                      rank_protocol::format_rank_list(silent), "\n");
}

}  // namespace

int max_calls(int world) { return std::max(kMinCalls, kCallsOfAll / std::max(1, world)); }

DiagnosisRecord diagnose(const Findings& findings, const std::string& title) {
  std::vector<RankFlight> flights;
  for (const auto& [rank, finding] : findings.ranks) {
    flights.push_back(finding.flight);
    // The node knows which rank the file belongs to. The number in the file is only the rank's claim.
    flights.back().rank = rank;
  }
  DiagnosisRecord record;
  std::optional<Divergence> divergence = first_divergence(flights);
  // For ranks that do not stand still, only a mismatch is certain.
  if (divergence && !findings.stuck && divergence->kind != Divergence::Kind::kMismatch) divergence.reset();
  if (divergence && divergence->kind == Divergence::Kind::kUnfinished) keep_stopped(findings, divergence->ranks);
  if (divergence) {
    record.verdict = divergence->message();
    record.ranks = divergence->ranks;
    record.collective = absl::StrCat(divergence->call.operation, " ", divergence->call.sequence, " of ",
                                     divergence->group.name, " (ranks ", divergence->group.members, ")");
  } else if (findings.stuck) {
    name_stopped(findings, record);
  }
  std::string& report = record.report;
  report = absl::StrCat(title, "\n", record.verdict.empty() ? "no rank is known to have diverged" : record.verdict,
                        "\n", ranks_without_answer(findings), "\n");
  const std::map<int, const FlightCall*> awaited = awaited_calls(flights);
  const auto place = [&awaited](int rank, const RankFinding& finding) {
    const auto found = awaited.find(rank);
    return place_of(rank, finding, found == awaited.end() ? nullptr : found->second);
  };
  size_t listed = 0;
  for (const int rank : record.ranks) {
    const auto found = findings.ranks.find(rank);
    if (found != findings.ranks.end() && listed++ < kPositions) absl::StrAppend(&report, place(rank, found->second));
  }
  for (const auto& [rank, finding] : findings.ranks) {
    if (std::find(record.ranks.begin(), record.ranks.end(), rank) != record.ranks.end()) continue;
    if (listed++ < kPositions) absl::StrAppend(&report, place(rank, finding));
  }
  if (listed > kPositions) absl::StrAppend(&report, "and ", counted(listed - kPositions, "more rank"), "\n");
  add_stacks(findings, record.ranks, report);
  if (report.size() > kMaxReport) report.resize(kMaxReport);
  return record;
}

void to_json(nlohmann::json& json, const DiagnosisRecord& record) {
  json = {{"attempt", record.attempt}, {"time_ns", record.time_ns},       {"verdict", record.verdict},
          {"ranks", record.ranks},     {"collective", record.collective}, {"report", record.report}};
}

void from_json(const nlohmann::json& json, DiagnosisRecord& record) {
  record.attempt = json.value("attempt", 0);
  record.time_ns = json.value("time_ns", int64_t{0});
  record.verdict = json.value("verdict", "");
  record.ranks = json.value("ranks", std::vector<int>{});
  record.collective = json.value("collective", "");
  record.report = json.value("report", "");
}

}  // namespace titan::job
