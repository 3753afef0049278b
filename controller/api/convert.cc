#include "controller/api/convert.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/service/rpc/error.h"
#include "controller/core/node_table.h"

namespace titan::api {
namespace {

google::protobuf::Timestamp timestamp(int64_t ns) {
  google::protobuf::Timestamp time;
  time.set_seconds(ns / 1'000'000'000);
  time.set_nanos(static_cast<int32_t>(ns % 1'000'000'000));
  return time;
}

void set_time(int64_t ns, google::protobuf::Timestamp* (v1::Job::*field)(), v1::Job& job) {
  if (ns != 0) *(job.*field)() = timestamp(ns);
}

v1::RankExit to_proto(const job::RankExit& exit) {
  v1::RankExit message;
  message.set_rank(exit.rank);
  message.set_node(exit.node);
  message.set_exit_code(exit.exit_code);
  message.set_signal(exit.signal);
  message.set_message(exit.message);
  message.set_kept_log_bytes(exit.kept_log_bytes);
  message.set_told(exit.report);
  return message;
}

v1::Attempt to_proto(const job::AttemptRecord& record) {
  v1::Attempt attempt;
  attempt.set_number(record.number);
  for (const job::Placement& placement : record.placements) {
    v1::Placement* added = attempt.add_placements();
    added->set_node(placement.node);
    added->set_first_rank(placement.first_rank);
    added->set_num_ranks(placement.num_ranks);
    added->mutable_devices()->Assign(placement.devices.begin(), placement.devices.end());
  }
  *attempt.mutable_start_time() = timestamp(record.start_time_ns);
  if (record.first_step_time_ns != 0) *attempt.mutable_first_step_time() = timestamp(record.first_step_time_ns);
  if (record.end_time_ns != 0) *attempt.mutable_end_time() = timestamp(record.end_time_ns);
  attempt.set_resumed_step(record.resumed_step);
  attempt.set_last_step(record.last_step);
  attempt.set_end_cause(record.end_cause);
  attempt.set_end_message(record.end_message);
  for (const job::RankExit& exit : record.exits) *attempt.add_exits() = to_proto(exit);
  for (const auto& [phase, seconds] : record.phase_seconds) (*attempt.mutable_phase_seconds())[phase] = seconds;
  attempt.set_ranks(record.ranks);
  attempt.mutable_mesh()->insert(record.mesh.begin(), record.mesh.end());
  attempt.set_config_version(record.config_version);
  attempt.set_diagnosed(record.diagnosed);
  attempt.set_verdict(record.verdict);
  return attempt;
}

v1::SlowRank to_proto(const core::SlowRank& slow) {
  v1::SlowRank rank;
  rank.set_job(slow.job);
  rank.set_rank(slow.rank);
  rank.set_node(slow.node);
  rank.set_score(slow.figures.score);
  rank.set_own_seconds(absl::ToDoubleSeconds(slow.figures.own));
  rank.set_peer_seconds(absl::ToDoubleSeconds(slow.figures.peers));
  return rank;
}

}  // namespace

v1::Job to_proto(const reconcile::JobView& view) {
  const job::JobRecord& record = *view.record;
  v1::Job job;
  job.set_name(record.name);
  job.set_uid(record.uid);
  job.set_title(record.spec.title);
  v1::Job::State state = v1::Job::STATE_UNSPECIFIED;
  v1::Job::State_Parse(std::string(job::name(record.state)), &state);
  job.set_state(state);
  job.set_pending_reason(view.pending_reason);
  job.set_pending_message(view.pending_message);
  job.set_failure_reason(record.failure_reason);
  job.set_failure_message(record.failure_message);
  v1::JobSpec* spec = job.mutable_spec();
  spec->set_dump_folder(record.spec.dump_folder);
  spec->set_real_folder(record.spec.real_folder);
  spec->set_folder_id(record.spec.folder_id);
  spec->set_ranks(record.spec.ranks);
  spec->set_ranks_per_node(record.spec.ranks_per_node);
  spec->set_device(record.spec.device);
  spec->set_priority(record.spec.priority);
  spec->set_time_limit_seconds(record.spec.time_limit_seconds);
  spec->set_project(record.spec.project);
  spec->set_job_id(record.spec.job_id);
  for (const auto& attempt : view.attempts) *job.add_attempts() = to_proto(*attempt);
  v1::Progress* progress = job.mutable_progress();
  progress->set_step(view.progress.step);
  progress->set_total_steps(record.spec.total_steps);
  progress->set_loss(view.progress.loss);
  progress->set_grad_norm(view.progress.grad_norm);
  progress->set_tokens_per_second(view.progress.tokens_per_second);
  progress->set_mfu_percent(view.progress.mfu_percent);
  progress->set_committed_step(view.progress.committed_step);
  progress->set_failed_save(view.progress.failed_save);
  if (view.progress.update_time_ns != 0) *progress->mutable_update_time() = timestamp(view.progress.update_time_ns);
  set_time(record.create_time_ns, &v1::Job::mutable_create_time, job);
  set_time(record.start_time_ns, &v1::Job::mutable_start_time, job);
  set_time(record.end_time_ns, &v1::Job::mutable_end_time, job);
  if (record.spec.time_limit_seconds > 0 && record.placed_time_ns != 0) {
    set_time(record.placed_time_ns + record.spec.time_limit_seconds * 1'000'000'000, &v1::Job::mutable_limit_time, job);
  }
  job.set_revision(view.revision);
  job.set_etag(job::etag(record));
  job.mutable_labels()->insert(record.labels.begin(), record.labels.end());
  job.set_owner(record.owner);
  for (const core::SlowRank& slow : view.slow) *job.add_slow_ranks() = to_proto(slow);
  return job;
}

void add_warnings(const std::vector<scheduler::Misfit>& misfits, v1::Job& job) {
  for (const scheduler::Misfit& misfit : misfits) {
    v1::JobWarning* warning = job.add_warnings();
    warning->set_reason(misfit.reason);
    warning->set_message(misfit.message);
  }
}

v1::JobDiagnosis to_proto(const job::DiagnosisRecord& record) {
  v1::JobDiagnosis diagnosis;
  diagnosis.set_attempt(record.attempt);
  *diagnosis.mutable_time() = timestamp(record.time_ns);
  diagnosis.set_verdict(record.verdict);
  diagnosis.mutable_ranks()->Assign(record.ranks.begin(), record.ranks.end());
  diagnosis.set_collective(record.collective);
  diagnosis.set_report(record.report);
  return diagnosis;
}

v1::Node to_proto(const reconcile::NodeView& view) {
  const job::NodeRecord& record = view.node.record;
  v1::Node node;
  node.set_name(absl::StrCat("nodes/", record.name));
  v1::Node::State state = v1::Node::STATE_UNSPECIFIED;
  v1::Node::State_Parse(std::string(core::name(view.node.state)), &state);
  node.set_state(state);
  node.set_cordoned(record.cordoned);
  node.set_cordon_reason(record.cordon_reason);
  node.set_flapping(view.node.flapping);
  node.set_unusable(view.node.unusable);
  node.set_clock_ahead_seconds(absl::ToDoubleSeconds(view.node.clock_ahead));
  v1::NodeResources* resources = node.mutable_resources();
  resources->set_device(record.device);
  resources->set_devices(record.devices);
  resources->set_cpu_cores(record.cpu_cores);
  resources->set_memory_bytes(record.memory_bytes);
  resources->set_device_model(record.device_model);
  resources->set_device_memory_bytes(record.device_memory_bytes);
  node.set_address(record.address);
  node.set_version(record.version);
  const int64_t beat = absl::ToUnixNanos(view.node.last_beat_time);
  if (beat > 0) *node.mutable_last_beat_time() = timestamp(beat);
  node.set_devices_used(view.devices_used);
  for (const std::string& job : view.jobs) node.add_jobs(job);
  for (const auto& [key, stray] : view.unknown) {
    v1::UnknownAttempt* attempt = node.add_unknown();
    attempt->set_job_uid(key.first);
    attempt->set_job(stray.job);
    attempt->set_attempt(key.second);
    attempt->mutable_ranks()->Assign(stray.ranks.begin(), stray.ranks.end());
    if (stray.start_time_ns != 0) *attempt->mutable_start_time() = timestamp(stray.start_time_ns);
    attempt->set_step(stray.step);
    attempt->set_message(absl::StrCat(stray.ended       ? "has ended"
                                      : stray.dismissed ? "is being ended"
                                                        : "left alone",
                                      ": this controller has no such job"));
  }
  for (const auto& [key, left] : view.left) {
    v1::LeftAttempt* attempt = node.add_left();
    attempt->set_job_uid(key.first);
    attempt->set_job(left.job);
    attempt->set_attempt(key.second);
    attempt->set_ranks(left.ranks);
    *attempt->mutable_until_time() = timestamp(absl::ToUnixNanos(left.until_wall));
  }
  node.set_refusal(view.refusal);
  for (const core::SlowRank& slow : view.slow) *node.add_slow_ranks() = to_proto(slow);
  node.set_slow(view.is_slow);
  node.mutable_labels()->insert(record.labels.begin(), record.labels.end());
  return node;
}

v1::Event to_proto(const job::EventRecord& record, int64_t revision) {
  v1::Event event;
  event.set_revision(revision);
  *event.mutable_time() = timestamp(record.time_ns);
  event.set_job(record.job);
  event.set_node(record.node);
  event.set_attempt(record.attempt);
  event.set_rank(record.rank);
  event.set_reason(record.reason);
  event.set_message(record.message);
  event.set_severity(record.severity);
  event.set_actor(record.actor);
  return event;
}

std::string full_job_name(const std::string& name) {
  return absl::StartsWith(name, "projects/") ? name : absl::StrCat("projects/default/jobs/", name);
}

std::string node_id(const std::string& name) { return std::string(absl::StripPrefix(name, "nodes/")); }

absl::Status name_missing_error(absl::string_view of) {
  return rpc::bad_request("NAME_MISSING", {{"name", absl::StrCat("must name a ", of)}});
}

}  // namespace titan::api
