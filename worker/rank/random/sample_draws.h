#pragma once

// The random numbers of a training sample for a model of images, as pure functions of the run's seed and the sample's
// row. Rows count through the whole run, over all ranks and epochs. So a batch is the same on any mesh, after a resume
// and with any number of threads. (torchtitan draws from one generator of each rank in the order of the calls.)

#include <cstdint>

namespace titan::random {

struct SampleDraws {
  double crop = 0;         // In [0, 1): where along the longer side an image is cut.
  bool drop_t5 = false;    // The T5 encoder gets the empty prompt instead of the sample's.
  bool drop_clip = false;  // The same for the CLIP encoder.
};

// Returns the choices that prepare a sample. Each encoding is dropped with the probability `drop_probability`,
// independently of the other, for classifier-free guidance (Ho and Salimans, 2022).
SampleDraws draw_sample(uint64_t seed, int64_t row, double drop_probability);

// Names the use of a sample's other numbers. Each use has a separate stream.
enum class SampleStream : uint32_t {
  kNoise = 1,        // Normal, one for each element of the latent image: what flow matching mixes in.
  kTimestep = 2,     // Uniform, one.
  kAutoencoder = 3,  // Normal, one for each element of the latent image: the draw from the autoencoder's distribution.
};

// Returns the key of a sample's stream, for draw_normal() and draw_unit().
uint64_t sample_key(uint64_t seed, int64_t row, SampleStream stream);

// Writes elements [first, first + count) of the stream's standard normal distribution to out [count]. Element i depends
// only on the key and i: it is that of draw_chunk() with TruncatedNormal(1, -infinity, infinity), and has the same bits
// as random_math.h's element() on CUDA.
void draw_normal(uint64_t key, int64_t first, int64_t count, float* out);

// Returns element `index` of the stream's uniform distribution over the multiples of 2^-24 in [0, 1).
float draw_unit(uint64_t key, int64_t index);

}  // namespace titan::random
