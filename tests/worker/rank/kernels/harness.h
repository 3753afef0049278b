#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "worker/rank/kernels/dtype.h"
#include "worker/rank/kernels/level.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

// Shared by the tests of all kernels: levels, numbers from a seed, buffers that detect an access outside, and
// comparison with fp64 truth.
namespace titan::kernels::testing {

inline Level highest_requested() {
  const char* const named = std::getenv("TITAN_KERNEL_LEVEL");
  return named == nullptr ? Level::kAmx : level_named(named).value();
}

// Returns the levels of this machine, up to the one that TITAN_KERNEL_LEVEL names. Prints once per program which other
// levels are not tested.
inline const std::vector<Level>& levels_here() {
  static const std::vector<Level> levels = [] {
    std::vector<Level> here;
    for (const Level level : {Level::kAvx2, Level::kAvx512, Level::kAvx512Bf16, Level::kAmx}) {
      if (best_level() && level <= std::min(*best_level(), highest_requested())) {
        here.push_back(level);
      } else {
        std::cout << "[ SKIPPED  ] level " << name(level) << ": not tested here\n";
      }
    }
    return here;
  }();
  return levels;
}

// Runs the body at every level, with one and two threads. Failures name both.
inline void at_every_level(const std::function<void(Level level, int threads)>& body) {
  for (const Level level : levels_here()) {
    for (const int threads : {1, 2}) {
      SCOPED_TRACE(std::string(name(level)) + ", threads " + std::to_string(threads));
      body(level, threads);
    }
  }
}

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline double from_bf16(uint16_t narrow) { return float_of(static_cast<uint32_t>(narrow) << 16); }
inline uint16_t to_bf16(float value) {  // Rounds to nearest, ties to even.
  const uint32_t bits = bits_of(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Makes AddressSanitizer report every access to the bytes until unwatch(). It misses bytes that share an aligned group
// of eight with later ones.
inline void watch([[maybe_unused]] const void* bytes, [[maybe_unused]] size_t size) {
#ifdef __SANITIZE_ADDRESS__
  __asan_poison_memory_region(bytes, size);
#endif
}
inline void unwatch([[maybe_unused]] const void* bytes, [[maybe_unused]] size_t size) {
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(bytes, size);
#endif
}

// The side on which a buffer touches the protected page. Canaries are on the other side.
enum class Edge { kEnd, kBegin };

// `size` bytes that end, or begin, at a protected page. A write to the canaries fails the test; only AddressSanitizer
// notices a read of them.
class GuardedBytes {
 public:
  explicit GuardedBytes(size_t size, Edge edge = Edge::kEnd) : size_(size) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t inner = (size + kCanaries + page - 1) / page * page;
    mapped_ = inner + page;
    base_ =
        static_cast<unsigned char*>(mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED) std::abort();
    unsigned char* first = edge == Edge::kEnd ? base_ : base_ + page;
    if (mprotect(edge == Edge::kEnd ? base_ + inner : base_, page, PROT_NONE) != 0) std::abort();
    std::memset(first, kCanary, inner);
    data_ = edge == Edge::kEnd ? first + inner - size : first;
    canaries_ = edge == Edge::kEnd ? first : first + size;
    num_canaries_ = inner - size;
    watch(canaries_, num_canaries_);
  }
  ~GuardedBytes() {
    unwatch(canaries_, num_canaries_);
    EXPECT_TRUE(intact()) << "something wrote next to a buffer of " << size_ << " bytes";
    munmap(base_, mapped_);
  }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  void* data() const { return data_; }
  size_t size() const { return size_; }
  bool intact() const {
    return std::all_of(canaries_, canaries_ + num_canaries_, [](unsigned char byte) { return byte == kCanary; });
  }

 private:
  static constexpr unsigned char kCanary = 0xA5;
  static constexpr size_t kCanaries = 64;
  size_t size_, mapped_, num_canaries_;
  unsigned char *base_, *data_, *canaries_;
};

// `count` values of one type between guards. Their initial bytes are those of canaries.
template <typename T>
class Buffer {
 public:
  explicit Buffer(int64_t count, Edge edge = Edge::kEnd) : count_(count), bytes_(count * sizeof(T), edge) {}
  Buffer(const std::vector<T>& values, Edge edge = Edge::kEnd) : Buffer(static_cast<int64_t>(values.size()), edge) {
    if (!values.empty()) std::memcpy(data(), values.data(), values.size() * sizeof(T));
  }
  T* data() const { return static_cast<T*>(bytes_.data()); }
  int64_t size() const { return count_; }
  T& operator[](int64_t i) const { return data()[i]; }
  std::vector<T> copy() const { return std::vector<T>(data(), data() + count_); }

 private:
  int64_t count_;
  GuardedBytes bytes_;
};

inline size_t size_of(Dtype type) { return type == Dtype::kF32 ? sizeof(float) : sizeof(uint16_t); }

// Like Buffer, for numbers of a type that is chosen at run time. They are read and written as fp64.
class Numbers {
 public:
  Numbers(Dtype type, int64_t count, Edge edge = Edge::kEnd)
      : type_(type), count_(count), bytes_(count * size_of(type), edge) {}
  Numbers(Dtype type, const std::vector<double>& values, Edge edge = Edge::kEnd)
      : Numbers(type, static_cast<int64_t>(values.size()), edge) {
    for (int64_t i = 0; i < count_; ++i) set(i, values[i]);
  }
  void* data() const { return bytes_.data(); }
  Dtype type() const { return type_; }
  int64_t size() const { return count_; }
  void* at(int64_t i) const { return static_cast<char*>(data()) + i * size_of(type_); }
  double get(int64_t i) const {
    return type_ == Dtype::kF32 ? static_cast<float*>(data())[i] : from_bf16(static_cast<uint16_t*>(data())[i]);
  }
  void set(int64_t i, double value) const {
    if (type_ == Dtype::kF32) {
      static_cast<float*>(data())[i] = static_cast<float>(value);
    } else {
      static_cast<uint16_t*>(data())[i] = to_bf16(static_cast<float>(value));
    }
  }
  std::vector<double> values() const {
    std::vector<double> all(count_);
    for (int64_t i = 0; i < count_; ++i) all[i] = get(i);
    return all;
  }
  std::vector<unsigned char> bits() const {
    const auto* first = static_cast<const unsigned char*>(data());
    return {first, first + bytes_.size()};
  }

 private:
  Dtype type_;
  int64_t count_;
  GuardedBytes bytes_;
};

constexpr Dtype kBothTypes[] = {Dtype::kBf16, Dtype::kF32};
inline const char* name(Dtype type) { return type == Dtype::kF32 ? "fp32" : "bf16"; }

// Half a unit in the last place: the largest relative error of one rounding to the type.
inline double rounding(Dtype type) { return type == Dtype::kF32 ? 0x1p-24 : 0x1p-8; }

class Random {
 public:
  explicit Random(uint64_t seed) : bits_(seed) {}
  int64_t pick(int64_t first, int64_t last) { return std::uniform_int_distribution<int64_t>(first, last)(bits_); }
  double normal() { return normal_(bits_); }
  std::vector<double> normals(int64_t count, double scale = 1) {
    std::vector<double> values(count);
    for (double& value : values) value = scale * normal();
    return values;
  }
  Edge edge() { return pick(0, 1) == 0 ? Edge::kEnd : Edge::kBegin; }

 private:
  std::mt19937_64 bits_;
  std::normal_distribution<double> normal_;
};

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Whether `found` is within `absolute` + `relative` * |truth|. NaN or infinity must be the same in both.
inline bool is_close(double found, double truth, double relative, double absolute) {
  if (std::isnan(truth) || std::isnan(found)) return std::isnan(truth) && std::isnan(found);
  if (std::isinf(truth) || std::isinf(found)) return truth == found;
  return std::abs(found - truth) <= absolute + relative * std::abs(truth);
}

// Checks every element. A failure shows the first wrong one and how many are wrong.
inline ::testing::AssertionResult all_close(const std::vector<double>& found, const std::vector<double>& truth,
                                            double relative, double absolute) {
  if (found.size() != truth.size()) {
    return ::testing::AssertionFailure() << found.size() << " numbers, not " << truth.size();
  }
  size_t off = 0, first = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    if (is_close(found[i], truth[i], relative, absolute)) continue;
    if (off++ == 0) first = i;
  }
  if (off == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << off << " of " << truth.size() << " are off, first [" << first
                                       << "]: " << found[first] << ", truth " << truth[first];
}

// Returns the root mean square of the difference, relative to that of the truth.
inline double relative_rms(const std::vector<double>& found, const std::vector<double>& truth) {
  double off = 0, all = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    off += (found[i] - truth[i]) * (found[i] - truth[i]);
    all += truth[i] * truth[i];
  }
  return all == 0 ? std::sqrt(off) : std::sqrt(off / all);
}

}  // namespace titan::kernels::testing
