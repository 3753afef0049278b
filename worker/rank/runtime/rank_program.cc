#include "worker/rank/runtime/rank_program.h"

#include <ATen/Context.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/base/host/descriptor_limit.h"
#include "common/base/host/hostname.h"
#include "common/base/status/status.h"
#include "common/io/s3/location.h"
#include "common/io/s3/object_fence.h"
#include "common/io/storage/folder_id.h"
#include "common/io/storage/process_identity.h"
#include "common/plan/config/json.h"
#include "common/plan/config/report.h"
#include "common/rank_protocol/flight_tail.h"
#include "common/rank_protocol/spool.h"
#include "nlohmann/json.hpp"
#include "worker/rank/comm/gloo_disagreement.h"
#include "worker/rank/comm/make_device.h"
#include "worker/rank/comm/store.h"
#include "worker/rank/comm/watchdog.h"
#include "worker/rank/device/allocator_settings.h"
#include "worker/rank/nn/low_precision/recipes.h"
#include "worker/rank/nn/row_groups.h"
#include "worker/rank/runtime/failure/failure_watch.h"
#include "worker/rank/runtime/failure/flight_dump.h"
#include "worker/rank/runtime/kernel_choice.h"
#include "worker/rank/runtime/pinning.h"
#include "worker/rank/runtime/step/job_library.h"
#include "worker/rank/runtime/step/parallel_setup.h"
#include "worker/rank/runtime/step/store_room.h"

