#include "worker/rank/checkpoint/loading/load_agreement.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/rank_protocol/launch.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/loading/candidate_reader.h"
#include "worker/rank/checkpoint/loading/grown_vocabulary.h"
#include "worker/rank/checkpoint/shards/model_mismatch.h"
#include "worker/rank/checkpoint/steps/rank_reports.h"
#include "worker/rank/checkpoint/steps/step_folders.h"

namespace titan::checkpoint {
namespace {

using nlohmann::json;

// Returns [[first, count], ...]. A rank of a pipeline has no slices of most tensors, and these are consecutive.
json runs_of(const std::vector<size_t>& numbers) {
  json runs = json::array();
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    runs.push_back({numbers[i], end - i});
    i = end;
  }
  return runs;
}

std::vector<size_t> numbers_in(const json& runs) {
  std::vector<size_t> numbers;
  for (const json& run : runs) {
    for (size_t i = 0; i < run.at(1).get<size_t>(); ++i) numbers.push_back(run.at(0).get<size_t>() + i);
  }
  return numbers;
}

}  // namespace

std::string to_text(const LoadReport& word) {
  json text = to_json(word.status);
  text["unclaimed"] = runs_of(word.unclaimed);
  return text.dump();
}

LoadReport load_report_from_text(const std::string& text) {
  const json from = json::parse(text, nullptr, false);
  if (!from.is_object()) return {absl::InternalError("a rank's report on a load cannot be read"), {}};
  return {status_from_json(from), numbers_in(from.value("unclaimed", json::array()))};
}

std::string join_load_reports(const std::vector<std::string>& words) {
  LoadReport joined = load_report_from_text(words.at(0));
  for (size_t i = 1; i < words.size(); ++i) {
    const LoadReport one = load_report_from_text(words[i]);
    if (!one.status.ok() && (joined.status.ok() || absl::IsFailedPrecondition(one.status))) joined.status = one.status;
    std::erase_if(joined.unclaimed, [&](size_t number) {
      return !std::binary_search(one.unclaimed.begin(), one.unclaimed.end(), number);
    });
  }
  return to_text(joined);
}

namespace {

namespace event = rank_protocol::event;

// Returns, for messages, what chose the candidate.
std::string where(const Candidate& candidate) {
  if (candidate.source != Source::kCheckpoint) return "initial weights";
  return candidate.required ? absl::StrCat("checkpoint.load_step = ", candidate.step) : "job.dump_folder";
}

}  // namespace

void CheckpointLoader::reject(const Candidate& candidate, const absl::Status& why) const {
  session_.emit(event::kRejected,
                {{"step", candidate.step}, {"path", candidate.path}, {"reason", std::string(why.message())}});
}

// Rank 0: takes and cleans the folder, and returns the candidates.
std::vector<Candidate> CheckpointLoader::plan(StatePart part) {
  const Setup& setup = session_.setup;
  if (setup.config.enable && !setup.config.load_only) {
    if (const absl::Status taken = session_.take_folder(); !taken.ok()) {
      return {{.from = Candidate::From::kError, .error = as_local_error(taken)}};
    }
    if (part != StatePart::kInitial) {
      if (const absl::Status cleaned = clean_leftovers(); !cleaned.ok()) {
        return {{.from = Candidate::From::kError, .error = cleaned}};
      }
    }
  }
  std::vector<Candidate> plan = plan_load(session_.files, setup, session_.folder, part);
  if (part != StatePart::kResumed && plan.front().from == Candidate::From::kFresh) warn_of_unread_weights();
  return plan;
}

// Cleans the folder of steps. Returns only an is_fenced() error; any other becomes a warning.
absl::Status CheckpointLoader::clean_leftovers() {
  const auto unknown = session_.step_store.clean_leftovers();
  if (storage::is_fenced(unknown.status())) return unknown.status();
  if (!unknown.ok()) {
    warn(absl::StrCat("leftovers of earlier attempts stay: ", std::string(unknown.status().message())));
  } else if (!unknown->empty()) {
    warn(
        absl::StrCat(absl::StrJoin(*unknown, ", "),
                     ": not written by an attempt of a job (no manifest.json, and other files than an attempt's); left "
                     "as it is and not loaded"));
  }
  return absl::OkStatus();
}

void CheckpointLoader::warn(const std::string& message) const {
  session_.emit(event::kWarning, {{"message", message}});
}

// Warns of weights that a user put among the steps: they are not loaded just because they lie there.
void CheckpointLoader::warn_of_unread_weights() const {
  const auto steps = list_steps(session_.files, session_.folder);
  if (!steps.ok()) return;
  for (const StepFolder& step : *steps) {
    if (step.has_manifest || (!step.has_hf_index && !step.has_dcp)) continue;
    warn(absl::StrCat(step.path, " holds ", step.has_hf_index ? "Hugging Face weights" : "a DCP checkpoint",
                      ", which are not loaded, so that training begins from new weights; to load them set "
                      "checkpoint.initial_load_path to that folder",
                      step.has_hf_index ? " and checkpoint.initial_load_in_hf = true" : ""));
  }
}

