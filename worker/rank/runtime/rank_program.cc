#include "worker/rank/runtime/rank_program.h"

#include <ATen/Context.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/base/host/descriptor.h"
#include "common/base/host/host_facts.h"
#include "common/plan/config/json.h"
#include "common/rank_protocol/launch.h"
#include "nlohmann/json.hpp"
#include "worker/rank/comm/backend_aborts.h"
#include "worker/rank/comm/make_device.h"
#include "worker/rank/comm/store.h"
#include "worker/rank/device/allocator_settings.h"
#include "worker/rank/nn/low_precision/recipes.h"
#include "worker/rank/nn/row_groups.h"
#include "worker/rank/runtime/dump_folder.h"
#include "worker/rank/runtime/failure/failure_watch.h"
#include "worker/rank/runtime/resources.h"
#include "worker/rank/runtime/step/job_model.h"
#include "worker/rank/runtime/step/parallel_setup.h"

namespace titan::runtime {

using rank_protocol::ExitCode;
using rank_protocol::Phase;

namespace {

void set_determinism(const config::DebugSection& debug) {
  if (!debug.deterministic) return;
  at::globalContext().setDeterministicAlgorithms(true, debug.deterministic_warn_only);
  at::globalContext().setDeterministicFillUninitializedMemory(
      false);  // Costs a pass over memory and changes no result.
}

nlohmann::json to_json(const comm::LedgerCounts& counts) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [key, entry] : counts) json[key] = {{"calls", entry.calls}, {"bytes", entry.bytes}};
  return json;
}

// Writes calls and bytes of all collectives, and of the last step alone, for comparison with the closed form.
void write_ledger(const RankContext& context, const Trainer& trainer) {
  std::ofstream file(absl::StrCat(context.run_folder, "/rank-", context.rank, ".ledger.json"));
  const nlohmann::json json = {{"step", trainer.step()},
                               {"last_step", to_json(trainer.last_step_traffic())},
                               {"total", to_json(context.ledger.counts())}};
  file << json.dump(1) << "\n";
}

// The mesh, once it exists. Another thread breaks its connections when another rank has failed.
using Connections = std::atomic<const comm::DeviceMesh*>;

constexpr absl::Duration kStacksTimeout = absl::Seconds(6);  // For capturing the stacks of this rank's threads.

