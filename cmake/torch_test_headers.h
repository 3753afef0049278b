// The precompiled headers of tests.
#include "cmake/torch_headers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