namespace titan::runtime {

using rank_protocol::ExitCode;
using rank_protocol::Phase;

namespace {

// The controller knows the folder: a mount that is missing here must not become a new folder.
void check_folder(const RankJob& job) {
  if (job.folder_id.empty()) return;
  const std::string& dump = job.config.job.dump_folder;
  const storage::FolderIs is = value(storage::compare_folder(storage::posix_files(), dump, job.folder_id),
                                     rank_protocol::kExitStorage, "DUMP_FOLDER");
  if (is == storage::FolderIs::kSame) return;
  throw Failure(rank_protocol::kExitUserError, storage::lost_folder_reason(is),
                storage::lost_folder_message(is, dump, job.committed_step));
}

// What is known to have been committed: by this job, as the controller and the fence remember it, or by another one.
// Where checkpoint.load_step names the start, the fence's memory of earlier runs says nothing.
void note_committed(const RankJob& job, const storage::Fence::Taken& taken, RankContext& context) {
  const config::Checkpoint& config = job.config.checkpoint;
  context.committed_step = job.committed_step;
  const auto known = taken.committed.find(config.folder);
  if (known == taken.committed.end() || config.load_step >= 0) return;
  if (known->second.job_uid == job.job_uid) {
    context.committed_step = std::max(context.committed_step, known->second.step);
  } else if (context.committed_step < 0) {
    context.committed_step = known->second.step;
    context.committed_by_another_job = true;
  }
}

// Rank 0 takes the dump folder for this attempt, before anything in it is read, and shows from then on that it lives.
void take_folder(const RankJob& job, RankContext& context) {
  check_folder(job);
  const storage::Fence fence(job.config.job.dump_folder);
  const absl::StatusOr<storage::Fence::Taken> taken =
      fence.take({.job_uid = job.job_uid,
                  .attempt = job.attempt,
                  .job = job.job,
                  .host = host::hostname(),
                  .pid = ::getpid(),
                  .process = storage::process_identity(),
                  .create_folder = job.folder_id.empty()},
                 {.sleep = {}, .say = [&](const std::string& text) { context.reporter->warning(text); }});
  const std::string message(taken.status().message());
  if (storage::is_in_use(taken.status())) throw Failure(rank_protocol::kExitFenced, "DUMP_FOLDER_IN_USE", message);
  if (storage::is_fenced(taken.status())) throw Failure(rank_protocol::kExitFenced, "FENCED", message);
  // No other rank takes part: a lock that somebody holds is not a lost rank.
  if (absl::IsUnavailable(taken.status()) || absl::IsDeadlineExceeded(taken.status())) {
    throw Failure(rank_protocol::kExitStorage, "FENCE", message);
  }
  check(taken.status(), rank_protocol::kExitStorage, "FENCE");
  context.attempt = taken->attempt;
  context.hold = std::make_unique<storage::FenceHold>(fence, job.job_uid, taken->attempt);
  note_committed(job, *taken, context);
  if (taken->taken_from.empty()) return;
  context.reporter->warning(absl::StrCat("the dump folder ", job.config.job.dump_folder, " was taken over from ",
                                         taken->taken_from, ", which ended without giving it back"));
}

// A fenced rank says who has the folder, or else its checkpoints in an object store.
Failure with_holder(const RankJob& job, Failure failure) {
  if (failure.exit_code() != rank_protocol::kExitFenced) return failure;
  const std::string& dump = job.config.job.dump_folder;
  absl::StatusOr<storage::Fence::Holder> holder = storage::Fence(dump).holder();
  if (s3::is_location(job.config.checkpoint.folder) && holder.ok() && holder->job_uid == job.job_uid) {
    const auto other =
        s3::other_holder(job.config.checkpoint.folder, s3::holder_name(job.job_uid, dump).value_or(job.job_uid));
    if (other) holder = *other;
  }
  if (!holder.ok() || holder->job_uid.empty()) return failure;
  return std::move(failure).with_members({{"holder_job", holder->job.empty() ? holder->job_uid : holder->job},
                                          {"holder_attempt", holder->attempt},
                                          {"same_job", holder->job_uid == job.job_uid}});
}

c10::intrusive_ptr<c10d::Store> connect_store(const RankJob& job, const std::shared_ptr<comm::LocalHub>& hub) {
  if (job.world == 1) return {};
  if (hub) return hub->store();
  const int64_t descriptors = host::raise_descriptor_limit();
  if (job.rank == 0) check(room_for_store(job.world, descriptors), rank_protocol::kExitBadConfig, "DESCRIPTORS");
  return comm::make_store({.host = job.store_host,
                           .port = job.store_port,
                           .server = job.rank == 0,
                           .listen_fd = job.rank == 0 ? job.listen_fd : std::nullopt,
                           .timeout = std::chrono::seconds(job.config.comm.init_timeout_seconds)});
}

// A seed that nobody set is drawn by rank 0, and is part of every rank's configuration from then on.
void settle_seed(RankContext& context) {
  std::optional<int64_t>& seed = context.config.debug.seed;
  if (seed) return;
  if (context.rank == 0) {
    seed = std::random_device()();
    if (context.store) context.store->set("seed", std::to_string(*seed));
  } else {
    seed = std::stoll(context.store->get_to_str("seed"));
  }
}

// Connects the store, settles the attempt and the seed and starts joining the groups on a thread of its own.
void rendezvous(const RankJob& job, const std::shared_ptr<comm::LocalHub>& hub, RankContext& context) {
  const c10::intrusive_ptr<c10d::Store> store = connect_store(job, hub);
  context.attempt = job.attempt;
  if (job.rank == 0) take_folder(job, context);
  if (store && job.attempt == 0) {
    if (job.rank == 0) {
      store->set("attempt", std::to_string(context.attempt));
    } else {
      context.attempt = std::stoi(store->get_to_str("attempt"));
    }
  }
  // A rank that comes late, of another attempt or of another job that had this port before, finds nothing here.
  if (store) context.store = comm::prefixed(store, absl::StrCat(job.job_uid, "/attempt-", context.attempt));
  settle_seed(context);

  const mesh::Mesh mesh = value(make_mesh(job.config.parallelism, job.world), rank_protocol::kExitBadConfig, "MESH");
  check(check_communicators(job.config, mesh, job.rank), rank_protocol::kExitBadConfig, "MESH");
  context.joining_mesh = std::async(std::launch::async, [&context, mesh, seconds = job.config.comm.init_timeout_seconds,
                                                         messages = messages_of(job.config.parallelism),
                                                         apart = axes_apart(job.config), options = job.config.comm] {
    const absl::Duration began = context.clock->monotonic();
    auto joined = std::make_unique<comm::DeviceMesh>(
        mesh, axes_of(mesh, context.config.optimizer), *context.device, context.ledger,
        comm::DeviceMeshOptions{.rank = context.rank,
                                .host = context.host,
                                .store = context.store,
                                .timeout = std::chrono::seconds(seconds),
                                .messages = messages,
                                .apart = apart,
                                .shared_memory = options.shared_memory,
                                .max_ctas = options.max_ctas,
                                .message_max_ctas = options.message_max_ctas,
                                .recorder = context.recorder.get(),
                                .spans = context.spans});
    context.joining_took = context.clock->monotonic() - began;
    return joined;
  });
}

void set_determinism(const config::Debug& debug) {
  if (!debug.deterministic) return;
  at::globalContext().setDeterministicAlgorithms(true, debug.deterministic_warn_only);
  at::globalContext().setDeterministicFillUninitializedMemory(
      false);  // Costs a pass over memory and fixes nothing here.
}

nlohmann::json to_json(const comm::LedgerCounts& counts) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [key, entry] : counts) json[key] = {{"calls", entry.calls}, {"bytes", entry.bytes}};
  return json;
}

