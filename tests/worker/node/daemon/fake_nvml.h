#pragma once

// Functions that change the fake library's devices; a test finds them by name.

extern "C" {

void fake_nvml_xid(unsigned int index, unsigned long long number);
void fake_nvml_lose(bool lost);  // Makes the second device lost, or usable again.
void fake_nvml_hang(bool hang);  // Blocks nvmlInit and temperature queries until it is false again.
void fake_nvml_wait_until_hung();

}  // extern "C"
