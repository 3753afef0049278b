#include "tests/numerics/pinned_choices.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <utility>

namespace titan::testing {
namespace {

constexpr c10::DispatchKey kKey = c10::DispatchKey::Fake;  // No other code uses this key.
thread_local PinnedChoices* current = nullptr;

}  // namespace

struct PinnedTopk {
  static std::tuple<at::Tensor, at::Tensor> topk(const at::Tensor& scores, c10::SymInt k, int64_t dim, bool largest,
                                                 bool sorted) {
    const c10::impl::ExcludeDispatchKeyGuard below(kKey);
    const int64_t count = k.guard_int(__FILE__, __LINE__);
    PinnedChoices& pins = *current;
    if (pins.next_ < pins.choices_.size()) {
      const at::Tensor& chosen = pins.choices_[pins.next_];
      if (scores.dim() == 2 && scores.size(1) == pins.num_experts_ && chosen.size(1) == count) {
        TORCH_CHECK(scores.size(0) == chosen.size(0), "a router sees ", scores.size(0), " tokens of ", chosen.size(0));
        ++pins.next_;
        return {scores.gather(1, chosen), chosen.clone()};
      }
    }
    return at::topk(scores, count, dim, largest, sorted);
  }
};

PinnedChoices::PinnedChoices(std::vector<at::Tensor> choices, int64_t num_experts)
    : choices_(std::move(choices)), num_experts_(num_experts) {
  current = this;
  c10::impl::tls_set_dispatch_key_included(kKey, true);
}

PinnedChoices::~PinnedChoices() {
  c10::impl::tls_set_dispatch_key_included(kKey, false);
  current = nullptr;
}

}  // namespace titan::testing

TORCH_LIBRARY_IMPL(_, Fake, library) { library.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Fake, library) { library.impl("topk", TORCH_FN(titan::testing::PinnedTopk::topk)); }