// {dump}/config.json: what the newest attempt trains with, for whoever finds the folder. titanctl takes it as it is. A
// disk that has no room for it costs this file, not the job.
void save_config(const RankContext& context) {
  const std::string& folder = context.config.job.dump_folder;
  const absl::Status saved = storage::Fence(folder).publish(context.job_uid, context.attempt, [&] {
    return storage::atomic_write(storage::posix_files(), storage::join_path(folder, "config.json"),
                                 config::to_json(context.config).dump(2) + "\n");
  });
  if (storage::is_fenced(saved)) check(saved, rank_protocol::kExitFenced, "FENCED");
  if (!saved.ok()) context.reporter->warning(absl::StrCat("config.json is not saved: ", std::string(saved.message())));
}

// Calls and bytes of all collectives, and of the last step alone, for whoever compares them with the closed form.
void write_ledger(const RankContext& context, const Trainer& trainer) {
  std::ofstream file(absl::StrCat(context.run_folder, "/rank-", context.rank, ".ledger.json"));
  const nlohmann::json json = {{"step", trainer.step()},
                               {"last_step", to_json(trainer.last_step_traffic())},
                               {"total", to_json(context.ledger.counts())}};
  file << json.dump(1) << "\n";
}

// The mesh once it is there: another thread breaks it when another rank has failed.
using Connections = std::atomic<const comm::DeviceMesh*>;

// Whether the dump folder is there and this attempt's. Not under the fence's lock, for which all ranks would queue.
absl::Status has_folder(const RankContext& context) {
  TITAN_ASSIGN_OR_RETURN(const storage::Fence::Holder holder, storage::Fence(context.config.job.dump_folder).holder());
  if (holder.job_uid == context.job_uid && holder.attempt == context.attempt) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the dump folder ", context.config.job.dump_folder,
                                                    holder.job_uid.empty() ? " is gone" : " is another attempt's"));
}

// The newest calls in the run folder, also of a rank that hangs or is killed. A disk that has no room for them costs
// these, not the rank.
void attach_tail(RankContext& context) {
  absl::StatusOr<std::unique_ptr<rank_protocol::FlightTail>> tail = rank_protocol::FlightTail::create(
      rank_protocol::flight_tail_path(context.run_folder, context.rank), context.rank);
  if (tail.ok()) return context.recorder->attach(*std::move(tail));
  context.reporter->warning(
      absl::StrCat("if this rank hangs, what it did last will not be known: ", tail.status().message()));
}

