#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "controller/job/record.h"

namespace titan::job {

// Effective training time ratio: the share of the wall time since the first attempt began in which the job was not
// being started, recovered or waiting to be placed again; replayed steps count as lost (ByteRobust's and Meta's
// definition). 1 before the first attempt. `now_ns` is unix time; a job that is over is measured to its end.
double ettr(const JobRecord& record, const std::vector<std::shared_ptr<const AttemptRecord>>& attempts, int64_t now_ns);

}  // namespace titan::job
