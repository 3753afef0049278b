// titan-rank: one rank of a training job. Contract: common/rank_protocol and docs/ARCHITECTURE.md, "Rank contract".

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/util/Logging.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/config/report.h"
#include "common/config/validate.h"
#include "common/rank_protocol/launch.h"
#include "common/storage/fence.h"
#include "worker/comm/store.h"
#include "worker/runtime/cpu_memory.h"
#include "worker/runtime/failure.h"
#include "worker/runtime/options.h"
#include "worker/runtime/trainer.h"

namespace titan::runtime {
namespace {

using rank_protocol::ExitCode;
using rank_protocol::Phase;

// Set by SIGTERM and the first Ctrl-C; read at step edges.
std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_requested.store(true); };
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);  // A second Ctrl-C kills.
  sigaction(SIGINT, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

// Activations are allocated and freed in the same pattern every step. By default malloc gives large ones back to the
// kernel and takes a page fault for each page of the next; these settings keep them (a debug step: 9.5 -> 8.2 s).
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_TOP_PAD, 64 << 20);

  // The first pass over the heap then takes a page fault for each 2 MiB instead of each 4 KiB (50,000 fewer before the
  // first step). Only addresses are taken here; the allocation becomes the top of the heap again.
  constexpr size_t kHeap = 960 << 20;
  constexpr uintptr_t kHugePage = 2 << 20;
  if (void* heap = std::malloc(kHeap)) {
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(heap) + kHugePage - 1) / kHugePage * kHugePage;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(heap) + kHeap) / kHugePage * kHugePage;
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // A kernel without them goes on as before.
    std::free(heap);
  }
}