// What this rank leaves of its collectives when the attempt fails. Null: it keeps no records.
std::shared_ptr<FlightDump> start_recorder(RankContext& context) {
  const config::Comm& config = context.config.comm;
  if (context.world == 1 || config.trace_buf_size == 0) return {};
  using Waits = comm::FlightRecorder::Waits;
  context.recorder = std::make_shared<comm::FlightRecorder>(
      config.trace_buf_size, context.device->torch_device().is_cuda() ? Waits::kQueueUp : Waits::kEndIt);
  attach_tail(context);
  const std::string prefix = absl::StrCat(storage::join_path(context.config.job.dump_folder, config.save_traces_folder),
                                          "/", config.save_traces_file_prefix);
  return std::make_shared<FlightDump>(
      FlightDump::Setup{.recorder = context.recorder, .prefix = prefix, .rank = context.rank, .admit = [&context] {
                          return has_folder(context);
                        }});
}

Failure name_recordings(const std::shared_ptr<FlightDump>& file, Failure failure, Reporter& reporter) {
  if (!file) return failure;
  if (const absl::Status status = file->status(); !status.ok()) {
    reporter.warning(absl::StrCat("this rank's last collectives are not recorded: ", status.message()));
  }
  return file->name_in(std::move(failure));
}

constexpr absl::Duration kLookPatience = absl::Seconds(6);  // For this rank's threads to be looked at.

std::unique_ptr<FailureWatch> watch_others(RankContext& context, Connections& connections,
                                           const std::shared_ptr<FlightDump>& recordings) {
  FailureWatch::Setup setup;
  setup.rank = context.rank;
  setup.world = context.world;
  setup.store = context.store;
  setup.expect_broken = comm::hold_watchdogs;
  // LibTorch can abort NCCL's groups only: Gloo's connections end with the process.
  setup.break_connections = [&connections, can_abort = context.device->torch_device().is_cuda()] {
    const comm::DeviceMesh* mesh = connections;
    if (mesh == nullptr || !can_abort) return false;
    mesh->abort();
    return true;
  };
  if (recordings) setup.record = [recordings] { recordings->write(); };
  // Nobody looks at ranks without a shim.
  if (std::getenv(rank_protocol::kStacksVariable) != nullptr) {
    setup.show_stacks = [&context] { context.reporter->await_look(kLookPatience); };
  }
  setup.leave = [&context, recordings](const Failure& failure) {
    report_failure(name_recordings(recordings, failure, *context.reporter), "titan-rank", context.reporter.get());
    if (context.hold) context.hold->release();
    std::fflush(nullptr);
    std::_Exit(failure.exit_code());
  };
  auto watch = std::make_unique<FailureWatch>(std::move(setup));
  comm::before_watchdogs_end(watch->record_first());
  comm::before_gloo_aborts([leave = watch->fail_and_leave()](const std::string& words) {
    leave(Failure(rank_protocol::kExitInternal, kCollectiveMismatch, words));
  });
  return watch;
}

// What must be settled before the device is opened: its allocator reads its settings once, and its helper threads run
// where this one runs.
void prepare_node(const RankJob& job, Reporter& reporter) {
  const bool on_gpu = job.config.resources.device == "cuda";
  if (on_gpu) device::set_segments(job.config.resources.expandable_segments);
  if (!wants_pinning(job.config.resources)) return;
  std::vector<std::string> gpus;
  if (on_gpu) {
    gpus = comm::cuda_addresses();
    gpus.resize(static_cast<size_t>(job.local_ranks));  // One that is not there is opened, and told of, later.
  }
  const Pinned pinned = pin_rank(job.config.resources.pin_cpus, job.local_rank, job.local_ranks, gpus, linux_placing());
  log_line(absl::StrCat("rank ", job.rank, " ", pinned.words));
  if (!pinned.warning.empty()) reporter.warning(absl::StrCat("rank ", job.rank, ": ", pinned.warning));
}

