#include "worker/rank/kernels/cpu/attention_tiles_body.h"
#include "worker/rank/kernels/cpu/attention_vectors512.h"
#include "worker/rank/kernels/cpu/tiles.h"

namespace titan::kernels {
namespace {

// Degree 3 suffices for exp2, because its result is rounded to bf16.
struct Amx : Vectors512<3> {
  typedef uint16_t Words __attribute__((vector_size(64), may_alias));

  // Converts to bf16: low, then high.
  static TITAN_INLINE Words narrow(Float low, Float high) { return (Words)_mm512_cvtne2ps_pbh(high, low); }
  static TITAN_INLINE Words unpack_low(Words a, Words b) {
    return (Words)_mm512_unpacklo_epi16((__m512i)a, (__m512i)b);
  }
  static TITAN_INLINE Words unpack_high(Words a, Words b) {
    return (Words)_mm512_unpackhi_epi16((__m512i)a, (__m512i)b);
  }

  // Loads the first `count` words and sets the others to 0.
  static TITAN_INLINE Words load_words(const uint16_t* from, int64_t count) {
    return (Words)_mm512_maskz_loadu_epi16(first(count), from);
  }
  static TITAN_INLINE void store_words(uint16_t* to, Words words, int64_t count) {
    _mm512_mask_storeu_epi16(to, first(count), (__m512i)words);
  }

  template <int kTile>
  static TITAN_INLINE void load_tile(const void* from, int64_t stride) {
    amx::tile_load<kTile>(from, stride);
  }
  template <int kTile>
  static TITAN_INLINE void store_tile(void* to, int64_t stride) {
    amx::tile_store<kTile>(to, stride);
  }
  template <int kTile>
  static TITAN_INLINE void zero_tile() {
    amx::tile_zero<kTile>();
  }
  template <int kSum, int kA, int kB>
  static TITAN_INLINE void multiply() {
    amx::tile_multiply<kSum, kA, kB>();
  }

 private:
  static TITAN_INLINE __mmask32 first(int64_t count) { return count >= 32 ? ~0U : (1U << count) - 1; }
};

void enter() { amx::tiles_configure(); }
void leave() { amx::tiles_release(); }

}  // namespace

const AttentionLevel kAttentionAmx = level_of<TileAttention<Amx>>(enter, leave);

}  // namespace titan::kernels
