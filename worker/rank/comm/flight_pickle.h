#pragma once

#include <string>

#include "worker/rank/comm/flight_recorder.h"

namespace titan::comm {

// Returns the recordings in the format of PyTorch's flight recorder (2.11): a pickle that `python -m
// torch.distributed.flight_recorder.fr_trace FOLDER` reads together with those of the other ranks.
std::string to_pickle(const Flight& flight);

}  // namespace titan::comm
