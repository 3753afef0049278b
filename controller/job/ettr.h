#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "controller/job/record.h"

namespace titan::job {

// Returns the effective training time ratio, as ByteRobust and Meta define it: the share of the wall time since the
// first attempt began in which the job was not being started, recovered or placed again. Replayed steps count as lost.
// Returns 1 before the first attempt. `now_ns` is Unix time. A job that has ended is measured up to its end.
double ettr(const JobRecord& record, const std::vector<std::shared_ptr<const AttemptRecord>>& attempts, int64_t now_ns);

}  // namespace titan::job
