#include "worker/daemon/spool_tail.h"

#include "absl/strings/str_cat.h"

namespace titan::daemon {
namespace {

constexpr int64_t kWindowBytes = 4 << 20;
constexpr int64_t kBatchBytes = 256 << 10;

}  // namespace

absl::StatusOr<std::vector<rank_protocol::SpoolLine>> SpoolTail::next() {
  std::vector<rank_protocol::SpoolLine> lines;
  if (sent_.offset - acknowledged_.offset >= kWindowBytes) return lines;
  absl::StatusOr<rank_protocol::SpoolBatch> batch = rank_protocol::read_spool(path_, sent_.offset, kBatchBytes);
  if (absl::IsNotFound(batch.status())) return lines;
  if (!batch.ok()) return batch.status();
  for (rank_protocol::SpoolLine& line : batch->lines) {
    if (line.sequence != sent_.sequence + 1) {
      return absl::DataLossError(absl::StrCat("spool ", path_, ": event ", line.sequence, " follows ", sent_.sequence));
    }
    sent_ = {line.end_offset, line.sequence};
    in_flight_.push_back(sent_);
    lines.push_back(std::move(line));
  }
  return lines;
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

}  // namespace titan::daemon