// Rank 0 looks for the next candidate worth trying; the others receive it.
absl::Status CheckpointLoader::propose(std::vector<Candidate>& plan, size_t& next, Candidate& candidate) {
  const std::string topic = session_.next_topic("propose");
  std::string words;
  if (session_.leader()) {
    for (; next < plan.size(); ++next) {
      candidate = plan[next];
      if (candidate.from == Candidate::From::kFresh || candidate.from == Candidate::From::kError) break;
      const absl::StatusOr<bool> usable = inspect(session_.files, session_.setup, candidate);
      for (const std::string& warning : candidate.warnings) session_.emit(event::kWarning, {{"message", warning}});
      if (usable.ok() && *usable) break;
      if (usable.ok()) continue;
      // If this step does not fit the model, older steps would not fit either.
      const absl::Status why = as_local_error(usable.status());
      if (candidate.required || !may_try_older_step(candidate, why)) {
        candidate = {.from = Candidate::From::kError, .error = annotate(why, where(candidate))};
        break;
      }
      reject(candidate, why);
    }
    ++next;
    words = to_json(candidate).dump();
  }
  TITAN_ASSIGN_OR_RETURN(words, session_.exchange.broadcast(topic, words));
  TITAN_ASSIGN_OR_RETURN(candidate, candidate_from_json(json::parse(words, nullptr, false)));
  return absl::OkStatus();
}

// Returns OK if every rank could read its part; otherwise the most important error, the same on every rank.
absl::Status CheckpointLoader::agree(const std::string& topic, const Candidate& candidate,
                                     const absl::StatusOr<StagedLoad>& staged) {
  LoadReport word{.status = session_.exchange.named(as_local_error(staged.status()))};
  if (staged.ok()) word.unclaimed = staged->unclaimed;
  const absl::StatusOr<std::string> all = session_.exchange.gather(topic, to_text(word), join_load_reports);
  absl::Status verdict = all.status();
  if (!verdict.ok() && !session_.leader()) return verdict;
  if (verdict.ok() && session_.leader()) {
    const auto [status, unclaimed] = load_report_from_text(*all);
    verdict = status;
    if (verdict.ok() && !unclaimed.empty()) {
      verdict = absl::FailedPreconditionError(
          absl::StrCat(candidate.path, kDoesNotFit, ": it has ", staged->held.at(unclaimed.front()),
                       unclaimed.size() > 1 ? absl::StrCat(" and ", counted(unclaimed.size() - 1, "more tensor")) : "",
                       " that this model lacks"));
    }
  }
  return session_.conclude(topic + "/verdict", verdict);
}

// Writes staged tensors into the live ones, once all ranks agree, and returns the result.
LoadResult CheckpointLoader::take(const Candidate& candidate, StagedLoad& staged, std::vector<Slice>& slices,
                                  StatePart part) {
  fill_slices(slices, staged);
  LoadResult result{.source = candidate.source, .path = candidate.path, .model_only = candidate.model_only};
  const std::vector<std::string>& excluded = session_.setup.config.exclude_from_loading;
  result.model_loaded =
      candidate.source != Source::kFresh && std::find(excluded.begin(), excluded.end(), "model") == excluded.end();
  if (result.model_loaded) result.load_balance_coeff = candidate.load_balance_coeff;
  if (!candidate.model_only) {
    result.step = staged.step;
    result.train_state = std::move(staged.train_state);
    result.per_rank = std::move(staged.per_rank);
    if (candidate.source == Source::kCheckpoint) session_.step_store.note_loaded(staged.step);
  }
  const std::string warning = session_.leader() && part != StatePart::kInitial
                                  ? lost_steps_warning(session_.setup, session_.folder, result)
                                  : std::string();
  if (!warning.empty()) session_.emit(event::kWarning, {{"message", warning}});
  return result;
}

absl::Status CheckpointLoader::fill_verified(const Candidate& candidate, const std::vector<Slice>& slices) {
  const absl::StatusOr<StagedLoad> filled = caught([&] {
    return load_step(session_.files, candidate, slices, session_.setup.config.exclude_from_loading, StepReading::kFill);
  });
  const absl::Status verdict = agree(session_.next_topic("fill"), candidate, filled);
  return verdict.ok() ? verdict : annotate(verdict, "a step that was verified a moment ago cannot be read again");
}

absl::StatusOr<LoadResult> CheckpointLoader::load(std::vector<Slice>& slices, StatePart part) {
  const Setup& setup = session_.setup;
  std::vector<Candidate> plan;
  if (session_.leader()) plan = this->plan(part);
  size_t next = 0;
  while (true) {
    Candidate candidate;
    TITAN_RETURN_IF_ERROR(propose(plan, next, candidate));
    if (candidate.from == Candidate::From::kError) return candidate.error;
    std::vector<Slice> stored;  // The parts of the slices that the candidate has.
    if (candidate.vocabulary > 0) stored = first_rows(slices, candidate.vocabulary);
    std::vector<Slice>& into = candidate.vocabulary > 0 ? stored : slices;
    const StepReading reading = candidate.in_place ? StepReading::kFill : StepReading::kVerify;
    absl::StatusOr<StagedLoad> staged = caught([&] {
      return stage_load(session_.files, candidate, into, setup.config.exclude_from_loading, setup.hf, reading);
    });
    absl::Status verdict = agree(session_.next_topic("load"), candidate, staged);
    if (verdict.ok() && candidate.from == Candidate::From::kStep && !candidate.in_place) {
      // All ranks can read it, so it goes into the live tensors now. A failure would leave them partly filled.
      TITAN_RETURN_IF_ERROR(fill_verified(candidate, into));
    }
    if (verdict.ok()) return take(candidate, *staged, into, part);
    // A lost rank, or a model that cannot fit, does not justify a fallback to older weights.
    if (candidate.required || !may_try_older_step(candidate, verdict)) return verdict;
    if (session_.leader()) reject(candidate, verdict);
  }
}

}  // namespace titan::checkpoint
