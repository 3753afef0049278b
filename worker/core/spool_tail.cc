#include "worker/core/spool_tail.h"

namespace titan::node {

bool SpoolTail::take(std::vector<SpoolLine>& lines, int64_t next_offset) {
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].sequence != sent_.sequence + 1) {
      lines.resize(i);
      return false;
    }
    sent_ = {lines[i].end_offset, lines[i].sequence};
    in_flight_.push_back(sent_);
  }
  if (next_offset <= sent_.offset) return true;
  // Bytes after the last event that are none: the rest of a line that was cut.
  sent_.offset = next_offset;
  (in_flight_.empty() ? acknowledged_ : in_flight_.back()).offset = next_offset;
  return true;
}

bool SpoolTail::acknowledge(int64_t sequence) {
  bool moved = false;
  while (!in_flight_.empty() && in_flight_.front().sequence <= sequence) {
    acknowledged_ = in_flight_.front();
    in_flight_.pop_front();
    moved = true;
  }
  return moved;
}

void SpoolTail::rewind() {
  in_flight_.clear();
  sent_ = acknowledged_;
}

}  // namespace titan::node
