#pragma once

#include "worker/rank/random/streams.h"

// The streams from which layers draw their initial values.
namespace titan::nn {

using random::draw_chunk;
using random::draw_uniform_chunk;
using random::kChunk;
using random::kPhiloxBlocks;
using random::philox;
using random::PhiloxWords;
using random::stream_key;
using random::TruncatedNormal;

}  // namespace titan::nn
