#pragma once

// Owns an open file descriptor, and raises this process's limit of them.

#include <unistd.h>

#include <cstdint>
#include <utility>

namespace titan::host {

// An open file descriptor of this process, closed on destruction. Negative: none.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      number_ = other.release();
    }
    return *this;
  }
  ~Descriptor() { reset(); }

  int get() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }
  // Gives the descriptor away: the caller closes it.
  int release() { return std::exchange(number_, -1); }
  void reset() {
    if (number_ >= 0) ::close(number_);
    number_ = -1;
  }

 private:
  int number_ = -1;
};

// Raises the limit of open descriptors to the most that this process may have; the usual 1,024 is only what programs
// get that do not ask. What it starts inherits it. Returns the limit; 0 where the system does not tell.
int64_t raise_descriptor_limit();

}  // namespace titan::host
