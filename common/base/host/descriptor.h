#pragma once

// Owns an open file descriptor, and raises this process's limit of open descriptors.

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
  // Releases ownership: the caller closes the descriptor.
  int release() { return std::exchange(number_, -1); }
  void reset() {
    if (number_ >= 0) ::close(number_);
    number_ = -1;
  }

 private:
  int number_ = -1;
};

// Raises the limit of open descriptors to the highest value that this process may set. The usual default of 1,024
// applies only to programs that do not request more. Child processes inherit the limit. Returns the new limit, or 0
// when the system does not report one.
int64_t raise_descriptor_limit();

}  // namespace titan::host
