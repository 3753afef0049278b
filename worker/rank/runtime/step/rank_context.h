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

// State of one rank. Nothing is global, so that several ranks can live in one process.
struct RankContext {
  config::JobConfig config;  // Resolved.
  std::string job_uid;
  int attempt = 1;
  int rank = 0;
  int world = 1;
  int local_rank = 0;
  std::string host = "127.0.0.1";  // Address at which other ranks reach this one.
  std::string run_folder;
  // Rank 0: the newest full step known to be committed in the checkpoint folder (-1: none), and whether another job
  // committed it.
  int64_t committed_step = -1;
  bool committed_by_another_job = false;
  // True for the first of the ranks that share a process. Only its metrics go to stdout, and only it is profiled.
  bool leads_process = true;

  const Clock* clock = nullptr;
  std::unique_ptr<Reporter> reporter;
  std::unique_ptr<storage::FenceLease> hold;  // Rank 0: hold on the dump folder.
  std::unique_ptr<device::Device> device;
  comm::Ledger ledger;
  std::shared_ptr<comm::FlightRecorder> recorder;  // Null: nothing is recorded.
  // Records work outside the rank's thread while its steps are traced.
  std::shared_ptr<trace::SpanRecorder> spans = std::make_shared<trace::SpanRecorder>();
  c10::intrusive_ptr<c10d::Store> store;  // Keys of this attempt. Null in a world of one.
  // A separate thread joins it while the model is built. The trainer takes it once.
  std::future<std::unique_ptr<comm::DeviceMesh>> joining_mesh;
  absl::Duration joining_took;  // Written before the mesh is ready.
  std::unique_ptr<comm::DeviceMesh> mesh;
  const std::atomic<bool>* stop_signal = nullptr;  // SIGTERM: save and stop at the next step boundary. May be null.
};

}  // namespace titan::runtime
