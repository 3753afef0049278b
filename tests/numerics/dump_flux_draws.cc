// Writes the random numbers of Flux's training rows, for golden_flux.py:
//   dump_flux_draws SEED ROWS DROP_PROBABILITY ELEMENTS
// Standard output gets fp64 [ROWS, 4 + 2 * ELEMENTS]: crop, whether T5's and CLIP's captions are dropped (0 or 1),
// time, and the noise and the autoencoder's draw, of a latent image with ELEMENTS numbers each.

#include <cstdlib>
#include <iostream>
#include <vector>

#include "worker/rank/random/sample_draws.h"

namespace {

using titan::random::SampleStream;

void append_normal(std::vector<double>& out, uint64_t key, int64_t elements) {
  std::vector<float> values(static_cast<size_t>(elements));
  titan::random::draw_normal(key, 0, elements, values.data());
  out.insert(out.end(), values.begin(), values.end());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: dump_flux_draws SEED ROWS DROP_PROBABILITY ELEMENTS\n";
    return 2;
  }
  const uint64_t seed = std::strtoull(argv[1], nullptr, 10);
  const int64_t rows = std::atoll(argv[2]), elements = std::atoll(argv[4]);
  for (int64_t row = 0; row < rows; ++row) {
    const auto key = [&](SampleStream stream) { return titan::random::sample_key(seed, row, stream); };
    const titan::random::SampleDraws draws = titan::random::draw_sample(seed, row, std::atof(argv[3]));
    std::vector<double> out = {draws.crop, draws.drop_t5 ? 1.0 : 0.0, draws.drop_clip ? 1.0 : 0.0,
                               titan::random::draw_unit(key(SampleStream::kTimestep), 0)};
    append_normal(out, key(SampleStream::kNoise), elements);
    append_normal(out, key(SampleStream::kAutoencoder), elements);
    std::cout.write(reinterpret_cast<const char*>(out.data()),
                    static_cast<std::streamsize>(out.size() * sizeof(double)));
  }
  return 0;
}
