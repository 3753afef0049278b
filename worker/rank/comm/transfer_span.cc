#include "worker/rank/comm/transfer_span.h"

#include <algorithm>

namespace titan::comm {

void TransferSpan::wait_begins(c10d::Work& work) {
  transfer_.wait_ns = trace::now_ns();
  if (work.isCompleted()) transfer_.end_ns = std::max(transfer_.wait_ns, trace::now_ns());
}

void TransferSpan::wait_ended() {
  transfer_.waited_ns = trace::now_ns();
  if (transfer_.end_ns == 0) transfer_.end_ns = transfer_.waited_ns;
  spans_->add(std::move(transfer_));
}

}  // namespace titan::comm