// From the first event to the last. `watch` begins once there is a store.
ExitCode train(const RankJob& job, const std::shared_ptr<comm::LocalHub>& hub, double before_main, RankContext& context,
               std::unique_ptr<Trainer>& trainer, std::unique_ptr<FailureWatch>& watch, Connections& connections,
               std::shared_ptr<FlightDump>& recordings) {
  context.reporter =
      value(Reporter::open(job.run_folder, job.rank, *context.clock), rank_protocol::kExitStorage, "RUN_FOLDER");
  context.reporter->event(rank_protocol::event::kStarted, {{"pid", getpid()}});
  for (const std::string& warning : job.warnings) {
    if (job.rank == 0) context.reporter->warning(warning);
  }
  if (job.config.resources.device == "cpu") choose_cpu_kernels(job, host::hostname());
  set_determinism(job.config.debug);
  check(load_job_library(job.config), rank_protocol::kExitBadConfig, "LIBRARY");
  if (!hub) prepare_node(job, *context.reporter);
  context.device = hub ? comm::make_local_device(hub)
                       : value(comm::make_device(job.config.resources.device, job.local_rank),
                               rank_protocol::kExitBadConfig, "DEVICE");
  if (context.device->torch_device().is_cuda()) {
    choose_gpu_kernels(job);
    nn::set_cuda_capability(context.device->cuda_capability());
  }
  nn::multiply_groups_at_once(context.device->has_grouped_kernel());
  context.ledger.mirror_sequence(context.reporter->collective_sequence());
  context.reporter->enter_start_phase(Phase::kRendezvous, before_main);
  recordings = start_recorder(context);
  rendezvous(job, hub, context);
  if (!hub) context.device->seed(static_cast<uint64_t>(*context.config.debug.seed));
  if (context.store && !hub) watch = watch_others(context, connections, recordings);
  if (job.rank == 0) {
    save_config(context);
    check(config::report(context.config), rank_protocol::kExitStorage, "SAVE_CONFIG");
  }
  context.reporter->enter_start_phase(Phase::kBuild);
  trainer = std::make_unique<Trainer>(context);
  connections = context.mesh.get();
  const ExitCode code = trainer->run();
  write_ledger(context, *trainer);
  return code;
}

}  // namespace

std::unique_ptr<RankContext> make_context(const RankJob& job, const std::atomic<bool>* stop_signal) {
  auto context = std::make_unique<RankContext>();
  context->config = job.config;
  context->job_uid = job.job_uid;
  context->rank = job.rank;
  context->world = job.world;
  context->local_rank = job.local_rank;
  context->host = job.host;
  context->run_folder = job.run_folder;
  context->leads_process = job.mode == CommMode::kProcesses || job.rank == 0;
  context->clock = &system_clock();
  context->stop_signal = stop_signal;
  return context;
}

ExitCode run_rank(const RankJob& job, const std::shared_ptr<comm::LocalHub>& hub, double before_main,
                  RankContext& context, std::unique_ptr<Trainer>& trainer) {
  auto* connections = new Connections(nullptr);  // For as long as the context, which outlives every failure.
  std::unique_ptr<FailureWatch> watch;
  std::shared_ptr<FlightDump> recordings;
  try {
    const ExitCode code = train(job, hub, before_main, context, trainer, watch, *connections, recordings);
    if (context.hold) context.hold->release();
    return code;
  } catch (...) {
    Failure failure = current_failure();
    *connections = context.mesh.get();
    if (watch) failure = watch->failed(failure);
    if (recordings && !watch) recordings->write();
    failure = with_holder(job, std::move(failure));
    if (recordings) failure = name_recordings(recordings, std::move(failure), *context.reporter);
    if (context.hold) context.hold->release();
    throw failure;
  }
}

void report_failure(const Failure& failure, const std::string& who, Reporter* reporter) {
  if (!failure.details().empty()) std::fprintf(stderr, "%s\n", failure.details().c_str());
  const std::string recording = failure.members().value("recording", "");
  if (!recording.empty()) std::fprintf(stderr, "%s: last collectives: %s\n", who.c_str(), recording.c_str());
  std::fprintf(stderr, "%s: %s: %s\n", who.c_str(), failure.reason().c_str(), failure.what());
  if (reporter == nullptr) return;
  nlohmann::json members = failure.members();
  members.update({{"class", failure.error_class()}, {"reason", failure.reason()}, {"message", failure.what()}});
  reporter->event(rank_protocol::event::kError, std::move(members));
}

}  // namespace titan::runtime