std::unique_ptr<FailureWatch> watch_others(RankContext& context, Connections& connections,
                                           const std::shared_ptr<FlightDump>& recordings) {
  FailureWatch::Setup setup;
  setup.rank = context.rank;
  setup.world = context.world;
  setup.store = context.store;
  setup.expect_broken = comm::hold_watchdogs;
  // LibTorch can abort only NCCL's groups. Gloo's connections end with the process.
  setup.break_connections = [&connections, can_abort = context.device->torch_device().is_cuda()] {
    const comm::DeviceMesh* mesh = connections;
    if (mesh == nullptr || !can_abort) return false;
    mesh->abort();
    return true;
  };
  if (recordings) setup.record = [recordings] { recordings->write(); };
  // Without a shim there is nothing that captures stacks.
  if (std::getenv(rank_protocol::kStacksVariable) != nullptr) {
    setup.show_stacks = [&context] { context.reporter->await_stacks(kStacksTimeout); };
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

// Applies settings that must precede opening the device: its allocator reads its settings once, and its helper threads
// inherit this thread's CPUs.
void prepare_node(const RankJob& job, Reporter& reporter) {
  const bool on_gpu = job.config.resources.device == "cuda";
  if (on_gpu) device::set_segments(job.config.resources.expandable_segments);
  if (!wants_pinning(job.config.resources)) return;
  std::vector<std::string> gpus;
  if (on_gpu) {
    gpus = comm::cuda_addresses();
    gpus.resize(static_cast<size_t>(job.local_ranks));  // A missing GPU is opened, and reported, later.
  }
  const Pinned pinned = pin_rank(job.config.resources.pin_cpus, job.local_rank, job.local_ranks, gpus, linux_placing());
  log_line(absl::StrCat("rank ", job.rank, " ", pinned.words));
  if (!pinned.warning.empty()) reporter.warning(absl::StrCat("rank ", job.rank, ": ", pinned.warning));
}

// One rank from its first event to its last, including what must be reported if it fails.
class RankSession {
 public:
  RankSession(const RankJob& job, std::shared_ptr<comm::LocalHub> hub, RankContext& context)
      : job_(job), hub_(std::move(hub)), context_(context) {}

  void begin(double before_main);
  ExitCode train(std::unique_ptr<Trainer>& trainer);
  // Notifies the other ranks and adds the name of this rank's recorded collectives.
  Failure failed(Failure failure);

 private:
  void open_device();

  const RankJob& job_;
  const std::shared_ptr<comm::LocalHub> hub_;  // Null if the rank is a process.
  RankContext& context_;
  Connections& connections_ = *new Connections(nullptr);  // Lives as long as the context, which outlives every failure.
  std::shared_ptr<FlightDump> recordings_;
  std::unique_ptr<FailureWatch> watch_;  // Exists once there is a store.
};

// Runs until the ranks have found each other.
void RankSession::begin(double before_main) {
  context_.reporter =
      value(Reporter::open(job_.run_folder, job_.rank, *context_.clock), rank_protocol::kExitStorage, "RUN_FOLDER");
  context_.reporter->event(rank_protocol::event::kStarted, {{"pid", getpid()}});
  for (const std::string& warning : job_.warnings) {
    if (job_.rank == 0) context_.reporter->warning(warning);
  }
  if (job_.config.resources.device == "cpu") choose_cpu_kernels(job_, host::hostname());
  set_determinism(job_.config.debug);
  check(load_job_library(job_.config), rank_protocol::kExitBadConfig, "LIBRARY");
  open_device();
  context_.ledger.mirror_sequence(context_.reporter->collective_sequence());
  context_.reporter->enter_start_phase(Phase::kRendezvous, before_main);
  recordings_ = start_recordings(context_);
  rendezvous(job_, hub_, context_);
  if (!hub_) context_.device->seed(static_cast<uint64_t>(*context_.config.debug.seed));
  if (context_.store && !hub_) watch_ = watch_others(context_, connections_, recordings_);
}

void RankSession::open_device() {
  if (!hub_) prepare_node(job_, *context_.reporter);
  context_.device = hub_ ? comm::make_local_device(hub_)
                         : value(comm::make_device(job_.config.resources.device, job_.local_rank),
                                 rank_protocol::kExitBadConfig, "DEVICE");
  if (context_.device->torch_device().is_cuda()) {
    choose_gpu_kernels(job_);
    nn::set_cuda_capability(context_.device->cuda_capability());
  }
  nn::set_use_grouped_gemm(context_.device->has_grouped_kernel());
}

ExitCode RankSession::train(std::unique_ptr<Trainer>& trainer) {
  if (job_.rank == 0) {
    save_config(context_);
    check(config::report(context_.config), rank_protocol::kExitStorage, "SAVE_CONFIG");
  }
  context_.reporter->enter_start_phase(Phase::kBuild);
  trainer = std::make_unique<Trainer>(context_);
  connections_ = context_.mesh.get();
  const ExitCode code = trainer->run();
  write_ledger(context_, *trainer);
  return code;
}

Failure RankSession::failed(Failure failure) {
  connections_ = context_.mesh.get();
  if (watch_) failure = watch_->failed(failure);
  if (recordings_ && !watch_) recordings_->write();
  failure = with_holder(job_, std::move(failure));
  return recordings_ ? name_recordings(recordings_, std::move(failure), *context_.reporter) : failure;
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
  RankSession session(job, hub, context);
  try {
    session.begin(before_main);
    const ExitCode code = session.train(trainer);
    if (context.hold) context.hold->release();
    return code;
  } catch (...) {
    const Failure failure = session.failed(current_failure());
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

namespace {

c10::intrusive_ptr<c10d::Store> connect_store(const RankJob& job, const std::shared_ptr<comm::LocalHub>& hub) {
  if (job.world == 1) return {};
  if (hub) return hub->store();
  const int64_t descriptors = host::raise_descriptor_limit();
  if (job.rank == 0) check(check_fd_limit(job.world, descriptors), rank_protocol::kExitBadConfig, "DESCRIPTORS");
  return comm::make_store({.host = job.store_host,
                           .port = job.store_port,
                           .server = job.rank == 0,
                           .listen_fd = job.rank == 0 ? job.listen_fd : std::nullopt,
                           .timeout = std::chrono::seconds(job.config.comm.init_timeout_seconds)});
}

// Rank 0 draws a seed if none is set. The seed becomes part of every rank's configuration.
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

}  // namespace

void rendezvous(const RankJob& job, const std::shared_ptr<comm::LocalHub>& hub, RankContext& context) {
  const c10::intrusive_ptr<c10d::Store> store = connect_store(job, hub);
  context.attempt = job.attempt;
  if (job.rank == 0) take_dump_folder(job, context);
  if (store && job.attempt == 0) {
    if (job.rank == 0) {
      store->set("attempt", std::to_string(context.attempt));
    } else {
      context.attempt = std::stoi(store->get_to_str("attempt"));
    }
  }
  // The prefix hides these keys from a late rank of another attempt, and from another job that used this port before.
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

}  // namespace titan::runtime
