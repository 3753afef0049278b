#pragma once

#include <atomic>
#include <future>
#include <memory>
#include <string>

#include "common/io/storage/fence.h"
#include "common/plan/config/job_config.h"
#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/runtime/step/reporter.h"
#include "worker/rank/trace/spans.h"

namespace titan::runtime {

// Everything of one rank; nothing is global, so that several ranks can live in one process.
struct RankContext {
  config::JobConfig config;  // Resolved.
  std::string job_uid;
  int attempt = 1;
  int rank = 0;
  int world = 1;
  int local_rank = 0;
  std::string host = "127.0.0.1";  // Where other ranks reach this one.
  std::string run_folder;
  // Rank 0: the newest full step that is known to have been committed in the checkpoint folder (-1: none), and whether
  // that was another job's doing.
  int64_t committed_step = -1;
  bool committed_by_another_job = false;
  // False for all but the first of ranks that share a process: their metrics do not go to stdout, and no profiler
  // records them.
  bool leads_process = true;

  const Clock* clock = nullptr;
  std::unique_ptr<Reporter> reporter;
  std::unique_ptr<storage::FenceLease> hold;  // Rank 0: of the dump folder.
  std::unique_ptr<device::Device> device;
  comm::Ledger ledger;
  std::shared_ptr<comm::FlightRecorder> recorder;  // Null: nothing is recorded.
  // What goes on beside the rank's thread, while its steps are traced.
  std::shared_ptr<trace::Spans> spans = std::make_shared<trace::Spans>();
  c10::intrusive_ptr<c10d::Store> store;  // This attempt's keys; null in a world of one.
  // Being joined by a thread of its own while the model is built; taken once by the trainer.
  std::future<std::unique_ptr<comm::DeviceMesh>> joining_mesh;
  absl::Duration joining_took;  // Written before the mesh is there.
  std::unique_ptr<comm::DeviceMesh> mesh;
  const std::atomic<bool>* stop_signal = nullptr;  // SIGTERM arrived: save and stop at the next step edge. May be null.
};

}  // namespace titan::runtime
