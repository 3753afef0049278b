#include "worker/rank/comm/gloo.h"

// The only file that includes ProcessGroupGloo.hpp. Debian's Gloo headers are older than the code in the wheel. Options
// and devices have the same layout, but this file must not construct a GlooStore or derive from a Gloo class: it would
// then contain a vtable of the old layout (tests/worker/rank/comm/gloo_vtable_test.sh).
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace titan::comm {

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const device::BackendOptions& options) {
  auto gloo_options = c10d::ProcessGroupGloo::Options::create(options.timeout);
  gloo_options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(options.host));
  try {
    return c10::make_intrusive<c10d::ProcessGroupGloo>(options.store, options.rank, options.size, gloo_options);
  } catch (const c10::Error& error) {
    // A peer is gone by now: LibTorch has converted Gloo's exception to a generic error.
    const std::string text = error.what_without_backtrace();
    if (text.find("connectFullMesh failed") == std::string::npos) throw;
    C10_THROW_ERROR(DistBackendError, text);
  }
}

}  // namespace titan::comm
