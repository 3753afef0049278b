#pragma once

#include "worker/rank/trace/flop_counter.h"

namespace titan::testing {

using trace::FlopCounter;

}  // namespace titan::testing
