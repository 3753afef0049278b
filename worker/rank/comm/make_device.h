#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/device/device.h"

namespace titan::comm {

std::unique_ptr<device::Device> make_cpu_device();

// Opens the device "cpu", or "cuda" with this index on the node. CUDA is in a shared object that is loaded only here.
// Errors: InvalidArgument (unknown name), Unimplemented (the CUDA library cannot be loaded), Internal (it is not
// Titan's), FailedPrecondition (the device cannot be opened).
absl::StatusOr<std::unique_ptr<device::Device>> make_device(const std::string& name, int local_index);

// Returns the PCI addresses ("0000:3B:00.0") of the CUDA devices that this process sees, by index on the node; an empty
// text if the address is unknown. Does not open the devices, because a device's helper threads stay on the CPUs of the
// thread that opens it. Empty without CUDA or devices.
std::vector<std::string> cuda_addresses();

// Functions that the CUDA shared object exports under these names. The factory throws c10::Error.
using CudaFactory = device::Device* (*)(int local_index);
inline constexpr char kCudaFactorySymbol[] = "titan_make_cuda_device";
using CudaAddresses = std::vector<std::string> (*)();
inline constexpr char kCudaAddressesSymbol[] = "titan_cuda_addresses";
inline constexpr char kCudaLibrary[] = "libtitan_cuda.so";

}  // namespace titan::comm
