#include "worker/rank/runtime/profiling/trace_desk.h"

#include <algorithm>

#include "common/rank_protocol/spool.h"

namespace titan::runtime {

using rank_protocol::TraceState;

TraceDesk::TraceDesk(rank_protocol::TraceWords& words, std::string run_folder, int rank)
    : words_(words), run_folder_(std::move(run_folder)), rank_(rank) {
  words_.takes_requests.store(1, std::memory_order_release);
}

std::optional<TraceDesk::Order> TraceDesk::take(int64_t step) {
  const uint64_t request = words_.request.load(std::memory_order_acquire);
  if (request == taken_) return std::nullopt;
  const int64_t wanted = words_.first_step.load(std::memory_order_relaxed);
  if (step + 1 < wanted) return std::nullopt;
  Order order;
  order.first_step = std::max(wanted, step + 1);
  order.last_step = order.first_step + std::max<int64_t>(1, words_.steps.load(std::memory_order_relaxed)) - 1;
  order.path = rank_protocol::trace_path(run_folder_, rank_, request);
  words_.recorded_first.store(order.first_step, std::memory_order_relaxed);
  words_.recorded_last.store(order.last_step, std::memory_order_relaxed);
  tell(TraceState::kWaiting);
  words_.taken.store(request, std::memory_order_release);
  taken_ = request;
  return order;
}

void TraceDesk::tell(TraceState state) { words_.state.store(static_cast<uint32_t>(state), std::memory_order_release); }

void TraceDesk::written(int64_t last_step) {
  words_.recorded_last.store(last_step, std::memory_order_relaxed);
  tell(TraceState::kWritten);
}

}  // namespace titan::runtime
