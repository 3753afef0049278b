#include "worker/node/core/spool_tail.h"

namespace titan::node {

std::vector<SpoolTail::Gap> SpoolTail::take(std::vector<SpoolEvent>& lines, int64_t start, int64_t next_offset,
                                            bool is_last) {
  if (start != sent_.offset) skip_to(start);
  std::vector<SpoolEvent> taken;
  std::vector<Gap> gaps;
  for (size_t i = 0; i < lines.size(); ++i) {
    const int64_t number = lines[i].sequence, wanted = sent_.sequence + 1;
    const bool jumps = number > wanted, has_next = i + 1 < lines.size();
    if (jumps && !has_next && !is_last) {
      next_offset = sent_.offset;
      break;
    }
    const bool believed = !jumps || !has_next || lines[i + 1].sequence > number;
    if (number < wanted || !believed) {
      skip_to(lines[i].end_offset);
      continue;
    }
    if (jumps) gaps.push_back({sent_.offset, wanted, number - 1});
    sent_ = {lines[i].end_offset, number};
    in_flight_.push_back(sent_);
    taken.push_back(std::move(lines[i]));
  }
  lines = std::move(taken);
  skip_to(next_offset);
  return gaps;
}

// Skips bytes after the last event that contain no event.
void SpoolTail::skip_to(int64_t offset) {
  sent_.offset = offset;
  (in_flight_.empty() ? acknowledged_ : in_flight_.back()).offset = offset;
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
