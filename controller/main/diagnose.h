#pragma once

#include "common/service/journal/journal.h"
#include "common/service/metrics/metrics.h"
#include "controller/main/flags.h"
#include "controller/store/store.h"
#include "titan/v1/cluster.pb.h"

namespace titan {

// Reports what this controller knows about itself, without secrets. Thread-safe.
v1::Diagnostics diagnose(const Flags& flags, const journal::RecentLines& journal, const metrics::Metrics& metrics,
                         const store::Store& store);

}  // namespace titan
