#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/device/device.h"

namespace titan::comm {

std::unique_ptr<device::Device> make_cpu_device();

// "cpu", or "cuda" with the index of the device on this node. CUDA lives in a shared object that is loaded only here.
// Errors: InvalidArgument (unknown name), Unimplemented (built without CUDA), FailedPrecondition (no such device).
absl::StatusOr<std::unique_ptr<device::Device>> make_device(const std::string& name, int local_index);

// Where the CUDA devices that this process sees are plugged in ("0000:3B:00.0"), by their index on the node; an empty
// text for one that does not tell. Opens none of them: a device's helper threads run where the thread runs that opens
// it. Empty without CUDA or devices.
std::vector<std::string> cuda_addresses();

// What the CUDA shared object exports under the name kCudaFactorySymbol. Throws c10::Error.
using CudaFactory = device::Device* (*)(int local_index);
inline constexpr char kCudaFactorySymbol[] = "titan_make_cuda_device";
using CudaAddresses = std::vector<std::string> (*)();
inline constexpr char kCudaAddressesSymbol[] = "titan_cuda_addresses";
inline constexpr char kCudaLibrary[] = "libtitan_cuda.so";

}  // namespace titan::comm