// Seconds since this process was started, to the kernel's 10 ms.
double seconds_since_exec() {
  std::ifstream stat("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(stat)), {});
  const size_t name_end = text.rfind(')');  // The name may hold spaces.
  std::ifstream uptime_file("/proc/uptime");
  double uptime = 0;
  if (name_end == std::string::npos || !(uptime_file >> uptime)) return 0;
  std::istringstream fields(text.substr(name_end + 2));
  std::string field;
  for (int i = 0; i < 20; ++i) fields >> field;  // Field 22 counted from the process id.
  return std::max(0.0, uptime - std::strtod(field.c_str(), nullptr) / static_cast<double>(sysconf(_SC_CLK_TCK)));
}

// Takes the dump folder over for this attempt, before anything in it is read. By hand the number follows the last one.
int raise_fence(const RankJob& job) {
  const storage::Fence fence(job.config.job.dump_folder);
  int attempt = job.attempt;
  if (attempt == 0) {
    const auto holder = value(fence.holder(), rank_protocol::kExitStorage, "FENCE");
    const auto former = holder.former.find(job.job_uid);
    attempt = 1;
    if (holder.job_uid == job.job_uid) attempt = holder.attempt + 1;
    if (former != holder.former.end()) attempt = std::max(attempt, former->second + 1);
  }
  const absl::Status raised = fence.raise(job.job_uid, attempt);
  if (absl::IsFailedPrecondition(raised)) {
    throw Failure(rank_protocol::kExitFenced, "FENCED", std::string(raised.message()));
  }
  check(raised, rank_protocol::kExitStorage, "FENCE");
  return attempt;
}

// Connects the store, settles the attempt and starts joining the groups on a thread of its own.
void rendezvous(const RankJob& job, RankContext& context) {
  const std::chrono::milliseconds timeout = std::chrono::seconds(job.config.comm.init_timeout_seconds);
  c10::intrusive_ptr<c10d::Store> store;
  if (job.world > 1) {
    store = comm::make_store({.host = job.store_host,
                              .port = job.store_port,
                              .server = job.rank == 0,
                              .listen_fd = job.rank == 0 ? job.listen_fd : std::nullopt,
                              .timeout = timeout});
  }
  context.attempt = job.attempt;
  if (job.rank == 0) context.attempt = raise_fence(job);
  if (store && job.attempt == 0) {
    if (job.rank == 0) {
      store->set("attempt", std::to_string(context.attempt));
    } else {
      context.attempt = std::stoi(store->get_to_str("attempt"));
    }
  }
  if (store) context.store = comm::prefixed(store, absl::StrCat("attempt-", context.attempt));

  const config::Parallelism& parallelism = job.config.parallelism;
  const mesh::Degrees degrees{.pp = parallelism.pipeline_parallel_degree,
                              .dp_replicate = parallelism.data_parallel_replicate_degree,
                              .dp_shard = parallelism.data_parallel_shard_degree,
                              .cp = parallelism.context_parallel_degree,
                              .tp = parallelism.tensor_parallel_degree,
                              .ep = parallelism.expert_parallel_degree,
                              .etp = parallelism.expert_tensor_parallel_degree};
  const mesh::Mesh mesh = value(mesh::Mesh::create(degrees, job.world), rank_protocol::kExitBadConfig, "MESH");
  context.joining_mesh = std::async(std::launch::async, [&context, mesh, timeout] {
    using mesh::Axis;
    return std::make_unique<comm::DeviceMesh>(
        mesh, std::set<Axis>{Axis::kFsdp, Axis::kReplicate, Axis::kBatch, Axis::kWorld}, *context.device,
        context.ledger,
        comm::DeviceMeshOptions{
            .rank = context.rank, .host = context.host, .store = context.store, .timeout = timeout});
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

// Calls and bytes of all collectives, and of the last step alone, for whoever compares them with the closed form.
void write_ledger(const RankContext& context, const Trainer& trainer) {
  std::ofstream file(absl::StrCat(context.run_folder, "/rank-", context.rank, ".ledger.json"));
  const nlohmann::json json = {{"step", trainer.step()},
                               {"last_step", to_json(trainer.last_step_traffic())},
                               {"total", to_json(context.ledger.counts())}};
  file << json.dump(1) << "\n";
}

ExitCode train(const RankJob& job, RankContext& context, std::unique_ptr<Trainer>& trainer) {
  const double before_main = seconds_since_exec();
  context.reporter->event(rank_protocol::event::kStarted, {{"pid", getpid()}});
  for (const std::string& warning : job.warnings) {
    if (job.rank == 0) context.reporter->warning(warning);
  }
  set_determinism(job.config.debug);
  context.device =
      value(comm::make_device(job.config.resources.device, job.local_rank), rank_protocol::kExitBadConfig, "DEVICE");
  context.ledger.mirror_sequence(context.reporter->collective_sequence());
  context.reporter->enter_start_phase(Phase::kRendezvous, before_main);
  rendezvous(job, context);
  if (job.rank == 0) check(config::report(job.config), rank_protocol::kExitStorage, "SAVE_CONFIG");
  context.reporter->enter_start_phase(Phase::kBuild);
  trainer = std::make_unique<Trainer>(context);
  const ExitCode code = trainer->run();
  write_ledger(context, *trainer);
  return code;
}

// Ends the process without destructors: after a failure they would wait for ranks that are gone.
[[noreturn]] void leave(int code) {
  std::fflush(nullptr);
  std::_Exit(code);
}

[[noreturn]] void leave_failed(const Failure& failure, Reporter* reporter) {
  if (!failure.details().empty()) std::fprintf(stderr, "%s\n", failure.details().c_str());
  std::fprintf(stderr, "titan-rank: %s: %s\n", failure.reason().c_str(), failure.what());
  if (reporter != nullptr) {
    reporter->event(rank_protocol::event::kError,
                    {{"class", failure.error_class()}, {"reason", failure.reason()}, {"message", failure.what()}});
  }
  leave(failure.exit_code());
}

int run(const std::vector<std::string>& words) {
  const absl::StatusOr<Options> options = parse_options(words);
  if (!options.ok()) {
    std::fprintf(stderr, "titan-rank: %s\n\n%s", std::string(options.status().message()).c_str(), kUsage);
    return rank_protocol::kExitUsage;
  }
  if (options->help) {
    std::fputs(kUsage, stdout);
    return rank_protocol::kExitFinished;
  }
  const absl::StatusOr<RankJob> job = read_job(*options);
  if (!job.ok()) {
    // The node learns of it too when it gave a run folder.
    std::unique_ptr<Reporter> reporter;
    if (!options->run_folder.empty()) {
      auto opened = Reporter::open(options->run_folder, options->rank.value_or(0), system_clock());
      if (opened.ok()) reporter = *std::move(opened);
    }
    leave_failed(Failure(rank_protocol::kExitBadConfig, "BAD_CONFIG", std::string(job.status().message())),
                 reporter.get());
  }
  at::set_num_threads(job->threads);  // Before the first operation: a thread that has computed keeps its number.

  // Not destroyed on failure, see leave().
  auto* context = new RankContext;
  auto* trainer = new std::unique_ptr<Trainer>;
  context->config = job->config;
  context->job_uid = job->job_uid;
  context->rank = job->rank;
  context->world = job->world;
  context->local_rank = job->local_rank;
  context->host = job->host;
  context->run_folder = job->run_folder;
  context->clock = &system_clock();
  context->stop_signal = &stop_requested;
  try {
    context->reporter =
        value(Reporter::open(job->run_folder, job->rank, *context->clock), rank_protocol::kExitStorage, "RUN_FOLDER");
    const ExitCode code = train(*job, *context, *trainer);
    trainer->reset();  // Closes the outputs.
    leave(code);
  } catch (...) {
    leave_failed(current_failure(), context->reporter.get());
  }
}

}  // namespace
}  // namespace titan::runtime

int main(int argc, char** argv) {
  // A peer that is gone is this rank's own error with one line; LibTorch would add a C++ stack as a warning.
  setenv("TORCH_CPP_LOG_LEVEL", "ERROR", /*overwrite=*/0);
  c10::initLogging();
  titan::runtime::keep_freed_memory();
  titan::runtime::use_cpu_memory();
  titan::runtime::install_signal_handlers();
  return titan::runtime::run({argv + 1, argv + argc});
}
