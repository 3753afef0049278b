# Libraries from Debian, and LibTorch and Arrow from the wheels in .deps/venv.

find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(GTest REQUIRED)
find_package(Protobuf REQUIRED)
find_package(absl REQUIRED)
find_package(gRPC REQUIRED CONFIG)  # pkg-config takes 15 s, since it queries each of Abseil's hundred packages.
find_package(nlohmann_json REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
find_package(SQLite3 REQUIRED)
find_package(OpenSSL REQUIRED)  # Certificates and digests; gRPC depends on it anyway.
find_package(ZLIB REQUIRED)
find_package(CURL 7.85 REQUIRED)  # Files of a hub, objects of a store.
find_package(EXPAT 2.4 REQUIRED)  # Parses the responses of an object store.
find_package(benchmark QUIET)
pkg_check_modules(tomlplusplus REQUIRED IMPORTED_TARGET tomlplusplus)
pkg_check_modules(cpp_httplib REQUIRED IMPORTED_TARGET cpp-httplib)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(libdw REQUIRED IMPORTED_TARGET libdw)
find_path(TITAN_PROTOZERO protozero/pbf_writer.hpp REQUIRED)  # Writes ONNX models; headers alone.
pkg_check_modules(libjpeg REQUIRED IMPORTED_TARGET libjpeg)  # Images of datasets, and sampled pictures.
pkg_check_modules(libpng REQUIRED IMPORTED_TARGET libpng)
pkg_check_modules(libwebp REQUIRED IMPORTED_TARGET libwebp libwebpdemux)

file(GLOB _titan_site ${TITAN_DEPS}/venv/lib/python3*/site-packages)
list(GET _titan_site 0 TITAN_SITE_PACKAGES)

# Arrow with its Parquet reader, from the pyarrow wheel, which contains the headers. Without it Parquet files are
# rejected.
set(_arrow ${TITAN_SITE_PACKAGES}/pyarrow)
file(GLOB _arrow_libraries ${_arrow}/libarrow.so.* ${_arrow}/libparquet.so.*)
list(LENGTH _arrow_libraries _arrow_count)
if(_arrow_count EQUAL 2)
  add_library(titan_arrow INTERFACE)
  target_include_directories(titan_arrow SYSTEM INTERFACE ${_arrow}/include)
  target_link_libraries(titan_arrow INTERFACE ${_arrow_libraries})
endif()

# LibTorch has its own imported targets here, because the wheel's CMake package requires a CUDA toolkit.
if(TITAN_TORCH)
  set(_torch ${TITAN_SITE_PACKAGES}/torch)
  if(NOT EXISTS ${_torch}/lib/libtorch_cpu.so)
    message(FATAL_ERROR "LibTorch is not in ${_torch}: run deploy/bootstrap.sh (or configure with -DTITAN_TORCH=OFF)")
  endif()
  add_library(titan_torch INTERFACE)
  target_include_directories(titan_torch SYSTEM INTERFACE ${_torch}/include ${_torch}/include/torch/csrc/api/include)
  target_compile_definitions(titan_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO _GLIBCXX_USE_CXX11_ABI=1)
  # Links by path, so that only the CPU half of the wheel is linked. The wheel contains its own OpenMP runtime.
  file(GLOB _torch_gomp ${_torch}/lib/libgomp*.so*)
  target_link_libraries(titan_torch INTERFACE ${_torch}/lib/libtorch_cpu.so ${_torch}/lib/libc10.so ${_torch_gomp} Threads::Threads)
  # In the build tree CMake uses the wheel's folder as the run path. Installed programs have another one
  # (TitanInstall.cmake).
  target_link_options(titan_torch INTERFACE -Wl,--no-as-needed)
  target_compile_options(titan_torch INTERFACE -fopenmp)

  # A precompiled header fits one optimization level, so the product and the tests each have one.
  foreach(kind torch torch_test)
    add_library(titan_${kind}_pch STATIC EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/cmake/torch_pch.cc)
    target_link_libraries(titan_${kind}_pch PUBLIC titan_flags titan_torch)
    target_precompile_headers(titan_${kind}_pch PRIVATE <cmake/${kind}_headers.h>)  # Included by name, so it contains no checkout path.
  endforeach()
  target_compile_options(titan_torch_test_pch PRIVATE ${TITAN_COLD_FLAGS})
  target_compile_definitions(titan_torch_test_pch PRIVATE ${TITAN_TEST_DEFINITIONS})
endif()

# A program has one OpenMP runtime, so that its threads form one pool: the wheel's if LibTorch is linked, else the
# compiler's.
add_library(titan_openmp INTERFACE)
target_compile_options(titan_openmp INTERFACE -fopenmp)
target_link_libraries(titan_openmp INTERFACE $<IF:$<BOOL:${TITAN_TORCH}>,${_torch_gomp},gomp>)
