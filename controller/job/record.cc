#include "controller/job/record.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "controller/job/quick_reader.h"

namespace titan::job {

#define TITAN_READ_FIELD(field) \
  if (key == #field) return reader.read(record.field);

// Like NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT, but not inline, so that the header can declare the functions.
#define TITAN_JSON_FIELDS(Type, ...)                                                        \
  void to_json(nlohmann::json& nlohmann_json_j, const Type& nlohmann_json_t) {              \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_TO, __VA_ARGS__))                \
  }                                                                                         \
  void from_json(const nlohmann::json& nlohmann_json_j, Type& nlohmann_json_t) {            \
    const Type nlohmann_json_default_obj;                                                   \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_FROM_WITH_DEFAULT, __VA_ARGS__)) \
  }

// Also defines the function for the quick reader.
#define TITAN_RECORD_FIELDS(Type, ...)                                               \
  TITAN_JSON_FIELDS(Type, __VA_ARGS__)                                               \
  static bool read_member(QuickReader& reader, std::string_view key, Type& record) { \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(TITAN_READ_FIELD, __VA_ARGS__))         \
    return false;                                                                    \
  }

TITAN_RECORD_FIELDS(RestartPolicy, no_progress_limit, backoff_initial_seconds, backoff_max_seconds,
                    unreachable_grace_seconds, orphan_timeout_seconds, stop_grace_seconds, init_timeout_seconds,
                    train_timeout_seconds)
TITAN_RECORD_FIELDS(RestartHistory, without_progress, best_step, best_commit, user_error, user_error_step, at_odds,
                    stale_attempts, taken_devices)
TITAN_RECORD_FIELDS(SchedulingSpec, title, dump_folder, device, ranks, ranks_per_node, threads_per_rank, priority,
                    time_limit_seconds, total_steps, project, job_id, restart, real_folder, folder_id, saves, mesh)
TITAN_RECORD_FIELDS(Placement, node, first_rank, num_ranks, devices)
TITAN_RECORD_FIELDS(RankExit, rank, node, exit_code, signal, out_of_memory, time_ns, message, stop_reason, report,
                    memory_limit_bytes, kept_log_bytes)
TITAN_JSON_FIELDS(FailedLog, offset, text)
TITAN_JSON_FIELDS(ErrorReport, rank, kind, reason, message, holder_job, holder_attempt, same_job)
TITAN_JSON_FIELDS(Refusal, node, reason, message, highest_attempt)
TITAN_RECORD_FIELDS(Intent, stop, save, cause, actor, time_ns, deadline_ns, request_ids)
TITAN_RECORD_FIELDS(Drain, actor, time_ns, reason)
TITAN_RECORD_FIELDS(Blame, job_uid, reason, time_ns)
TITAN_RECORD_FIELDS(JobRecord, uid, name, order, request_id, fingerprint, state, failure_reason, failure_message,
                    intent, spec, history, attempts, events, threads_per_rank, create_time_ns, placed_time_ns,
                    start_time_ns, end_time_ns, folder_id, avoided_nodes, reserved, restart_time_ns, labels, owner,
                    run_as, run_as_local)
TITAN_RECORD_FIELDS(AttemptRecord, number, placements, start_time_ns, first_step_time_ns, end_time_ns, resumed_step,
                    last_step, end_cause, end_message, exits, num_exits, phase_seconds, store_host, store_port, ranks,
                    mesh, config_version, diagnosed, verdict, named_ranks, logs_dropped, left_on)
TITAN_RECORD_FIELDS(Tombstone, name, actor, time_ns, request_id, fingerprint)
TITAN_RECORD_FIELDS(EventRecord, time_ns, job, node, attempt, rank, reason, message, severity, actor)
TITAN_RECORD_FIELDS(NodeRecord, name, instance, address, version, device, devices, cpu_cores, memory_bytes,
                    device_model, device_memory_bytes, cordoned, cordon_reason, drain, lease_epoch, events, blames,
                    labels)

namespace {

nlohmann::json number(double value) { return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr); }

double number_at(const nlohmann::json& json, const char* key) {
  const auto it = json.find(key);
  if (it == json.end()) return 0;
  return it->is_null() ? std::numeric_limits<double>::quiet_NaN() : it->get<double>();
}

template <typename Record>
bool read_whole(const std::string& text, Record& record) {
  QuickReader reader(text);
  return reader.read(record) && reader.at_end();
}

}  // namespace

template <>
bool read_quickly(const std::string& text, JobRecord& record) {
  return read_whole(text, record);
}

template <>
bool read_quickly(const std::string& text, AttemptRecord& record) {
  return read_whole(text, record);
}

template <>
bool read_quickly(const std::string& text, Tombstone& tombstone) {
  return read_whole(text, tombstone);
}

template <>
bool read_quickly(const std::string& text, EventRecord& record) {
  return read_whole(text, record);
}

template <>
bool read_quickly(const std::string& text, NodeRecord& record) {
  return read_whole(text, record);
}

std::string etag(const JobRecord& record) {
  // FNV-1a gives the same value in every version and on every machine. Clients keep it.
  uint64_t hash = 14695981039346656037ULL;
  const nlohmann::json content = {record.uid, record.spec.priority, record.spec.title, record.labels};
  for (const char c : content.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  }
  return absl::StrCat(absl::Hex(hash, absl::kZeroPad16));
}

void to_json(nlohmann::json& json, JobState state) { json = std::string(name(state)); }

void from_json(const nlohmann::json& json, JobState& state) {
  const absl::StatusOr<JobState> parsed = state_from_name(json.get_ref<const std::string&>());
  if (!parsed.ok()) throw nlohmann::json::other_error::create(501, std::string(parsed.status().message()), &json);
  state = *parsed;
}

void to_json(nlohmann::json& json, const Progress& progress) {
  json = {{"step", progress.step},
          {"loss", number(progress.loss)},
          {"grad_norm", number(progress.grad_norm)},
          {"tokens_per_second", number(progress.tokens_per_second)},
          {"mfu_percent", number(progress.mfu_percent)},
          {"expert_max_over_mean", number(progress.expert_max_over_mean)},
          {"committed_step", progress.committed_step},
          {"commit_time_ns", progress.commit_time_ns},
          {"failed_save", progress.failed_save},
          {"update_time_ns", progress.update_time_ns},
          {"longest_step_seconds", progress.longest_step_seconds}};
}

void from_json(const nlohmann::json& json, Progress& progress) {
  progress.step = json.value("step", int64_t{0});
  progress.loss = number_at(json, "loss");
  progress.grad_norm = number_at(json, "grad_norm");
  progress.tokens_per_second = number_at(json, "tokens_per_second");
  progress.mfu_percent = number_at(json, "mfu_percent");
  progress.expert_max_over_mean = number_at(json, "expert_max_over_mean");
  progress.committed_step = json.value("committed_step", int64_t{0});
  progress.commit_time_ns = json.value("commit_time_ns", int64_t{0});
  progress.failed_save = json.value("failed_save", "");
  progress.update_time_ns = json.value("update_time_ns", int64_t{0});
  progress.longest_step_seconds = json.value("longest_step_seconds", 0.0);
}

}  // namespace titan::job
