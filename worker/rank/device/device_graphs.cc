#include "worker/rank/device/device_graphs.h"

#include <c10/util/Exception.h>

namespace titan::device {
namespace {

thread_local int captures = 0;

}  // namespace

CaptureGuard::CaptureGuard() { ++captures; }
CaptureGuard::~CaptureGuard() { --captures; }

void check_not_capturing(const char* what) { TORCH_CHECK(captures == 0, "the host reads ", what); }

}  // namespace titan::device
