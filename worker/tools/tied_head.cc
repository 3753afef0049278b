#include "worker/tools/tied_head.h"

#include "common/status/status.h"

namespace titan::tools {
namespace {

constexpr int64_t kComparedAtOnce = int64_t{1} << 22;

}  // namespace

absl::StatusOr<bool> same_numbers(const std::vector<int64_t>& shape, ReadPart a, ReadPart b) {
  for (const checkpoint::Box& part : checkpoint::cut(checkpoint::whole(shape), kComparedAtOnce)) {
    TITAN_ASSIGN_OR_RETURN(const at::Tensor of_a, a(part));
    TITAN_ASSIGN_OR_RETURN(const at::Tensor of_b, b(part));
    if (!at::equal(of_a.to(at::kDouble), of_b.to(at::kDouble))) return false;
  }
  return true;
}

}  // namespace titan::tools
