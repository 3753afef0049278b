#include "controller/reconcile/decode_rank_event.h"

#include <cmath>
#include <limits>

#include "common/rank_protocol/launch.h"
#include "nlohmann/json.hpp"

namespace titan::reconcile {
namespace {

namespace event = rank_protocol::event;

// Returns NaN if there is no such number.
double number(const nlohmann::json& json, const char* key) {
  const auto it = json.find(key);
  if (it == json.end() || !it->is_number()) return std::numeric_limits<double>::quiet_NaN();
  return it->get<double>();
}

// Returns 0 for a missing number, and for one so large that no counter reaches it and adding to it might overflow.
int64_t integer(const nlohmann::json& json, const char* key) {
  constexpr double kMost = 1e15;
  const double value = number(json, key);
  return value > -kMost && value < kMost ? static_cast<int64_t>(value) : 0;
}

std::string text(const nlohmann::json& json, const char* key) {
  const auto it = json.find(key);
  return it == json.end() || !it->is_string() ? "" : it->get<std::string>();
}

bool flag(const nlohmann::json& json, const char* key) {
  const auto it = json.find(key);
  return it != json.end() && it->is_boolean() && it->get<bool>();
}

std::optional<double> number_if_any(const nlohmann::json& json, const char* key) {
  const double value = number(json, key);
  return std::isnan(value) ? std::nullopt : std::optional(value);
}

core::StepLogged step_logged(const nlohmann::json& json) {
  const nlohmann::json metrics = json.value("metrics", nlohmann::json::object());
  const auto figure = [&](const char* key) {
    return metrics.contains(key) ? std::optional(number(metrics, key)) : std::nullopt;
  };
  core::StepLogged logged;
  logged.step = integer(json, "step");
  logged.loss = figure("loss_metrics/global_avg_loss");
  logged.grad_norm = figure("grad_norm");
  logged.tokens_per_second = figure("throughput(tps)");
  logged.mfu_percent = figure("mfu(%)");
  logged.expert_max_over_mean = figure("moe/max_over_mean");
  logged.checkpoint_seconds = number_if_any(metrics, "time_metrics/checkpoint(s)");
  return logged;
}

core::RankError error_of(const nlohmann::json& json) {
  const bool is_same_job = !json.contains("same_job") || flag(json, "same_job");
  return {text(json, "class"),
          text(json, "reason"),
          text(json, "message"),
          text(json, "holder_job"),
          static_cast<int>(integer(json, "holder_attempt")),
          is_same_job};
}

}  // namespace

std::optional<core::RankEvent> decode_rank_event(absl::string_view line) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  const std::string kind = text(json, "kind");
  const int64_t step = integer(json, "step");
  if (kind == event::kStep) return step_logged(json);
  if (kind == event::kLoaded) return core::StateLoaded{step, text(json, "source")};
  if (kind == event::kStaged) return core::CheckpointStaged{step};
  if (kind == event::kCommitted)
    return core::CheckpointCommitted{step, flag(json, "full"), number_if_any(json, "seconds")};
  if (kind == event::kCheckpointFailed) return core::CheckpointFailed{step, text(json, "reason")};
  if (kind == event::kRejected) return core::CheckpointRejected{step, text(json, "reason")};
  if (kind == event::kTrace) {
    return core::TraceWritten{integer(json, "first_step"), integer(json, "last_step"), integer(json, "bytes")};
  }
  if (kind == event::kWarning) return core::RankWarning{text(json, "message")};
  if (kind == event::kError) return error_of(json);
  if (kind == event::kFinished || kind == event::kStopped) return core::TrainingEnded{step, kind == event::kStopped};
  return std::nullopt;
}

}  // namespace titan::reconcile
