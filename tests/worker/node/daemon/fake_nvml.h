#pragma once

// What a test may do to the devices of the fake library; found by name in it.

extern "C" {

void fake_nvml_xid(unsigned int index, unsigned long long number);
void fake_nvml_lose(bool lost);  // The second device.
void fake_nvml_hang(bool hang);  // Whoever begins or asks for a temperature, until it is false again.
void fake_nvml_wait_until_hung();

}  // extern "C"
