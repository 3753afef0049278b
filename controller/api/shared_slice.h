#pragma once

// Makes gRPC slices that share their bytes, so that a message for many readers is kept once.

#include <memory>
#include <string>

#include "grpcpp/support/slice.h"

namespace titan::api {

// Makes a slice that shares `bytes`, which must be part of what `owner` holds. They live as long as any such slice.
template <typename Owner>
grpc::Slice shared_slice(const std::shared_ptr<Owner>& owner, const std::string& bytes) {
  using Holder = std::shared_ptr<Owner>;
  auto* holder = new Holder(owner);              // NOLINT(cppcoreguidelines-owning-memory): dropped with the slice.
  auto* data = const_cast<char*>(bytes.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast): gRPC only reads it.
  const auto drop = [](void* held) {
    delete static_cast<Holder*>(held);  // NOLINT(cppcoreguidelines-owning-memory)
  };
  return {data, bytes.size(), drop, holder};
}

}  // namespace titan::api
