#include "worker/rank/runtime/recordings.h"

#include "absl/strings/str_cat.h"
#include "common/rank_protocol/flight_tail.h"
#include "common/rank_protocol/spool.h"
#include "worker/rank/runtime/dump_folder.h"

namespace titan::runtime {
namespace {

// The newest calls in the run folder, also of a rank that hangs or is killed. A disk that has no room for them costs
// these, not the rank.
void attach_tail(RankContext& context) {
  absl::StatusOr<std::unique_ptr<rank_protocol::FlightTail>> tail = rank_protocol::FlightTail::create(
      rank_protocol::flight_tail_path(context.run_folder, context.rank), context.rank);
  if (tail.ok()) return context.recorder->attach(*std::move(tail));
  context.reporter->warning(
      absl::StrCat("if this rank hangs, what it did last will not be known: ", tail.status().message()));
}

}  // namespace

std::shared_ptr<FlightDump> start_recordings(RankContext& context) {
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
                          return has_dump_folder(context);
                        }});
}

Failure name_recordings(const std::shared_ptr<FlightDump>& dump, Failure failure, Reporter& reporter) {
  if (!dump) return failure;
  if (const absl::Status status = dump->status(); !status.ok()) {
    reporter.warning(absl::StrCat("this rank's last collectives are not recorded: ", status.message()));
  }
  return dump->name_in(std::move(failure));
}

}  // namespace titan::runtime
