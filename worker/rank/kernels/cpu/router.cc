#include "worker/rank/kernels/cpu/router.h"

#include "worker/rank/kernels/cpu/dispatch.h"

namespace titan::kernels {
namespace {

bool fits(int64_t experts, int64_t top_k) {
  return experts > 0 && experts <= kMaxExperts && top_k > 0 && top_k <= kMaxChoices && top_k <= experts;
}

bool accepted(const RouterForward& args) {
  if (!fits(args.experts, args.top_k)) return false;
  if (args.groups == 0) return true;
  if (args.groups < 0 || args.experts % args.groups != 0) return false;
  const int64_t size = args.experts / args.groups;
  return size >= 2 && args.limited_groups > 0 && args.limited_groups <= args.groups && args.groups <= kMaxChoices &&
         args.limited_groups * size >= args.top_k;
}
bool accepted(const RouterBackward& args) { return fits(args.experts, args.top_k); }

}  // namespace

TITAN_ROW_OP(router_forward, RouterForward);
TITAN_ROW_OP(router_backward, RouterBackward);

}  // namespace titan::kernels
