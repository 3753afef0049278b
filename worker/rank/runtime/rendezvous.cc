#include "worker/rank/runtime/rendezvous.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "common/base/host/descriptor_limit.h"
#include "worker/rank/comm/store.h"
#include "worker/rank/runtime/dump_folder.h"
#include "worker/rank/runtime/failure/failure.h"
#include "worker/rank/runtime/step/parallel_setup.h"
#include "worker/rank/runtime/step/store_room.h"

namespace titan::runtime {
namespace {

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

}  // namespace titan::runtime
